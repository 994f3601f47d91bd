import hashlib
import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from command_line import warm_proxemic
from onnx_files import WEIGHT, network
from proxemic.data import Preprocessing, read_image
from proxemic.data.embeddings import read_embeddings
from proxemic.data.reading import UnreadableImageError
from proxemic.errors import UserError
from proxemic.models import ModelConfig, build_model, load_model, read_checksum, save_model
from proxemic.retrieval import Embedder, embed_to_file

RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 256, (height, 24, 3), dtype=np.uint8) for height in (24, 30, 40)]
GREY = RNG.integers(0, 256, (24, 24), dtype=np.uint8)
PREPROCESSING = Preprocessing(size=16, resize=16)


class OwnBackbone(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, width, 3)
        self.num_features = width

    def forward(self, images: Tensor) -> Tensor:
        return self.convolution(images)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_model(tmp_path / "model", build_model(ModelConfig("convnet", 4, width=8)), vars(PREPROCESSING))
    return tmp_path / "model"


def onnx_model(folder: Path, **others: Any) -> Path:
    (folder / "model.onnx").write_bytes(network())
    (folder / "model.json").write_text(json.dumps({"preprocessing": vars(PREPROCESSING), **others}))
    return folder / "model.onnx"


def test_vectors_are_those_of_evaluate_to_the_bit(run: Path, folder: Path, tmp_path: Path) -> None:
    words = ["--split", "all", "--data.root", folder, "--save-embeddings", tmp_path / "theirs.parquet"]
    done = warm_proxemic("evaluate", run, *words, "--evaluation.batch_size", "32", "--resamples", "0")
    assert done.returncode == 0, done.stderr
    embed_to_file(folder, tmp_path / "ours.parquet", run, batch_size=32, workers=0)
    ours, theirs = (read_embeddings(tmp_path / f"{name}.parquet") for name in ("ours", "theirs"))
    assert ours.names == theirs.names
    assert ours.embeddings is not None
    assert theirs.embeddings is not None
    assert torch.equal(ours.embeddings, theirs.embeddings)
    embedder = Embedder.load(run)
    assert embedder.checksum == read_checksum(run)
    paths = ours.names
    assert torch.equal(embedder.embed(paths, batch_size=32), theirs.embeddings)
    assert torch.equal(embedder.embed(paths, batch_size=32, workers=2), theirs.embeddings)


def test_a_saved_model_embeds_whatever_is_a_picture(saved: Path, tmp_path: Path) -> None:
    embedder = Embedder.load(saved)
    for number, picture in enumerate(PICTURES):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    paths = [tmp_path / f"{number}.png" for number in range(3)]
    transform, model = PREPROCESSING.evaluation(), load_model(saved)[0]
    prepared = torch.stack([transform(read_image(path)) for path in paths])
    with torch.no_grad():
        expected = model(prepared)
    for given in (
        paths,
        [str(path) for path in paths],
        [path.read_bytes() for path in paths],
        [Image.fromarray(picture) for picture in PICTURES],
        PICTURES,
        [paths[0], PICTURES[1], prepared[2]],
        prepared,
    ):
        found = embedder.embed(given)
        assert not found.requires_grad
        torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(embedder.embed(PICTURES[0]), expected[:1], atol=1e-6, rtol=1e-5)
    assert (embedder.dim, embedder.distance, embedder.takes_vectors) == (4, "cosine", False)
    assert embedder.embed([]).shape == (0, 4)
    assert Embedder.load(saved / "model.safetensors").checksum == embedder.checksum == read_checksum(saved)
    half = Embedder.load(saved, precision="bf16-mixed").embed(PICTURES)
    assert not torch.equal(half, expected)
    torch.testing.assert_close(half, expected, atol=0.05, rtol=0.05)


def test_reading_in_processes_changes_nothing_and_draws_no_seed(saved: Path) -> None:
    embedder = Embedder.load(saved)
    state = torch.get_rng_state()
    assert torch.equal(embedder.embed(PICTURES, workers=2), embedder.embed(PICTURES))
    assert torch.equal(torch.get_rng_state(), state)


