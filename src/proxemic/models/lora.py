"""Low-rank adapters (LoRA) in the linear layers of a backbone, implemented by the library peft."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from proxemic.extras import optional_dependency

_BASE, _ADAPTER = ".base_layer.", ".lora_"  # peft's names of the original layer and of the adapter
LARGEST_RANK = 4096


@dataclass(frozen=True)
class LoRA:
    """Adapters that are trained instead of a backbone's weights: a linear layer's W becomes `W + alpha/rank · B A`.

    A is random at first and B zero, so that training starts from the unchanged network.

    Args:
        rank: Number of rows of A and columns of B, 1 to 4,096.
        alpha: Factor of the adapters, above 0; twice the rank is usual.
        dropout: Fraction of an adapter's inputs that is dropped in training, from 0 to below 1.
        targets: Names of linear layers; in timm's transformers, `qkv` and `proj` of the attention, `fc1` and `fc2` of
            the MLP. `None` for all linear layers that the backbone calls.

    Raises:
        ValueError: If a value is out of range.

    Source: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, 2022.

    >>> LoRA(rank=4).alpha
    16.0
    """

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: list[str] | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.rank <= LARGEST_RANK:
            raise ValueError(f"lora.rank is {self.rank} but must be at least 1 and at most {LARGEST_RANK:,}")
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise ValueError(f"lora.alpha is {self.alpha} but must be a number above 0, for example {2 * self.rank}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"lora.dropout is {self.dropout} but must be from 0 to below 1")
        if self.targets is not None and not self.targets:
            raise ValueError("lora.targets is empty; name linear layers, such as [qkv, proj], or set it to null")


def add_adapters(backbone: nn.Module, lora: LoRA, name: str, images: tuple[int, int]) -> None:
    """Freeze a backbone and add adapters to its linear layers; ``images`` are the channels and side of its images."""
    called = _called_layers(backbone, images)
    layers = [item for item in called if lora.targets is None or item.rpartition(".")[2] in lora.targets]
    if not called:
        raise ValueError(
            f"lora is set but {name} has no linear layers to adapt; take a transformer, or train its last blocks, such "
            "as train: last:2"
        )
    missing = {*(lora.targets or ())} - {item.rpartition(".")[2] for item in called}
    if missing:
        known = ", ".join(dict.fromkeys(item.rpartition(".")[2] for item in called))
        raise ValueError(
            f"lora.targets has {min(missing)!r}, but {name} calls no linear layer of that name; choose from {known}"
        )
    with optional_dependency("lora"):
        from peft import LoraConfig, inject_adapter_in_model
    backbone.requires_grad_(False)
    peft = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=layers)  # type: ignore[arg-type]
    inject_adapter_in_model(peft, backbone)


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of the plain network with the adapters merged into its weights; the model does not change.

    >>> list(merged_state(nn.Linear(2, 1)))
    ['weight', 'bias']
    """
    state: dict[str, Tensor] = model.state_dict()
    if not any(_ADAPTER in name for name in state):
        return state
    from peft.tuners.lora import LoraLayer

    with torch.no_grad():
        for name, layer in model.named_modules():
            if isinstance(layer, LoraLayer):
                weight, (adapter,) = f"{name}{_BASE}weight", layer.active_adapters
                state[weight] = state[weight] + layer.get_delta_weight(adapter)  # type: ignore[attr-defined]
    return {_plain(name): value for name, value in state.items() if _ADAPTER not in name}


def load_merged_state(model: nn.Module, merged: Mapping[str, Tensor]) -> None:
    """Load a state of `merged_state` into the original layers, without changing adapters.

    Raises `RuntimeError` if the state does not fit.
    """
    state = model.state_dict()
    ours = {_plain(name): name for name in state if _ADAPTER not in name}
    adapters = {name: value for name, value in state.items() if _ADAPTER in name}
    model.load_state_dict(adapters | {ours.get(name, name): value for name, value in merged.items()})


def describe_adapters(backbone: nn.Module, lora: LoRA, name: str) -> str:
    """Describe in a sentence which part of a network is trained."""
    counts = {name: parameter.numel() for name, parameter in backbone.named_parameters()}
    added = {key: count for key, count in counts.items() if _ADAPTER in key}
    return (
        f"model.lora has rank {lora.rank}: adapters in {len(added) // 2} linear layers of {name} are trained "
        f"({sum(added.values()):,} parameters); the other {sum(counts.values()) - sum(added.values()):,} are not."
    )


def _plain(name: str) -> str:
    return name.replace(_BASE, ".")


@torch.no_grad()
def _called_layers(backbone: nn.Module, images: tuple[int, int]) -> list[str]:
    """List the linear layers that the network calls; of others, it may use the weights directly."""
    layers = {name: layer for name, layer in backbone.named_modules() if isinstance(layer, nn.Linear)}
    if not layers:
        return []
    called: set[nn.Module] = set()
    hooks = [item.register_forward_pre_hook(lambda layer, _: called.add(layer)) for item in layers.values()]
    modes = {layer: layer.training for layer in backbone.modules()}
    channels, side = images
    try:
        with torch.random.fork_rng(devices=[]):
            backbone.eval()(torch.zeros(1, channels, side, side))
    except (AssertionError, RuntimeError, ValueError):
        return [*layers]  # the model will report an image size that does not fit with its first images
    finally:
        for hook in hooks:
            hook.remove()
        for layer, mode in modes.items():
            layer.training = mode
    return [name for name, layer in layers.items() if layer in called]
