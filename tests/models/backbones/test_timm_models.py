"""Networks of timm as backbones, with weights from a file, its cache or the network."""

import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from proxemic.errors import UserError
from proxemic.models import TimmBackbone, timm_backbone


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet", "mobilenetv3_small_050"])
def test_convolutional_backbones_give_maps(name: str) -> None:
    backbone = timm_backbone(name, in_channels=1).eval()
    assert backbone(torch.zeros(1, 1, 64, 64)).shape == (1, backbone.num_features, 2, 2)


@pytest.mark.parametrize("name", ["test_vit", "test_vit2"])
def test_transformer_tokens_come_without_class_and_register_tokens(name: str) -> None:
    backbone = timm_backbone(name).eval()
    images = torch.randn(2, 3, 160, 160)
    features = backbone(images)
    assert backbone.prefix_tokens > 0
    tokens = backbone.network(images)[:, backbone.prefix_tokens :]
    assert features.shape == (2, backbone.num_features, 100, 1)
    assert torch.equal(features[:, :, :, 0].mT, tokens)


def test_channels_last_maps_are_turned() -> None:
    with torch.device("meta"):
        backbone = timm_backbone("swin_tiny_patch4_window7_224").eval()
        assert backbone(torch.zeros(1, 3, 224, 224)).shape == (1, 768, 7, 7)


def test_a_transformer_takes_images_of_another_size_and_its_weights_are_resampled(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    small: dict[str, Any] = {"depth": 1}
    source: Any = timm.create_model(name, **small)
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    backbone = timm_backbone(name, image_size=32, arguments=small, weights=tmp_path / "w.safetensors").eval()
    assert backbone(torch.zeros(1, 3, 32, 32)).shape == (1, 192, 4, 1)
    assert torch.equal(backbone.network.get_parameter("patch_embed.proj.weight"), source.patch_embed.proj.weight)
    same: Any = timm_backbone(name, image_size=224, arguments=small).network
    assert same.get_parameter("pos_embed").shape == source.pos_embed.shape
    assert timm_backbone("test_resnet", image_size=64)(torch.zeros(1, 3, 64, 64)).shape[2:] == (2, 2)


def test_arguments_reach_timm_and_those_set_elsewhere_are_refused() -> None:
    arguments = {"img_size": 32, "depth": 1, "class_token": False, "global_pool": "avg"}
    with pytest.raises(ValueError, match="backbone_args has global_pool, which other settings decide"):
        timm_backbone("vit_tiny_patch16_224", arguments=arguments)
    del arguments["global_pool"]
    network: Any = timm_backbone("vit_tiny_patch16_224", image_size=64, arguments=arguments).network
    assert network.patch_embed.img_size == (32, 32)
    with pytest.raises(ValueError, match=r"'test_vit' cannot be made with .*'depht'"):
        timm_backbone("test_vit", arguments={"depht": 2})
    for name in ("checkpoint_path", "pretrained", "in_chans", "features_only"):
        with pytest.raises(ValueError, match=f"backbone_args has {name}, which other settings decide"):
            timm_backbone("test_vit", arguments={name: "x"})


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean resnet50"):
        timm_backbone("resnet_50")
    with pytest.raises(
        ValueError, match="must be 'convnet', 'bn_inception', 'iresnet18' to 'iresnet200' or a timm model"
    ):
        timm_backbone("resnet18.no_such_tag")


def test_features_that_are_no_map_are_refused() -> None:
    network = nn.Identity()
    network.num_features = 5  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"features of shape \(1, 3, 8, 8\), neither a map of 5 channels nor tokens"):
        TimmBackbone(network)(torch.zeros(1, 3, 8, 8))


def test_weights_from_a_local_file(tmp_path: Path) -> None:
    source = timm.create_model("test_resnet")
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    backbone = timm_backbone("test_resnet", weights=tmp_path / "w.safetensors")
    state = source.state_dict()
    for name, value in backbone.network.state_dict().items():
        assert torch.equal(value, state[name])
    grey = timm_backbone("test_resnet", weights=tmp_path / "w.safetensors", in_channels=1)
    assert grey(torch.zeros(1, 1, 64, 64)).shape[1] == grey.num_features


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    state = timm.create_model("test_resnet").state_dict()
    missing = "layer1.0.conv1.weight"
    save_file({name: value for name, value in state.items() if name != missing}, file)
    with pytest.raises(ValueError, match=f"1 tensors are missing, as {missing}"):
        timm_backbone("test_resnet", weights=file)
    save_file(state | {missing: torch.zeros(1)}, file)
    with pytest.raises(ValueError, match="do not fit test_resnet"):
        timm_backbone("test_resnet", weights=file)
    file.write_bytes(b"not safetensors")
    with pytest.raises(ValueError, match="do not fit test_resnet"):
        timm_backbone("test_resnet", weights=file)
    for wrong in (tmp_path / "none.safetensors", tmp_path / "w.pth"):
        with pytest.raises(ValueError, match=r"must be an existing \.safetensors file"):
            timm_backbone("test_resnet", weights=wrong)


def test_pretrained_weights_come_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = timm.create_model("test_resnet").state_dict()
    folder = tmp_path / "models--timm--test_resnet.r160_in1k"
    (folder / "snapshots" / "0").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0")
    save_file(state, folder / "snapshots" / "0" / "model.safetensors")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    backbone = timm_backbone("test_resnet", pretrained=True)
    assert torch.equal(backbone.network.get_parameter("conv1.0.weight"), state["conv1.0.weight"])


def test_pretrained_weights_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = timm.create_model("test_resnet").state_dict()
    asked: list[tuple[str, ...]] = []

    def download(*names: str) -> str:
        asked.append(names)
        save_file(state, tmp_path / "model.safetensors")
        return str(tmp_path / "model.safetensors")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", lambda url, **_: asked.append((url,)))
    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    backbone = timm_backbone("test_resnet", pretrained=True)
    assert torch.equal(backbone.network.get_parameter("conv1.0.weight"), state["conv1.0.weight"])
    repository = "timm/test_resnet.r160_in1k"
    assert asked == [
        (f"https://huggingface.co/{repository}/resolve/main/model.safetensors",),
        (repository, "model.safetensors"),
    ]


def test_pretrained_weights_out_of_reach_say_what_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    url = r"https://huggingface.co/timm/resnet18.a1_in1k/resolve/main/model.safetensors"
    with pytest.raises(UserError, match=f"fetch {url} .* `weights`, or copy the folder {tmp_path}/models--timm"):
        timm_backbone("resnet18", pretrained=True)
    with pytest.raises(UserError, match="no pretrained weights for mixer_s16_224"):
        timm_backbone("mixer_s16_224", pretrained=True)


def test_without_timm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match="pip install timm"):
        timm_backbone("resnet18")
