"""Networks of transformers as backbones, from a folder and from the hub's cache."""

import json
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate

from proxemic.errors import UserError
from proxemic.models import ModelConfig, TransformersBackbone, build_model, load_model, save_model

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
IMAGES = torch.linspace(-1, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)


def configurations() -> dict[str, Any]:
    """Configure one network of each kind: class token, registers, text tower, attention pooling, convolution."""
    import transformers  # takes seconds: not where tests are only collected

    small: dict[str, Any] = SMALL | {"intermediate_size": 32}
    vision, text = small, {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 99}
    return {
        "dinov2": transformers.Dinov2Config(**SMALL, mlp_ratio=2),
        "dinov2 with registers": transformers.Dinov2WithRegistersConfig(**SMALL, mlp_ratio=2, num_register_tokens=4),
        "vit": transformers.ViTConfig(**small),
        "clip": transformers.CLIPConfig(text_config=text, vision_config=vision),
        "siglip": transformers.SiglipConfig(text_config=text, vision_config=vision),
        "mae": transformers.ViTMAEConfig(**small),
        "convnext": transformers.ConvNextConfig(hidden_sizes=[8, 8, 16, 16], depths=[1, 1, 1, 1], image_size=32),
    }


KINDS = ["dinov2", "dinov2 with registers", "vit", "clip", "siglip", "mae", "convnext"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Write the folder of a kind by save_pretrained."""
    import transformers

    def folder(kind: str) -> Path:
        path = root / kind
        if not path.exists():
            torch.manual_seed(0)
            network = transformers.AutoModel.from_config(made[kind])
            for parameter in network.parameters():  # also of those that are initially zero or one
                parameter.data.add_(0.05 * torch.randn_like(parameter))
            network.save_pretrained(path)
        return path

    root, made = tmp_path_factory.mktemp("hub"), configurations()
    return folder


def config(folder: Path, **other: Any) -> ModelConfig:
    given: dict[str, Any] = {"pretrained": True, "embedding_size": 8, "image_size": 32} | other
    return ModelConfig(backbone=f"hf:{folder}", **given)


def outputs(folder: Path, images: torch.Tensor = IMAGES, **options: Any) -> Any:
    """Compute the output of the network itself."""
    import transformers

    network = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        return getattr(network, "vision_model", network)(images, **options)


@pytest.mark.parametrize(("kind", "prefix"), list(zip(KINDS, (1, 5, 1, 1, 0, 1, None), strict=True)))
def test_the_map_is_that_of_the_patches(folders: Callable[[str], Path], kind: str, prefix: int | None) -> None:
    backbone = build_model(config(folders(kind))).eval().backbone
    assert isinstance(backbone, TransformersBackbone)
    with torch.no_grad():
        found = backbone(IMAGES)
    if kind == "mae":  # which shuffles and drops patches by itself
        assert found.shape == (2, 16, 16, 1)
        assert torch.allclose(found.mean(2), backbone(IMAGES).mean(2), atol=1e-6)
        return
    hidden = outputs(folders(kind)).last_hidden_state
    expected = hidden if prefix is None else hidden[:, prefix:].mT.unsqueeze(3)
    assert found.shape == ((2, 16, 1, 1) if prefix is None else (2, 16, 16, 1))
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["dinov2", "vit", "siglip", "convnext"])
def test_the_pooler_is_the_networks_own(folders: Callable[[str], Path], kind: str) -> None:
    backbone: Any = build_model(config(folders(kind), pooling="pooler")).eval().backbone
    found = backbone(IMAGES)
    assert found.shape == (2, 16, 1, 1)
    said = outputs(folders(kind))
    # ViT's own pooler is a layer for classification, which published weights mostly lack.
    expected = said.last_hidden_state[:, 0] if kind == "vit" else said.pooler_output
    assert torch.allclose(found.flatten(1), expected.flatten(1), atol=1e-5)


@pytest.mark.parametrize(("kind", "pooling"), [("dinov2", "pooler"), ("siglip", "avg"), ("mae", "avg")])
def test_all_that_is_trained_has_a_gradient(folders: Callable[[str], Path], kind: str, pooling: Any) -> None:
    model = build_model(config(folders(kind), pooling=pooling, pretrained=False))
    model(IMAGES).square().sum().backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(trained) > 10
    assert all(parameter.grad is not None for parameter in trained)


@pytest.mark.parametrize("kind", ["dinov2", "clip"])
def test_a_model_is_loaded_without_its_folder_and_offline(
    folders: Callable[[str], Path], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    shutil.copytree(folders(kind), folder)
    model = build_model(config(folder, pooling="pooler", backbone_args={"layer_norm_eps": 1e-3})).eval()
    save_model(tmp_path / "run", model, {"size": 32})
    shutil.rmtree(folder)
    monkeypatch.setattr(socket, "socket", None)
    loaded, _ = load_model(tmp_path / "run")
    assert loaded.config == model.config
    assert torch.equal(loaded(IMAGES), model(IMAGES))
    save_model(tmp_path / "again", loaded, {"size": 32})
    assert torch.equal(load_model(tmp_path / "again")[0](IMAGES), model(IMAGES))
    text = (tmp_path / "run" / "model.json").read_text()
    assert json.loads(text)["network"]["layer_norm_eps"] == 1e-3


def test_the_last_blocks_are_the_last_layers(folders: Callable[[str], Path]) -> None:
    for kind in ("dinov2", "clip", "vit"):
        model = build_model(config(folders(kind), train="last:1"))
        trained = [name for name, parameter in model.backbone.named_parameters() if parameter.requires_grad]
        assert trained
        assert all(re.search(r"\blayers?\.1\.", name) or "layernorm" in name for name in trained)


def test_images_of_another_size_move_the_position_embeddings(folders: Callable[[str], Path]) -> None:
    images = interpolate(IMAGES, 48)
    for kind, options in (("dinov2", {}), ("vit", {"interpolate_pos_encoding": True})):
        backbone = build_model(config(folders(kind), image_size=48)).eval().backbone
        expected = outputs(folders(kind), images, **options).last_hidden_state[:, 1:]
        assert torch.allclose(backbone(images).squeeze(3).mT, expected, atol=1e-5)


def test_grey_images_have_their_value_in_every_colour(folders: Callable[[str], Path]) -> None:
    grey = build_model(config(folders("dinov2"), in_channels=1)).eval()
    colour = build_model(config(folders("dinov2"))).eval()
    assert torch.equal(grey.features(IMAGES[:, :1]), colour.features(IMAGES[:, :1].expand(-1, 3, -1, -1)))


def test_arguments_change_the_configuration(folders: Callable[[str], Path]) -> None:
    model: Any = build_model(config(folders("dinov2"), backbone_args={"drop_path_rate": 0.2}))
    assert model.backbone.network.config.drop_path_rate == 0.2
    with pytest.raises(ValueError, match=r"backbone_args has drop_path, .* did you mean drop_path_rate"):
        build_model(config(folders("dinov2"), backbone_args={"drop_path": 0.2}))


def described(tmp_path: Path, folder: Path, **changed: Any) -> Path:
    shutil.copytree(folder, tmp_path / "changed", dirs_exist_ok=True)
    content = json.loads((folder / "config.json").read_text()) | changed
    (tmp_path / "changed" / "config.json").write_text(json.dumps(content))
    return tmp_path / "changed"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "mine", "auto_map": {"AutoModel": "mine.Net"}}, "code that comes with weights is not run"),
        ({"model_type": "bert"}, "is not a network for images"),
        ({"model_type": "timm_wrapper"}, "give its name in timm"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000, but may be at most 1,048,576"),
        ({"hidden_size": 2**14}, r"the weights in .* have [\d,]+ bytes, but its config.json describes"),
        ({"num_hidden_layers": 3}, r"do not fit 'hf:.*': \d+ tensors are missing, as encoder"),
        ({"hidden_size": "wide"}, "has a configuration that does not fit dinov2"),
    ],
)
def test_folders_that_do_not_fit_are_refused(
    folders: Callable[[str], Path], tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(config(described(tmp_path, folders("dinov2"), **changed)))


def test_code_and_other_models_that_a_folder_names_are_left_alone(
    folders: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = described(tmp_path, folders("dinov2"), auto_map={"AutoModel": "evil.Net", "AutoConfig": "evil.Config"})
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    build_model(config(folder))
    assert not (tmp_path / "ran").exists()
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere", "peft_type": "LORA"}')
    with pytest.raises(ValueError, match="has the weights of an adapter, not of a network"):
        build_model(config(folder))


def test_damaged_folders_are_refused(folders: Callable[[str], Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no config\.json; give a folder of save_pretrained"):
        build_model(config(tmp_path))
    for content, message in (
        ("[]", "is not a JSON object"),
        ("{", "cannot be read"),
        ("[" * 10**5, "cannot be read"),
    ):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ValueError, match=message):
            build_model(config(tmp_path))
    (tmp_path / "config.json").write_text(" " * (2**20 + 1))
    with pytest.raises(ValueError, match=r"it has 1,048,577 bytes, but may have 1,048,576"):
        build_model(config(tmp_path))
    shutil.copytree(folders("vit"), tmp_path / "cut")
    whole = (tmp_path / "cut" / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=r"weights in .* do not fit 'hf:"):
        build_model(config(tmp_path / "cut"))


def test_a_size_that_the_network_cannot_take_is_refused(tmp_path: Path) -> None:
    import transformers

    aim = transformers.Aimv2VisionConfig(**SMALL, intermediate_size=16)
    transformers.AutoModel.from_config(aim).save_pretrained(tmp_path)
    assert build_model(config(tmp_path)).backbone.num_features == 16
    with pytest.raises(ValueError, match=r"cannot take images of 96 by 96 pixels \(.+\); give the size"):
        build_model(config(tmp_path, image_size=96))


def test_a_name_on_the_hub_comes_from_the_cache_or_says_what_to_fetch(
    folders: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", nothing)
    named = replace(config(tmp_path), backbone="hf:them/theirs")
    with pytest.raises(UserError) as refused:
        build_model(named)
    assert str(refused.value) == (
        "backbone 'hf:them/theirs' is not in the cache and cannot be downloaded: fetch config.json, "
        "preprocessor_config.json and model.safetensors from https://huggingface.co/them/theirs elsewhere and give "
        f"their folder as hf:FOLDER, or copy the folder {tmp_path}/models--them--theirs from a machine that has it"
    )
    there = tmp_path / "models--them--theirs"
    (there / "refs").mkdir(parents=True)
    (there / "refs" / "main").write_text("0" * 40)
    shutil.copytree(folders("dinov2"), there / "snapshots" / ("0" * 40))
    by_folder = build_model(config(folders("dinov2"))).eval()
    assert torch.equal(build_model(named).eval().features(IMAGES), by_folder.features(IMAGES))
    with pytest.raises(ValueError, match="there is no such folder; give one that save_pretrained wrote"):
        build_model(replace(named, backbone="hf:/no/such/folder"))


def test_a_bare_name_stays_that_of_timm() -> None:
    with pytest.raises(ValueError, match="or a timm model"):
        build_model(ModelConfig(backbone="facebook/dinov2-small"))
    with pytest.raises(ValueError, match="'resnet18' is not a network of transformers"):
        ModelConfig(backbone="resnet18", pooling="pooler")