def test_what_cannot_be_read_is_said_or_left_out(saved: Path, tmp_path: Path) -> None:
    embedder = Embedder.load(saved)
    (tmp_path / "bad.jpg").write_bytes(b"no image")
    bad = tmp_path / "bad.jpg"
    others = {*multiprocessing.active_children()}  # of earlier tests, whose loaders are no longer used
    for workers in (0, 1):
        with pytest.raises(UnreadableImageError, match=r"bad\.jpg cannot be read as an image"):
            embedder.embed([PICTURES[0], bad], workers=workers)
        assert not {*multiprocessing.active_children()} - others
    batches = [*embedder.embed_readable([bad, bad, PICTURES[0], bad, PICTURES[1], bad], batch_size=2)]
    assert [(len(batch.embeddings), batch.places, [*batch.unreadable]) for batch in batches] == [
        (0, [], [0, 1]),
        (1, [2], [3]),
        (1, [4], [5]),
    ]
    (batch,) = embedder.embed_readable([bad], batch_size=2)
    assert (batch.embeddings.shape, batch.places, [*batch.unreadable]) == ((0, 4), [], [0])
    with pytest.raises(ValueError, match="image is an array of float64"):
        embedder.embed([np.zeros((4, 4))])
    for settings in ({"batch_size": 0}, {"workers": -1}):
        with pytest.raises(ValueError, match=r"(batch_size|workers) is .*, but must be (at least 1|from 0)"):
            embedder.embed(PICTURES, **settings)


def test_a_model_of_timm_with_its_own_transform() -> None:
    import timm
    from timm.data import create_transform

    torch.manual_seed(0)
    model = timm.create_model("test_resnet.r160_in1k", pretrained=False, num_classes=0)
    transform = create_transform(input_size=(3, 32, 32), is_training=False)
    assert callable(transform)
    embedder = Embedder(model, transform)
    with torch.no_grad():
        expected = torch.cat(
            [
                model(transform(Image.fromarray(picture).convert("RGB"))[None])  # type: ignore[index]
                for picture in (*PICTURES, GREY)
            ]
        )
    assert embedder.dim == expected.shape[1]
    torch.testing.assert_close(embedder.embed([*PICTURES, GREY]), expected, atol=1e-5, rtol=1e-4)
    with_classes = timm.create_model("test_resnet.r160_in1k", pretrained=False, num_classes=0, global_pool="")
    with pytest.raises(ValueError, match=r"returns \[3, .* with num_classes=0"):
        Embedder(with_classes, transform).embed(PICTURES)


def test_a_model_of_transformers_with_its_own_processor() -> None:
    transformers = pytest.importorskip("transformers")
    settings = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=16, patch_size=8, **settings)).eval()
    processor = transformers.ViTImageProcessorPil(size={"height": 16, "width": 16})
    images = [Image.fromarray(picture).convert("RGB") for picture in (*PICTURES, GREY)]
    with torch.no_grad():
        expected = model(**processor(images, return_tensors="pt")).pooler_output
    embedder = Embedder(model, processor)
    torch.testing.assert_close(embedder.embed([*PICTURES, GREY]), expected, atol=1e-6, rtol=1e-5)
    assert embedder.dim == 8


def test_any_module_has_a_checksum_of_its_weights() -> None:
    def checksum(seed: int, dtype: torch.dtype = torch.float32) -> str:
        torch.manual_seed(seed)
        return Embedder(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).to(dtype), PREPROCESSING).checksum

    assert checksum(0) == checksum(0)
    assert len({checksum(0), checksum(1), checksum(0, torch.float64)}) == 3
    assert Embedder(nn.Flatten(), PREPROCESSING, checksum="mine").checksum == "mine"


def test_a_module_is_used_in_evaluation_mode_in_float32() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5)).train()
    embedder = Embedder(model, lambda image: torch.ones(1, 2, 2, dtype=torch.float64))  # noqa: ARG005
    assert torch.equal(embedder.embed(PICTURES), torch.ones(3, 4))


def test_what_is_no_embedder_is_refused() -> None:
    with pytest.raises(ValueError, match="model must be a torch module"):
        Embedder(print, PREPROCESSING)  # type: ignore[arg-type]
    for transform, words in (
        (lambda image: image, "transform gives Image, but must give a floating tensor"),
        (lambda image: torch.zeros(3), r"transform gives \[3\]"),  # noqa: ARG005
        (lambda image: torch.zeros(3, *image.size), "images of one batch are prepared to"),
    ):
        with pytest.raises(ValueError, match=words):
            Embedder(nn.Flatten(), transform).embed(PICTURES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"the model returns \[3, 3, .*embeddings are"):
        Embedder(_Two(), PREPROCESSING).embed(PICTURES)


