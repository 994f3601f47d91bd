"""Saved models are loaded unchanged, and damaged ones are rejected."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel

from proxemic.models import EmbeddingModel, ModelConfig, build_model, is_model, load_model, save_model
from proxemic.models.plain import unwrapped

IMAGES = torch.linspace(-1, 1, 3 * 32 * 32).reshape(3, 1, 32, 32)
PREPROCESSING = {"size": [32, 32], "mean": 0.5, "invert": True}


@pytest.fixture
def model() -> EmbeddingModel:
    made = build_model(ModelConfig(in_channels=1, embedding_size=8, pooling="gem", width=8))
    for _ in range(3):
        made(torch.randn(8, 1, 32, 32))
    return made.eval()


def test_the_same_embeddings_from_the_directory_or_the_file(tmp_path: Path, model: EmbeddingModel) -> None:
    save_model(tmp_path / "new" / "folder", model, PREPROCESSING)
    for path in (tmp_path / "new" / "folder", tmp_path / "new" / "folder" / "model.safetensors"):
        loaded, preprocessing = load_model(path)
        assert not loaded.training
        assert loaded.config == model.config
        assert preprocessing == PREPROCESSING
        assert torch.equal(loaded(IMAGES), model(IMAGES))
    assert sorted(found.name for found in path.parent.iterdir()) == ["model.json", "model.safetensors"]


def test_the_same_embeddings_in_a_fresh_process(tmp_path: Path) -> None:
    expected = []
    for backbone in ("convnet", "test_convnext"):
        model = build_model(ModelConfig(backbone=backbone, in_channels=1, embedding_size=8)).eval()
        save_model(tmp_path / backbone, model, {})
        expected.append(model(IMAGES).view(torch.int32).tolist())
    code = (
        "import sys, torch; from proxemic.models import load_model;"
        "assert not {'timm', 'torchvision', 'lightning'} & {*sys.modules};"
        f"torch.set_num_threads({torch.get_num_threads()});"
        "images = torch.linspace(-1, 1, 3 * 32 * 32).reshape(3, 1, 32, 32);"
        f"models = [load_model({str(tmp_path)!r} + name)[0] for name in ('/convnet', '/test_convnext')];"
        "print([model(images).view(torch.int32).tolist() for model in models])"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, timeout=300, capture_output=True, text=True)
    assert json.loads(found.stdout) == expected


def test_loading_draws_no_values_that_the_file_replaces(tmp_path: Path) -> None:
    save_model(tmp_path, build_model(ModelConfig("resnet10t", 8)), {})
    before = torch.get_rng_state()
    load_model(tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_tensors_that_are_not_in_the_file_are_computed(tmp_path: Path) -> None:
    """The relative positions of a Swin transformer."""
    small = {"embed_dim": 16, "depths": (1, 1), "num_heads": (1, 2)}
    model = build_model(ModelConfig("swin_tiny_patch4_window7_224", 8, backbone_args=small)).eval()
    assert {*dict(model.named_buffers())} - {*model.state_dict()}
    save_model(tmp_path, model, {})
    images = torch.linspace(-1, 1, 3 * 224 * 224).reshape(1, 3, 224, 224)
    assert torch.equal(load_model(tmp_path)[0](images), model(images))


def test_saving_again_replaces(tmp_path: Path, model: EmbeddingModel) -> None:
    save_model(tmp_path, model, {"version": 1})
    with torch.no_grad():
        next(model.parameters()).add_(1)
    save_model(tmp_path, model, {"version": 2})
    loaded, preprocessing = load_model(tmp_path)
    assert preprocessing == {"version": 2}
    assert torch.equal(loaded(IMAGES), model(IMAGES))


def test_refuses_to_save_what_could_not_be_loaded(tmp_path: Path, model: EmbeddingModel) -> None:
    for preprocessing in ({"transform": object()}, {"mean": float("nan")}):
        with pytest.raises(ValueError, match="preprocessing is not plain JSON data"):
            save_model(tmp_path, model, preprocessing)
    with pytest.raises(ValueError, match=r"call model\.float\(\) first"):
        save_model(tmp_path, model.half(), {})
    assert list(tmp_path.iterdir()) == []


def edit(file: Path, **changes: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def distributed(model: nn.Module) -> nn.Module:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        return nn.parallel.DistributedDataParallel(model)
    finally:
        dist.destroy_process_group()


def averaged(model: nn.Module) -> AveragedModel:
    average = AveragedModel(model)
    average.update_parameters(model)
    return average


def change(part: str, around: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(model: Any) -> Any:
        setattr(model, part, around(getattr(model, part)))
        return model

    return changed


def change_last(normed: Callable[[Any], object]) -> Callable[[Any], Any]:
    def changed(model: Any) -> Any:
        normed(model.head[-1])
        normed(model.backbone.stages[1][0])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        return model

    return changed


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "compiled": torch.compile,
    "in parallel": nn.DataParallel,
    "averaged": averaged,
    "distributed": distributed,
    "compiled backbone": change("backbone", torch.compile),
    "compiled head in a compiled model": lambda model: torch.compile(change("head", torch.compile)(model)),
    "weight norm": change_last(parametrizations.weight_norm),
    "spectral norm": change_last(parametrizations.spectral_norm),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_what_is_wrapped_around_a_model_or_its_parts_is_not_saved(
    name: str, model: EmbeddingModel, tmp_path: Path
) -> None:
    wrapped = WRAPPED[name](model).train()
    save_model(tmp_path, wrapped, PREPROCESSING)
    assert all(part.training for part in wrapped.modules())
    plain = unwrapped(wrapped.eval())
    with torch.compiler.set_stance("force_eager"):
        expected = plain(IMAGES)
    assert torch.equal(load_model(tmp_path)[0](IMAGES), expected)


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda model: nn.Sequential(model), "model is a Sequential but must be an EmbeddingModel"),
        (lambda model: nn.utils.weight_norm(model.head[-1]) and model, r"model has head.1.weight of shape none"),
        (
            lambda model: setattr(model.head, "1", nn.Linear(64, 2)) or model,
            r"head.1.weight of shape \[2, 64\]",
        ),
        (lambda model: model.add_module("more", nn.Linear(1, 1)) or model, "more.weight of shape .* with none"),
    ],
)
def test_a_network_that_could_not_be_loaded_is_not_saved(
    change: Callable[[Any], nn.Module], words: str, model: EmbeddingModel, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        save_model(tmp_path, change(model), PREPROCESSING)
    assert list(tmp_path.iterdir()) == []


def test_damaged_models_are_refused(tmp_path: Path, model: EmbeddingModel) -> None:
    weights, description = tmp_path / "model.safetensors", tmp_path / "model.json"
    config = {"in_channels": 1, "embedding_size": 8, "pooling": "gem", "width": 8}

    def refused(match: str) -> None:
        with pytest.raises(ValueError, match=match):
            load_model(tmp_path)
        save_model(tmp_path, model, {})

    refused("model.json does not describe a model")
    weights.unlink()
    refused("not readable as safetensors")
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    refused("not the file that .* describes")
    description.write_text("{")
    refused("does not describe a model")
    edit(description, format=2)
    refused("format is 2 but must be 1")
    edit(description, config=config | {"unknown": 1})
    refused("unknown")
    edit(description, config=config | {"embedding_size": 9})
    refused("does not fit convnet: head.* has shape")
    edit(description, config=config | {"embedding_size": 10**12})
    refused("embedding_size is 1000000000000 but must be a whole number, at least 1 and at most 1,048,576")
    found = json.loads(description.read_text())
    del found["preprocessing"]
    description.write_text(json.dumps(found))
    refused("'preprocessing' is missing")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [("width", 1.5, "a whole number"), ("pooling", "sum", r"one of avg, max, avg\+max, gem, cubic-gem")],
)
def test_a_description_of_the_wrong_types_is_refused(name: str, value: object, allowed: str) -> None:
    config = ModelConfig()
    object.__setattr__(config, name, value)  # in tests the constructor is checked by beartype before
    with pytest.raises(ValueError, match=f"{name} is {value!r} but must be {allowed}"):
        config.__post_init__()


def test_a_description_of_a_larger_network_takes_no_memory(
    tmp_path: Path, model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path, model, {})
    edit(tmp_path / "model.json", config={"in_channels": 1, "embedding_size": 2**20, "width": 4096})
    devices = []

    def build(config: ModelConfig) -> EmbeddingModel:
        devices.append(torch.empty(0).device.type)
        return build_model(config)

    monkeypatch.setattr("proxemic.models.saving.build_model", build)
    with pytest.raises(ValueError, match="does not fit convnet"):
        load_model(tmp_path)
    assert devices == ["meta"]


def test_a_file_is_a_model_by_its_name_or_by_the_description_beside_it(tmp_path: Path) -> None:
    assert is_model(tmp_path / "model.safetensors")
    assert not is_model(tmp_path / "other.safetensors")
    (tmp_path / "model.json").touch()
    assert is_model(tmp_path / "other.safetensors")
    assert not is_model(tmp_path / "model.json")


@pytest.mark.parametrize("backbone", ["convnet", "resnet10t"])
def test_training_can_start_from_a_saved_model(tmp_path: Path, backbone: str) -> None:
    config = ModelConfig(backbone=backbone, embedding_size=8, pooling="gem", width=4)
    trained = build_model(config).eval()
    trained(torch.randn(2, 3, 32, 32))
    save_model(tmp_path, trained, {})
    file = (tmp_path / "model.safetensors").rename(tmp_path / "ours.safetensors")
    images = torch.randn(2, 3, 64, 64)

    same = build_model(replace(config, weights=str(file))).eval()
    assert same.config.weights == str(file)
    assert torch.equal(same(images), trained(images))
    smaller = build_model(replace(config, weights=str(file), embedding_size=4)).eval()
    assert torch.equal(smaller.backbone(images), trained.backbone(images))
    assert torch.equal(smaller.pooling(images + 4), trained.pooling(images + 4))
    wrong = {"convnet": "resnet10t", "resnet10t": "convnet"}[backbone]
    with pytest.raises(ValueError, match=f"ours.safetensors do not fit '{wrong}'"):
        build_model(replace(config, weights=str(file), backbone=wrong))
