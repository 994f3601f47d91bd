"""Networks of users' classes: trained like any backbone, saved, and loaded only if the class is passed."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from proxemic.errors import UserError
from proxemic.models import ModelConfig, build_model, load_model, save_model


class Map(nn.Module):
    """A network whose width only a forward pass can tell, with batch norm and dropout, which must not change then."""

    def __init__(self, in_channels: int, width: int = 4) -> None:
        super().__init__()
        layers = (nn.Conv2d(in_channels, width, 3, stride=4), nn.BatchNorm2d(width), nn.Dropout())
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Vector(nn.Module):
    """A network that knows its number of features and takes only colour images."""

    num_features = 6

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 6)

    def forward(self, images: Tensor) -> Any:
        return self.layer(images.mean((2, 3)))


class Counted(Vector):
    """A network whose constructor reads a value, which fails on the meta device."""

    def __init__(self, inputs: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(int(torch.tensor(inputs)), 6)


class Wrong(Vector):
    num_features = 7


class Pair(Vector):
    def forward(self, images: Tensor) -> Any:
        return images, images


MAP = ModelConfig(Map, 8, in_channels=1, backbone_args={"width": 5}, image_size=32)
IMAGES = torch.linspace(-1, 1, 2 * 32 * 32).reshape(2, 1, 32, 32)


def test_features_are_counted_and_pooled() -> None:
    torch.manual_seed(0)
    model, after = build_model(MAP), torch.rand(1)
    assert (model.backbone.num_features, model(IMAGES).shape) == (5, (2, 8))
    assert all(part.training for part in model.modules())
    torch.manual_seed(0)
    for make in (lambda: Map(1, 5), lambda: nn.Linear(5, 8)):
        make()
    assert torch.equal(after, torch.rand(1))  # counting draws nothing
    vector = build_model(ModelConfig(Vector, 6, head="none", normalize=False))
    images = torch.rand(2, 3, 9, 9)
    torch.testing.assert_close(vector(images), vector.backbone.get_submodule("network")(images))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"backbone": Map, "backbone_args": {"with": 5}}, "backbone_args do not fit .*Map: .*'with'"),
        ({"backbone": Map, "pretrained": True}, "cannot download weights of '.*test_custom_backbone.Map'"),
        ({"backbone": Map, "backbone_args": {"width": float("nan")}}, "to plain values"),
        ({"backbone": "convnet", "backbone_args": {"width": 5}}, "'convnet' takes none"),
        ({"backbone": "convnet", "image_size": 0}, "image_size is 0"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(ModelConfig(**config))


@pytest.mark.parametrize(
    ("kind", "message"), [(Wrong, "returns 6 features but its num_features is 7"), (Pair, "tuple")]
)
def test_features_of_another_shape_are_refused(kind: type[nn.Module], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(ModelConfig(kind))(torch.rand(2, 3, 9, 9))


def test_weights_from_a_file(tmp_path: Path) -> None:
    source = Vector()
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    model = build_model(ModelConfig(Vector, weights=str(tmp_path / "w.safetensors")))
    assert torch.equal(model.backbone.get_parameter("network.layer.weight"), source.layer.weight)


def test_a_file_s_class_is_not_imported_but_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build_model(MAP).eval()
    save_model(tmp_path, model, {})
    loaded, _ = load_model(tmp_path, backbone=Map)
    assert loaded.config == MAP
    assert torch.equal(loaded(IMAGES), model(IMAGES))
    description = tmp_path / "model.json"
    content = json.loads(description.read_text())
    assert content["config"]["backbone"] == {"class_path": f"{__name__}.Map"}
    content["config"]["backbone"]["class_path"] = "trap.Net"
    description.write_text(json.dumps(content))
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"class trap\.Net, .* load_model\(path, backbone=Net\)"):
        load_model(tmp_path)
    assert "trap" not in sys.modules
    assert torch.equal(load_model(tmp_path, backbone=Map)[0](IMAGES), model(IMAGES))
    with pytest.raises(ValueError, match="backbone_args do not fit"):
        load_model(tmp_path, backbone=Vector)


def test_a_network_that_needs_values_to_be_built_is_compared_when_it_is_loaded(tmp_path: Path) -> None:
    model = build_model(ModelConfig(Counted, 6, image_size=8)).eval()
    save_model(tmp_path, model, {})
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(load_model(tmp_path, backbone=Counted)[0](images), model(images))
    description = tmp_path / "model.json"
    content = json.loads(description.read_text())
    content["config"]["backbone_args"] = {"inputs": 4}
    description.write_text(json.dumps(content))
    with pytest.raises(
        ValueError, match=r"does not fit .*Counted: .*size mismatch for backbone\.network\.layer\.weight"
    ):
        load_model(tmp_path, backbone=Counted)


def test_a_class_that_is_not_asked_for_is_refused(tmp_path: Path) -> None:
    save_model(tmp_path, build_model(ModelConfig(width=4)), {})
    with pytest.raises(UserError, match="backbone is Map but the backbone of this model is convnet"):
        load_model(tmp_path, backbone=Map)
