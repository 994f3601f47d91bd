"""Phases of a training: the last epochs may have other hyper-parameters, and a plateau may end a phase."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

import torch
from torch import nn
from torch.optim import Optimizer

from proxemic.losses.margins import MARGINS
from proxemic.losses.user_defined import Loss, LossFactory
from proxemic.ranges import check_fields
from proxemic.training.config import UntilPlateau
from proxemic.training.parameter_groups import Optimization


@dataclass(frozen=True)
class SecondPhase:
    """What changes for the last epochs, as in the two-phase training of the warped softmax.

    In a recipe, ``loss`` and ``optim`` contain only the differences from the first phase. Weights and proxies are kept,
    as is the state of the optimiser (momentum) if its class does not change; the schedule begins anew.

    Args:
        epochs: How many of ``training.epochs`` belong to the second phase, at least 1; the maximum if phases end at a
            plateau.
        loss: The loss of the second phase, with the same parameters as the first's.
        optim: The optimisation of the second phase.

    Raises:
        ValueError: If ``epochs`` is below 1.

    Source: realigned softmax warping, section on two-phase training.
    """

    epochs: int
    loss: LossFactory
    optim: Optimization

    def __post_init__(self) -> None:
        check_fields(self, "second_phase", epochs="[1, inf)")


@dataclass(frozen=True)
class Phase:
    """A loss and an optimisation."""

    loss: Loss
    optim: Optimization


def share_parameters(loss: nn.Module, earlier: nn.Module) -> None:
    """Let ``loss`` share the parameters and buffers of the ``earlier`` loss, except for the margins of the classes."""
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


def _shapes(tensors: dict[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in tensors.items())


def continue_optimizer(optimizer: Optimizer, earlier: Optimizer) -> None:
    """Copy the state of an ``earlier`` optimiser of the same class, unless the new one needs more than that.

    For example, momentum begins anew after an optimiser without momentum.
    """
    old, new = (
        {name for name in ("momentum", "amsgrad", "centered") if any(group.get(name) for group in it.param_groups)}
        for it in (earlier, optimizer)
    )
    if type(optimizer) is type(earlier) and new <= old:
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        optimizer.state.update({key: state for key, state in earlier.state.items() if id(key) in known})


@dataclass(frozen=True)
class EndedPhase:
    """The number of epochs of a phase, and why it ended: at a ``plateau``, or after all of its ``epochs``."""

    epochs: int
    reason: Literal["plateau", "epochs"]


def ended_phases(values: Sequence[float], lengths: Sequence[int], until: UntilPlateau) -> list[EndedPhase]:
    """Return the phases that have ended, given the metric after each epoch; phases have at most ``lengths`` epochs.

    This depends on nothing else, so a resumed run ends phases at the same epochs.
    """
    ended: list[EndedPhase] = []
    for length in lengths:
        at = until.reached(values[:length])
        if at is None and len(values) < length:
            break
        ended.append(EndedPhase(length, "epochs") if at is None else EndedPhase(at, "plateau"))
        values = values[ended[-1].epochs :]
    return ended
