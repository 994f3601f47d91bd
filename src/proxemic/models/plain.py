"""Removal of wrappers around a network or its parts, such as `torch.compile` and weight norm."""

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import is_parametrized
from torch.optim.swa_utils import AveragedModel

from proxemic.models.lora import merged_state


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module inside `torch.compile`, `DataParallel`, `DistributedDataParallel` or `AveragedModel`."""
    while (name := _inner(module)) is not None:
        module = getattr(module, name)
    return module


def plain_state(model: nn.Module, plain: Container[str] = ()) -> dict[str, Tensor]:
    """Return the state of a model without wrappers of its parts and with adapters merged into the weights.

    A parametrized tensor (of weight norm, for example) is stored as its value in evaluation mode if `plain` contains
    its name.
    """
    wrappers = [f"{name}.{inner}." for name, part in model.named_modules() if (inner := _inner(part)) is not None]

    def renamed(name: str) -> str:
        for prefix in reversed(wrappers):  # innermost first
            if name.startswith(prefix):
                name = prefix[: prefix.rindex(".", 0, -1) + 1] + name[len(prefix) :]
        return name

    state = {renamed(name): value for name, value in merged_state(model).items()}
    for name, part in model.named_modules():
        parametrized: Any = part.parametrizations if is_parametrized(part) else {}
        for key, values in parametrized.items():
            if renamed(f"{name}.{key}") in plain:
                prefix = renamed(f"{name}.parametrizations.{key}.")
                state = {other: value for other, value in state.items() if not other.startswith(prefix)}
                state[renamed(f"{name}.{key}")] = _evaluated(values)
    return state


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return the shape of each tensor."""
    return {name: list(value.shape) for name, value in state.items()}


def _inner(module: nn.Module) -> str | None:
    if "_orig_mod" in module._modules:  # of torch.compile; importing its class takes seconds
        return "_orig_mod"
    return "module" if isinstance(module, nn.DataParallel | DistributedDataParallel | AveragedModel) else None


@torch.no_grad()
def _evaluated(parametrization: nn.Module) -> Tensor:
    """Compute a parametrized tensor in evaluation mode, as spectral norm changes its state in training mode."""
    mode = parametrization.training
    value = parametrization.eval()()
    parametrization.train(mode)
    return value
