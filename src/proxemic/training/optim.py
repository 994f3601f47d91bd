"""Which parameter is stepped by what: the model's and the loss's, each with its own learning rate."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

__all__ = ["Optimization", "parameter_groups"]


def parameter_groups(model: nn.Module, loss: nn.Module, *, lr: float, loss_lr: float) -> list[dict[str, Any]]:
    """Groups for any torch optimiser: every trained parameter of the model at ``lr``, of the loss at ``loss_lr``.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> groups = parameter_groups(nn.Linear(4, 2), ProxyAnchorLoss(10, 2), lr=1e-3, loss_lr=1e-1)
    >>> [(group["name"], group["lr"], len(group["params"])) for group in groups]
    [('model', 0.001, 2), ('loss', 0.1, 1)]
    """
    groups = [
        {"name": "model", "lr": lr, "params": [p for p in model.parameters() if p.requires_grad]},
        {"name": "loss", "lr": loss_lr, "params": [p for p in loss.parameters() if p.requires_grad]},
    ]
    return [group for group in groups if group["params"]]


@dataclass(frozen=True)
class Optimization:
    """How the weights are moved.

    Args:
        optimizer: Any torch optimiser; its learning rates are ``lr`` and ``loss_lr``.
        lr: Learning rate of the model, above 0.
        loss_lr: Learning rate of the loss's own parameters, the proxies, above 0; 10 to 1,000 times ``lr`` is usual.
        schedule: Any torch scheduler but ReduceLROnPlateau, stepped once an epoch; null keeps the rates.
        clip_value: Largest absolute value of a gradient's entry; null does not clip.

    Raises:
        ValueError: If a rate is not above 0.
    """

    optimizer: Callable[[Iterable[Any], float], Optimizer]
    lr: float
    loss_lr: float
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    clip_value: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("lr", self.lr), ("loss_lr", self.loss_lr), ("clip_value", self.clip_value)):
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ValueError(f"optim.{name} is {value}, but must be a number above 0, for example 0.001.")

    def build(self, model: nn.Module, loss: nn.Module) -> tuple[Optimizer, LRScheduler | None]:
        """The optimiser of all trained parameters, and its schedule."""
        optimizer = self.optimizer(parameter_groups(model, loss, lr=self.lr, loss_lr=self.loss_lr), self.lr)
        schedule = self.schedule(optimizer) if self.schedule else None
        if isinstance(schedule, ReduceLROnPlateau):
            raise ValueError(
                "optim.schedule is ReduceLROnPlateau, but must not wait for a metric: take StepLR or another."
            )
        return optimizer, schedule
