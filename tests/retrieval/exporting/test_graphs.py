"""Every family of backbones as an ONNX file: it makes the model's embeddings for any batch."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from onnx_files import network
from proxemic.data import Preprocessing
from proxemic.errors import UserError
from proxemic.models import EmbeddingModel, ModelConfig, build_model, load_model, save_model
from proxemic.models.backbones import bn_inception as bn_inception_module
from proxemic.models.backbones import iresnet as iresnet_module
from proxemic.retrieval import Embedder
from proxemic.retrieval.exporting.graphs import (
    HalfPrecision,
    Program,
    check_exportable,
    is_convolutional,
    note,
    quantize,
    write_onnx,
    write_program,
)
from proxemic.runs.onnx_files import ONNX_NOTE

# Not imported while the tests are collected: ONNX Runtime starts a thread, which a fork would lose.
pytestmark = pytest.mark.skipif(
    not (find_spec("onnxscript") and find_spec("onnxruntime")), reason="onnx is not installed"
)

PICTURES = [np.random.default_rng(0).integers(0, 256, (side, 40, 3), dtype=np.uint8) for side in (30, 40, 50)]


def with_statistics(model: EmbeddingModel, size: int) -> EmbeddingModel:
    """The network in evaluation mode after batches in training mode, so that its batch norms do something."""
    with torch.no_grad():
        for _ in range(3):
            model.train()(torch.randn(4, 3, size, size))
    return model.eval()


def timm_model(name: str, folder: Path, **arguments: Any) -> Embedder:
    size = 32
    model = build_model(ModelConfig(name, 8, image_size=size, backbone_args=arguments, pooling="gem"))
    save_model(folder, with_statistics(model, size), vars(Preprocessing(size=size)))
    return Embedder.load(folder, device="cpu")


def bn_inception(folder: Path) -> Embedder:
    model = build_model(ModelConfig("bn_inception", 8, image_size=32, pooling="avg+max"))
    return Embedder(with_statistics(model, 32), Preprocessing(32, channel_order="bgr", white=255, std=(1, 1, 1)))


def iresnet(folder: Path) -> Embedder:
    config = ModelConfig("iresnet18", 8, head="none", image_size=112)
    backbone = iresnet_module.IResNet((1, 1, 1, 1))
    backbone.num_features, backbone.fc, backbone.features = 8, nn.Linear(backbone.fc.in_features, 8), nn.BatchNorm1d(8)
    model = EmbeddingModel(config, backbone)
    return Embedder(with_statistics(model, 112), Preprocessing(size=112, resize=None))


def transformers_model(folder: Path) -> Embedder:
    transformers = pytest.importorskip("transformers")
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    made = transformers.AutoModel.from_config(transformers.ViTConfig(**small, patch_size=8, image_size=32))
    made.save_pretrained(folder / "vit")
    model = build_model(ModelConfig(f"hf:{folder / 'vit'}", 8, image_size=32, normalize=False)).eval()
    return Embedder(model, Preprocessing(size=32, resize=None))


FAMILIES: dict[str, Callable[[Path], Embedder]] = {
    "ResNet, folded": lambda folder: timm_model("resnet10t", folder),
    "BN-Inception": bn_inception,
    "IResNet": iresnet,
    "transformers": transformers_model,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_onnx_file_gives_what_the_model_gives(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two blocks of ten, one of each kind: all of them take most of a minute on a busy machine.
    few = {name: block for name, block in bn_inception_module._BLOCKS.items() if name in ("3a", "3c")}
    monkeypatch.setattr(bn_inception_module, "_BLOCKS", few)
    monkeypatch.setattr(iresnet_module, "_WIDTHS", tuple(width // 8 for width in iresnet_module._WIDTHS))
    embedder = FAMILIES[family](tmp_path / "model")
    transform = embedder.transform
    assert isinstance(transform, Preprocessing)
    file = tmp_path / "net.onnx"
    write_onnx(embedder.model, torch.zeros(2, 3, transform.size, transform.size), file)
    note(file, ONNX_NOTE, json.dumps({"preprocessing": transform.as_dict()}))
    exported = Embedder.load(file)
    expected = embedder.embed(PICTURES)
    assert expected.std(0).min() > 0, "pictures are told apart"
    for batch_size in (1, 2, 3):
        torch.testing.assert_close(exported.embed(PICTURES, batch_size=batch_size), expected, atol=1e-5, rtol=1e-4)


def test_a_program_of_half_the_digits(tmp_path: Path) -> None:
    model = with_statistics(build_model(ModelConfig("convnet", 8, width=8, image_size=32)), 32)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = model(images)
    write_program(HalfPrecision(model), torch.zeros(2, 3, 32, 32), tmp_path / "net.pt2")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}, "the model itself stays as it was"
    program = Program(tmp_path / "net.pt2")
    for batch in (images, images[:1]):
        given = program(batch)
        assert given.dtype == torch.float32
        assert 0 < (given - expected[: len(batch)]).abs().max() < 0.02


class Deciding(nn.Module):
    num_features = 3

    def forward(self, images: Tensor) -> Tensor:
        return images if images.mean() > 0 else -images


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"torch cannot export this network: .*data-dependent"):
        write_onnx(Deciding(), torch.zeros(2, 3, 8, 8), tmp_path / "net.onnx")
    with torch.device("meta"):
        large = nn.Linear(2**15, 2**15)
    with pytest.raises(UserError, match=r"have 4\.0 GiB, but an ONNX file holds 2 GiB at most: take --half"):
        write_onnx(large, torch.zeros(2, 3, 8, 8), tmp_path / "net.onnx")
    assert not [*tmp_path.iterdir()]


def test_heads_and_files_that_are_onnx_already_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes vectors"):
        check_exportable(build_model(ModelConfig("none", 4, input_size=6)))
    (tmp_path / "net.onnx").write_bytes(network())
    model = build_model(ModelConfig(str(tmp_path / "net.onnx"), 4, train="head", image_size=8))
    save_model(tmp_path / "run", model, vars(Preprocessing(size=8)))
    with pytest.raises(UserError, match="is an ONNX file already"):
        check_exportable(load_model(tmp_path / "run")[0])


def test_a_transformer_needs_no_images(tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    small: dict[str, Any] = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    model = build_model(ModelConfig("vit_tiny_patch16_224", 8, image_size=32, backbone_args=small)).eval()
    assert not is_convolutional(model)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = model(images)
    file = tmp_path / "net.onnx"

    def difference() -> float:
        (given,) = onnxruntime.InferenceSession(file).run(None, {"images": images.numpy()})
        return float(np.abs(np.asarray(given) - expected.numpy()).max())

    write_onnx(model, torch.zeros(2, 3, 32, 32), file)
    assert difference() < 1e-5
    before = file.stat().st_size
    quantize(file, file, Embedder(model, Preprocessing(size=32)), None)
    assert file.stat().st_size < 0.85 * before
    assert 1e-5 < difference() < 0.05
    weights = {item.name: onnx.numpy_helper.to_array(item) for item in onnx.load_model(file).graph.initializer}
    assert any(sorted(weight.shape) == [8, 32] and weight.dtype == np.float32 for weight in weights.values()), (
        "the head"
    )
