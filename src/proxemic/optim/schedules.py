"""Learning-rate schedules."""

from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


class PolynomialDecay(LRScheduler):
    r"""Linear warmup, then polynomial decay of every learning rate to 0, with one step after each batch.

    $$\text{lr}_t = \text{lr} \cdot \begin{cases} (t + 1)/(W + 1) & t < W \\
    \big(1 - (t - W)/(T - W)\big)^{power} & t \ge W \end{cases}$$

    with t the number of steps so far and $W = warmup \cdot T$, rounded down. `plan` sets T: training sets it to the
    number of steps from the start of the schedule to the end of training, as insightface's arcface_torch does. A second
    phase that starts with the final rates of the first continues its curve.

    Args:
        optimizer: The optimiser whose learning rates are scheduled.
        power: Exponent, above 0; 1 decays linearly, 2 is common for published face models.
        warmup: Fraction of the steps in which the rates grow, 0 (none) to below 1.

    Raises:
        ValueError: If an argument is out of its range, or it is stepped before `plan`.

    >>> from torch import nn, optim
    >>> optimizer = optim.SGD(nn.Linear(1, 1).parameters(), lr=16.0)
    >>> schedule = PolynomialDecay(optimizer, power=2.0)
    >>> schedule.plan(4)
    >>> for _ in range(4):
    ...     print(schedule.get_last_lr())
    ...     optimizer.step()
    ...     schedule.step()
    [16.0]
    [9.0]
    [4.0]
    [1.0]
    """

    __module__ = "proxemic.training"  # the name that it has in recipes, also in those of earlier runs

    def __init__(self, optimizer: Optimizer, power: float = 1.0, warmup: float = 0.0) -> None:
        if not 0 < power < float("inf"):
            raise ValueError(f"power is {power}, but must be a number above 0, for example 2.")
        if not 0 <= warmup < 1:
            raise ValueError(f"warmup is {warmup}, but must be a fraction of the steps, from 0 (none) to below 1.")
        self.power = power
        self.warmup = warmup
        self.steps: int | None = None
        super().__init__(optimizer)

    def plan(self, steps: int) -> None:
        """Set T, the number of steps (at least 1) after which the rates are 0, and update the current rates."""
        if steps < 1:
            raise ValueError(f"steps is {steps}, but must be at least 1.")
        self.steps = steps
        for group, rate in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"] = rate
        self._last_lr = self.get_lr()

    def get_lr(self) -> list[Any]:
        """Compute the learning rates of the next step."""
        if self.steps is None and self.last_epoch > 0:
            raise ValueError("PolynomialDecay does not know how many steps there will be: call plan before step.")
        if self.steps is None:
            return list(self.base_lrs)
        growing = int(self.warmup * self.steps)
        if self.last_epoch < growing:
            factor = (self.last_epoch + 1) / (growing + 1)
        else:
            factor = max(0.0, 1 - (self.last_epoch - growing) / (self.steps - growing)) ** self.power
        return [factor * rate for rate in self.base_lrs]
