"""Objectives: the formulas that turn positive scores and log-sum-exps of negatives into a loss."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def softmax_objective(positive: Float[Tensor, " batch"], negative: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Compute ``softplus(N_i − p_i)``: cross-entropy, whose positive logit ``p`` may have a margin or a warp.

    >>> softmax_objective(torch.tensor([0.0]), torch.tensor([0.0]))
    tensor([0.6931])
    """
    return F.softplus(negative - positive)


def all_pair_objective(positive: Float[Tensor, " batch"], negative: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """Compute ``log(1 + e^{p_i} + e^{N_i})`` (MPA-AP; MPA paper, equation 16).

    >>> all_pair_objective(torch.tensor([0.0]), torch.tensor([0.0]))  # log 3
    tensor([1.0986])
    """
    return F.softplus(torch.logaddexp(positive, negative))


_SMALL = 80.0  # e^80 is a finite float32, and e^-80 not 0


def anchor_positive(
    positive: Float[Tensor, " batch"], labels: Int[Tensor, " batch"], num_classes: int, bound: float = math.inf
) -> Float[Tensor, ""]:
    """Compute ``(1/|C⁺|) Σ_{c∈C⁺} log(1 + Σ_{i: y_i=c} e^{p_i})`` over the classes C⁺ of a batch.

    Source: Proxy-Anchor, equation 4.

    Args:
        positive: Exponents ``[B]``.
        labels: Their classes ``[B]``.
        num_classes: C.
        bound: Upper bound of the absolute exponents. If it is small, exponentials are summed without subtracting their
            maximum, in fewer operations.

    >>> anchor_positive(torch.tensor([0.0, 0.0]), torch.tensor([3, 3]), 5)  # log 3
    tensor(1.0986)
    """
    if len(labels) < math.exp(_SMALL - bound):  # not log(len(labels)): a compiler would compile every length anew
        sums = positive.new_zeros(num_classes).index_add(0, labels, positive.exp())
        return sums.log1p().sum() / torch.count_nonzero(sums)
    # Scatter to one row per class: [batch, batch] masks would grow with the square of the batch.
    per_class = positive.new_full((num_classes,), -torch.inf)
    highest = per_class.scatter_reduce(0, labels, positive.detach(), "amax")[labels]
    sums = positive.new_zeros(num_classes).index_add(0, labels, (positive - highest).exp())
    count = positive.new_zeros(num_classes).index_add(0, labels, torch.ones_like(positive))
    # Each sample has its part of its class's term, so that classes absent from the batch do not appear.
    terms = F.softplus(highest + sums[labels].log()) / count[labels]
    return terms.sum() / (count > 0).sum()


@dataclass(frozen=True)
class AnchorNegative:
    """``(1/C) softplus(M_c + αδ)`` of each class; an empty log-sum-exp, −∞, gives 0 (Proxy-Anchor, equation 4).

    Args:
        shift: αδ.
        num_classes: C.

    >>> AnchorNegative(shift=0.0, num_classes=2)(torch.tensor([0.0, -torch.inf]))
    tensor([0.3466, 0.0000])
    """

    shift: float
    num_classes: int

    def __call__(self, negative: Float[Tensor, "*classes"]) -> Float[Tensor, "*classes"]:
        return F.softplus(negative + self.shift) / self.num_classes

    def derivative(self, negative: Float[Tensor, "*classes"]) -> Float[Tensor, "*classes"]:
        return (negative + self.shift).sigmoid_().div_(self.num_classes)
