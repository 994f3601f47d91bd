"""Phases of a training: with other hyper-parameters and the weights carried over, or ended at a plateau."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from proxemic.losses.margins import MARGINS
from proxemic.losses.user_defined import Loss, MakesLoss
from proxemic.training.parameter_groups import Optimization


@dataclass(frozen=True)
class SecondPhase:
    """What changes for the last epochs, as in the warped softmax's two-phase training.

    In a recipe, ``loss`` and ``optim`` hold what differs from the first phase; the rest is the same. Weights, proxies
    and, for an optimiser of the same class, its state (momentum) are carried on; the schedule begins anew.

    Args:
        epochs: How many of ``training.epochs`` are in the second phase: the last ones; at least 1. Where phases end at
            a plateau, the most that there may be.
        loss: The loss of the second phase, with the same parameters as the first's.
        optim: The optimisation of the second phase.

    Raises:
        ValueError: If ``epochs`` is below 1.

    Source: realigned softmax warping, section on two-phase training.
    """

    epochs: int
    loss: MakesLoss
    optim: Optimization

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f"second_phase.epochs is {self.epochs}, but must be at least 1 of training.epochs.")


@dataclass(frozen=True)
class Phase:
    """A loss and an optimisation from the epoch ``begins`` on, counted from 0."""

    begins: int
    loss: Loss
    optim: Optimization


def share_parameters(loss: nn.Module, earlier: nn.Module) -> None:
    """Make ``loss`` share the parameters and buffers of an ``earlier`` one, except the margins of the classes."""
    old, new = (
        {name: tensor for name, tensor in chain(it.named_parameters(), it.named_buffers()) if name not in MARGINS}
        for it in (earlier, loss)
    )
    if {name: tensor.shape for name, tensor in new.items()} != {name: tensor.shape for name, tensor in old.items()}:
        raise ValueError(
            f"second_phase.loss has the parameters {_shapes(new)}, but those of the first phase, which are carried "
            f"on, are {_shapes(old)}: change hyper-parameters that leave them as they are."
        )
    for name, value in old.items():
        owner, _, leaf = name.rpartition(".")
        setattr(loss.get_submodule(owner), leaf, value)
    for name, margins in loss.named_buffers(recurse=False):
        if name in MARGINS:
            setattr(loss, name, margins.to(next(earlier.parameters()).device))
    for name, module in earlier.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:  # the position in a memory
            loss.get_submodule(name).set_extra_state(module.get_extra_state())


def continue_optimizer(optimizer: Optimizer, earlier: Optimizer) -> None:
    """Take over the state of an ``earlier`` optimiser of the same class, if it has all that the new one needs.

    Without it, as momentum after an optimiser without momentum, all state begins anew.
    """
    if type(optimizer) is type(earlier) and not _needs(optimizer) - _needs(earlier):
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for parameter, state in earlier.state.items():
            if id(parameter) in known:
                optimizer.state[parameter] = state


def _needs(optimizer: Optimizer) -> set[str]:
    """The options in use that add to the state of torch's optimisers."""
    options = ("momentum", "amsgrad", "centered")
    return {name for name in options if any(group.get(name) for group in optimizer.param_groups)}


def _shapes(tensors: dict[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {list(each.shape)}" for name, each in tensors.items())


@dataclass(frozen=True)
class UntilPlateau:
    """A phase ends before its epochs are over where evaluation.metric on the validation classes no longer grows.

    Args:
        patience: Epochs without an improvement after which the phase ends, at least 1.
        min_improvement: By more than this the metric, in [0, 1], must exceed the best of the phase so far; 0 or more.

    Raises:
        ValueError: If a number is out of its range.

    Source: realigned softmax warping, appendix D-A1 ("until validation accuracy plateaus"); it states no patience.

    >>> UntilPlateau(patience=2, min_improvement=0.01).reached([0.5, 0.6, 0.605, 0.61, 0.7])
    4
    """

    patience: int = 5
    min_improvement: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"training.until_plateau.patience is {self.patience}, but must be at least 1 epoch.")
        if not 0 <= self.min_improvement < math.inf:
            raise ValueError(
                f"training.until_plateau.min_improvement is {self.min_improvement}, but must be a number of 0 or more."
            )

    def reached(self, values: Sequence[float]) -> int | None:
        """After how many epochs a phase, with these values of the metric, is at its plateau; None where it is not."""
        best, since = -math.inf, 0
        for epoch, value in enumerate(values, start=1):
            if value > best + self.min_improvement:
                best, since = value, epoch
            elif epoch - since >= self.patience:
                return epoch
        return None


@dataclass(frozen=True)
class EndedPhase:
    """How many epochs a phase had, and why it ended: at a ``plateau``, or after all of its ``epochs``."""

    epochs: int
    reason: Literal["plateau", "epochs"]


def ended_phases(values: Sequence[float], lengths: Sequence[int], until: UntilPlateau) -> list[EndedPhase]:
    """The phases that are over, by the metric after each epoch alone, so that a resumed run ends them likewise.

    Each phase has at most as many epochs as ``lengths`` says.
    """
    ended: list[EndedPhase] = []
    for length in lengths:
        at = until.reached(values[:length])
        if at is None and len(values) < length:
            break
        ended.append(EndedPhase(length, "epochs") if at is None else EndedPhase(at, "plateau"))
        values = values[ended[-1].epochs :]
    return ended
