"""Two phases: other hyper-parameters of loss and optimiser from some epoch on, the weights carried over."""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn
from torch.optim import Optimizer

from proxemic.losses.margins import MARGINS
from proxemic.losses.user_defined import Loss, MakesLoss
from proxemic.optim.sparse_rows import is_stepped_by_rows
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
        optim: How the weights are moved in it.

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
    """A loss and an optimisation from an epoch on.

    Args:
        begins: The first epoch, counted from 0.
        loss: From embeddings and labels to a scalar.
        optim: How the weights are moved.
    """

    begins: int
    loss: Loss
    optim: Optimization


def share_parameters(loss: nn.Module, earlier: nn.Module) -> None:
    """Make ``loss`` use the very parameters and buffers of an ``earlier`` one, but for the margins of its classes.

    Raises:
        ValueError: If the two have different ones.

    >>> from proxemic.losses import WarpedSoftmaxLoss
    >>> one = WarpedSoftmaxLoss(5, 4, alpha=4.0, k1=0.9, k2=1.2)
    >>> two = WarpedSoftmaxLoss(5, 4, alpha=3.0, k1=0.9, k2=1.2)
    >>> share_parameters(two, one)
    >>> two.proxies is one.proxies
    True
    """
    old, new = (
        {name: tensor for name, tensor in chain(it.named_parameters(), it.named_buffers()) if name not in MARGINS}
        for it in (earlier, loss)
    )
    if {name: tensor.shape for name, tensor in new.items()} != {name: tensor.shape for name, tensor in old.items()}:
        raise ValueError(
            f"second_phase.loss has the parameters {_shapes(new)}, but those of the first phase, which are carried "
            f"on, are {_shapes(old)}: change hyper-parameters that leave them as they are."
        )
    if any(is_stepped_by_rows(new[name]) != is_stepped_by_rows(value) for name, value in old.items()):
        raise ValueError(
            "second_phase.loss.sample_rate is below 1 in one phase only, but both step the same proxies: set both to "
            "less than 1, or to 1."
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
    """Carry on the state of an ``earlier`` optimiser of the same class that has all the state that the new one needs.

    The state of an optimiser without momentum, say, lacks what momentum starts from: then all state begins anew.
    """
    if type(optimizer) is type(earlier) and not _needs(optimizer) - _needs(earlier):
        known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for parameter, state in earlier.state.items():
            if id(parameter) in known:
                optimizer.state[parameter] = state


def _needs(optimizer: Optimizer) -> set[str]:
    """Give the options in use that add to the state of torch's optimisers."""
    options = ("momentum", "amsgrad", "centered")
    return {name for name in options if any(group.get(name) for group in optimizer.param_groups)}


def _shapes(tensors: dict[str, torch.Tensor]) -> str:
    return ", ".join(f"{name} {list(each.shape)}" for name, each in tensors.items())
