"""Low-rank adapters: what they compute and train; loading a saved model does not need peft."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import warm
from proxemic.models import EmbeddingModel, LoRA, ModelConfig, build_model, load_model, save_model
from proxemic.models.lora import describe_adapters, load_merged_state, merged_state

pytest.importorskip("peft")
VIT = ModelConfig(
    "vit_tiny_patch16_224", embedding_size=8, image_size=32, backbone_args={"depth": 2}, lora=LoRA(rank=2, alpha=6.0)
)
IMAGES = torch.randn(4, 3, 32, 32)


def with_learnt_adapters(config: ModelConfig = VIT) -> EmbeddingModel:
    model = build_model(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


class GlobalMean(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features.mean((2, 3))


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), GlobalMean(), nn.Linear(4, 4))


class AttentionByHand(nn.Module):
    """A network that uses the weights of a linear layer without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(3, 4), nn.Linear(4, 4)

    def forward(self, images: Tensor) -> Tensor:
        return self.out(nn.functional.linear(images.mean((2, 3)), self.qkv.weight, self.qkv.bias))


def test_a_layer_computes_what_the_formula_says_in_float64() -> None:
    model = with_learnt_adapters().eval()
    layer = model.get_submodule("backbone.network.blocks.1.mlp.fc1")
    inputs = torch.randn(5, 192)
    state = {name: value.double() for name, value in layer.state_dict().items()}
    change = 6.0 / 2 * state["lora_B.default.weight"] @ state["lora_A.default.weight"]
    expected = inputs.double() @ (state["base_layer.weight"] + change).T + state["base_layer.bias"]
    torch.testing.assert_close(layer(inputs).double(), expected, rtol=1e-5, atol=1e-5)


def test_it_begins_as_the_network_came_and_trains_adapters_and_head_alone() -> None:
    torch.manual_seed(0)
    plain = build_model(replace(VIT, lora=None)).eval()
    torch.manual_seed(0)
    model = build_model(VIT).eval()
    assert torch.equal(model(IMAGES), plain(IMAGES))
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained == {name for name in dict(model.named_parameters()) if ".lora_" in name or name.startswith("head.")}
    assert len(trained) == 2 * 4 * 2 + 2
    described = describe_adapters(model.backbone, VIT.lora or LoRA(), "a ViT")
    frozen = f"{sum(parameter.numel() for parameter in plain.backbone.parameters()):,}"
    for fact in ("rank 2", "8 linear layers of a ViT", "12,288 parameters", frozen):
        assert fact in described
    some = build_model(replace(VIT, lora=LoRA(targets=["qkv"])))
    assert sum("lora_A" in name for name, _ in some.named_parameters()) == 2


def test_a_saved_model_is_plain_and_saving_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    model = with_learnt_adapters().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    embeddings = model(IMAGES)
    save_model(tmp_path, model, {})
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.config.lora == VIT.lora
    loaded, _ = load_model(tmp_path)
    assert loaded.config == replace(VIT, lora=None)
    assert loaded.state_dict().keys() == build_model(replace(VIT, lora=None)).state_dict().keys()
    torch.testing.assert_close(loaded(IMAGES), embeddings, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(loaded(IMAGES), build_model(VIT).eval()(IMAGES), atol=1e-2)
    without = "import sys; sys.modules['peft'] = None; from proxemic.models import load_model; load_model(sys.argv[1])"
    result = warm.run("-c", without, tmp_path)
    assert result.returncode == 0, result.stderr


def test_merged_weights_are_loaded_below_adapters_and_given_back() -> None:
    source, model = with_learnt_adapters().eval(), build_model(VIT).eval()
    load_merged_state(model, merged_state(source))
    torch.testing.assert_close(model(IMAGES), source(IMAGES), rtol=1e-5, atol=1e-6)
    again = merged_state(model)
    assert all(torch.equal(value, again[name]) for name, value in merged_state(source).items())
    with pytest.raises(RuntimeError, match="Missing key"):
        load_merged_state(model, {})


def test_weights_of_a_run_are_loaded_before_the_adapters(tmp_path: Path) -> None:
    source = with_learnt_adapters().eval()
    save_model(tmp_path, source, {})
    model = build_model(replace(VIT, weights=str(tmp_path / "model.safetensors"))).eval()
    assert model.has_loaded_head
    torch.testing.assert_close(model(IMAGES), source(IMAGES), rtol=1e-5, atol=1e-6)


def test_batch_norm_of_the_frozen_network_keeps_its_statistics() -> None:
    model = build_model(ModelConfig(Normed, embedding_size=8, lora=LoRA()))
    norm = model.get_submodule("backbone.network.1")
    before = norm.get_buffer("running_mean").clone()
    model.train()(IMAGES)
    assert torch.equal(norm.get_buffer("running_mean"), before)


def test_layers_that_are_not_called_get_no_adapters() -> None:
    model = build_model(ModelConfig(AttentionByHand, embedding_size=4, lora=LoRA()))
    assert {name for name in model.state_dict() if "lora_A" in name} == {"backbone.network.out.lora_A.default.weight"}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (replace(VIT, lora=LoRA(targets=["query"])), "calls no linear layer of that name; choose from qkv, proj, fc1"),
        (ModelConfig(AttentionByHand, lora=LoRA(targets=["qkv"])), "has 'qkv', but .* choose from out"),
        (ModelConfig(lora=LoRA()), "lora is set but convnet has no linear layers to adapt"),
    ],
)
def test_networks_without_such_layers_are_refused(config: ModelConfig, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        build_model(config)


@pytest.mark.parametrize(
    "wrong", [{"rank": 0}, {"alpha": 0.0}, {"alpha": float("nan")}, {"dropout": 1.0}, {"targets": []}]
)
def test_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=rf"lora\.{name} is"):
        LoRA(**wrong)


def test_it_excludes_blocks_and_what_is_no_lora(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="train is 'last:2' but lora is set"):
        replace(VIT, train="last:2")
    save_model(tmp_path, build_model(replace(VIT, lora=None)), {})
    file = tmp_path / "model.json"
    file.write_text(file.read_text().replace('"lora": null', '"lora": {"rank": 2}'))
    with pytest.raises(ValueError, match="does not describe a model"):
        load_model(tmp_path)


def test_without_peft_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModuleNotFoundError, match=r"peft is not installed: .*\[lora\]"):
        build_model(VIT)
