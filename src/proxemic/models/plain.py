"""The plain network below what was wrapped around it or its parts, such as `torch.compile` and weight norm."""

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import is_parametrized
from torch.optim.swa_utils import AveragedModel

from proxemic.models.lora import merged_state


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module in `torch.compile`, `DataParallel`, `DistributedDataParallel` or `AveragedModel`."""
    while (name := _inner(module)) is not None:
        module = getattr(module, name)
    return module


def plain_state(model: nn.Module, plain: Container[str] = ()) -> dict[str, Tensor]:
    """Return the state of a model without wrappers of its parts and without adapters.

    A parametrized tensor, as of weight norm, whose name is in `plain` is stored as its value in evaluation mode.
    """
    wrappers = [f"{name}.{inner}." for name, part in model.named_modules() if (inner := _inner(part)) is not None]

    def renamed(name: str) -> str:
        for prefix in reversed(wrappers):  # the innermost first
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
    if "_orig_mod" in module._modules:  # of torch.compile, whose class takes seconds to import
        return "_orig_mod"
    return "module" if isinstance(module, nn.DataParallel | DistributedDataParallel | AveragedModel) else None


@torch.no_grad()
def _evaluated(parametrization: nn.Module) -> Tensor:
    """Compute a tensor in evaluation mode: in training mode, spectral norm changes its state."""
    mode = parametrization.training
    value = parametrization.eval()()
    parametrization.train(mode)
    return value