class _Two(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images, images


def test_an_onnx_file_with_its_preprocessing(tmp_path: Path) -> None:
    file = onnx_model(tmp_path, distance="euclidean", sha256=hashlib.sha256(network()).hexdigest())
    embedder = Embedder.load(file)
    assert (embedder.dim, embedder.distance) == (5, "euclidean")
    assert embedder.checksum == hashlib.sha256(network()).hexdigest()
    transform = PREPROCESSING.evaluation()
    prepared = torch.stack([transform(Image.fromarray(picture)) for picture in PICTURES])
    expected = torch.nn.functional.conv2d(prepared, torch.from_numpy(WEIGHT.copy())).mean((2, 3))
    torch.testing.assert_close(embedder.embed(PICTURES), expected, atol=1e-5, rtol=1e-4)
    written = embed_to_file(_folder(tmp_path), tmp_path / "v.npy", file, workers=0, batch_size=2)
    assert written is not None
    assert written.rows == 3
    torch.testing.assert_close(read_embeddings(written.path).embeddings, expected, atol=1e-5, rtol=1e-4)


def _folder(folder: Path) -> Path:
    (folder / "pictures").mkdir()
    for number, picture in enumerate(PICTURES):
        Image.fromarray(picture).save(folder / "pictures" / f"{number}.png")
    return folder / "pictures"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "0" * 64}, "model.onnx is not the file that"),
        ({"distance": "hamming"}, "has distance 'hamming'"),
        ({"preprocessing": {"size": 16, "unknown": 1}}, "is not a sound JSON file"),
        ({"preprocessing": {"library": "timm"}}, "ONNX files are not prepared by other libraries"),
        ({"preprocessing": {"size": 16, "channels": 1, "mean": [0.5], "std": [1]}}, "takes images of 3 channels"),
    ],
)
def test_an_onnx_file_that_does_not_fit_its_description(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Embedder.load(onnx_model(tmp_path, **change))


def test_onnx_files_that_are_not_there_or_damaged(tmp_path: Path) -> None:
    file = onnx_model(tmp_path)
    file.with_suffix(".json").unlink()
    with pytest.raises(UserError, match=r"does not say how images are prepared: write model\.json next to it, such as"):
        Embedder.load(file)
    file.unlink()
    with pytest.raises(ValueError, match="no such file"):
        Embedder.load(file)


def test_a_backbone_of_ones_own_is_given_or_found_by_its_run(tmp_path: Path) -> None:
    save_model(tmp_path, build_model(ModelConfig(OwnBackbone, 4, backbone_args={"width": 6})), vars(PREPROCESSING))
    with pytest.raises(UserError, match="is not imported because a file names it"):
        Embedder.load(tmp_path)
    assert Embedder.load(tmp_path, backbone=OwnBackbone).embed(PICTURES).shape == (3, 4)


def test_a_head_alone_takes_vectors(tmp_path: Path) -> None:
    head = build_model(ModelConfig("none", 4, input_size=6)).eval()
    save_model(tmp_path, head, {})
    embedder, vectors = Embedder.load(tmp_path), torch.randn(5, 6)
    assert embedder.takes_vectors
    assert embedder.dim == 4
    with torch.no_grad():
        torch.testing.assert_close(embedder.embed(vectors), head(vectors))
    for refused in ("embed", "embed_readable"):
        with pytest.raises((UserError, ValueError), match="takes vectors"):
            list(getattr(embedder, refused)(PICTURES))


def test_the_distance_is_that_of_the_run(saved: Path) -> None:
    (saved / "recipe.yaml").write_text("evaluation: {distance: euclidean}\n")
    assert Embedder.load(saved).distance == "euclidean"
    (saved / "recipe.yaml").write_text("evaluation: {distance: other}\n")
    with pytest.raises(ValueError, match=re.escape("has distance 'other', but it must be cosine or euclidean")):
        Embedder.load(saved)
