"""Weights of samples that depend on the number of samples of their class."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.losses.checks import check_counts, check_number


def class_balanced_weights(
    counts: Int[Tensor, " classes"] | Sequence[int], beta: float = 0.999
) -> Float[Tensor, " classes"]:
    """Compute class weights ``(1 − β) / (1 − β^n_c)``, scaled to mean 1: the inverse effective number of samples.

    Pass one weight per sample to a loss: ``loss(embeddings, labels, weights=weights[labels])``.

    Args:
        counts: ``[C]``, samples of each class, at least 1: ``torch.bincount(labels, minlength=num_classes)``.
        beta: β in [0, 1]: 0 gives all samples the same weight; 1 divides by the count, so that all classes have the
            same weight.

    Returns:
        ``[C]``, the weight of each class.

    Raises:
        ValueError: If a count is below 1, or ``beta`` is out of range.

    Source: Cui, Jia, Lin, Song, Belongie, "Class-Balanced Loss Based on Effective Number of Samples", CVPR 2019,
    equation 4, with β from 0.9 to 0.9999.

    >>> class_balanced_weights([1, 4, 16], beta=1.0)  # 1 : 1/4 : 1/16
    tensor([2.2857, 0.5714, 0.1429])
    >>> class_balanced_weights([1, 4, 16], beta=0.9)
    tensor([2.1224, 0.6171, 0.2605])
    """
    check_beta("beta", beta)
    values = check_counts(counts)
    # The effective number times 1 − β; expm1 avoids the difference of two numbers near 1.
    effective = values if beta == 1 else torch.ones_like(values) if beta == 0 else -torch.expm1(values * math.log(beta))
    return (1 / effective / (1 / effective).mean()).to(torch.get_default_dtype())


def check_beta(name: str, value: float) -> None:
    """Raise `ValueError` unless ``value`` is in [0, 1]."""
    rule = "must be from 0 (all samples weigh the same) to 1 (all classes do); 0.999 is usual"
    check_number(name, value, rule, least=0, most=1)
