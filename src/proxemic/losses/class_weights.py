"""Weights of samples by how many their class has."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.losses.checks import check_counts, check_number


def class_balanced_weights(
    counts: Int[Tensor, " classes"] | Sequence[int], beta: float = 0.999
) -> Float[Tensor, " classes"]:
    """``(1 − β) / (1 − β^n_c)``, the inverse of a class's effective number of samples, of mean 1 over the classes.

    A loss takes one per sample: ``loss(embeddings, labels, weights=weights[labels])``. Cui, Jia, Lin, Song, Belongie,
    "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019, equation 4, whose β are 0.9 to 0.9999.

    Args:
        counts: ``[C]``, samples of each class, at least 1: ``torch.bincount(labels, minlength=num_classes)``.
        beta: β in [0, 1]: 0 weighs all samples alike, 1 by the inverse of the count, so that all classes weigh alike.

    Raises:
        ValueError: If they are not such counts, or ``beta`` is out of range.

    >>> class_balanced_weights([1, 4, 16], beta=1.0)  # 1 : 1/4 : 1/16
    tensor([2.2857, 0.5714, 0.1429])
    >>> class_balanced_weights([1, 4, 16], beta=0.9)
    tensor([2.1224, 0.6171, 0.2605])
    """
    check_beta("beta", beta)
    values = check_counts(counts)
    # The effective number times 1 − β; without a difference of two numbers near 1.
    effective = values if beta == 1 else torch.ones_like(values) if beta == 0 else -torch.expm1(values * math.log(beta))
    return (1 / effective / (1 / effective).mean()).to(torch.get_default_dtype())


def check_beta(name: str, value: float) -> None:
    """Raise `ValueError` unless it is in [0, 1]."""
    rule = "must be 0 (all samples weigh alike) to 1 (all classes do); 0.999 is usual"
    check_number(name, value, rule, least=0, most=1)
