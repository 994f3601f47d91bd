"""A warning for proxies that no optimiser updates.

The most common mistake with a loss that has parameters is to pass the optimiser those of the model only: training then
runs, and learns little.
"""

import warnings
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

PATIENCE = 10
"""Steps of any optimiser after which proxies that have a gradient should have moved."""

_watched: "WeakKeyDictionary[nn.Module, _Seen | None]" = WeakKeyDictionary()
_handle: RemovableHandle | None = None


@dataclass
class _Seen:
    """Some of the proxies before the first step, the number of steps with a new gradient, and the last gradient."""

    before: Tensor
    steps: int
    grad: tuple[ReferenceType[Tensor], int]


def watch_proxies(loss: nn.Module) -> None:
    """Warn once if ``loss.proxies`` keep a gradient through the first optimiser steps and are never written to."""
    global _handle
    _watched[loss] = None
    if _handle is None:
        _handle = register_optimizer_step_post_hook(_after_step)


def _after_step(*_: Any) -> None:
    global _handle
    for loss, seen in list(_watched.items()):
        proxies = getattr(loss, "proxies", None)
        if not isinstance(proxies, nn.Parameter):
            del _watched[loss]  # parametrised: another tensor is trained
        elif proxies.grad is None or not proxies.requires_grad or proxies.numel() == 0:
            # Not trained yet: an initialisation or a checkpoint may still change it.
            _watched[loss] = None
        elif seen is None or seen.before.device != proxies.device:
            _watched[loss] = _Seen(_mark(proxies), 1, (ref(proxies.grad), proxies.grad._version))
        elif seen.grad[0]() is proxies.grad and seen.grad[1] == proxies.grad._version:
            continue  # the gradient of an earlier step: the loss is no longer in use
        elif seen.steps + 1 < PATIENCE:
            _watched[loss] = _Seen(seen.before, seen.steps + 1, (ref(proxies.grad), proxies.grad._version))
        else:
            del _watched[loss]
            if torch.equal(seen.before, _mark(proxies)):
                warnings.warn(
                    f"The proxies of {type(loss).__name__} have a gradient but did not move in {PATIENCE} optimiser "
                    "steps: they are learned, so give loss.parameters() to the optimiser too, usually with a larger "
                    "rate, for example torch.optim.AdamW([{'params': model.parameters()}, "
                    "{'params': loss.parameters(), 'lr': 1e-2}], lr=1e-4).",
                    UserWarning,
                    stacklevel=3,
                )
    if not _watched and _handle is not None:
        _handle.remove()
        _handle = None


def _mark(proxies: Tensor) -> Tensor:
    """A tensor that differs after an optimiser step."""
    # Fused optimisers do not increment a tensor's version, but `step_rows` does, and may not step these hundred rows.
    if proxies.grad is not None and proxies.grad.is_sparse:
        return torch.tensor(proxies._version, device=proxies.device)
    return proxies.detach()[:: max(1, len(proxies) // 100)].clone()
