"""Retrieval metrics of one ranked list per query, as pure functions of relevance.

Every function returns one float64 value in [0, 1] per query, and NaN for a query without relevant items. Ranks beyond
the end of the list count as irrelevant.
"""

import math
from typing import Literal

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from proxemic.metrics.arrays import take_arrays

Relevance = Int[Tensor, "queries ranks"] | Bool[Tensor, "queries ranks"]
Values = Float64[Tensor, "queries"]
Divisor = Literal["min", "k", "hits", "R"]


@take_arrays("relevance", "num_relevant")
def recall_at_k(relevance: Relevance, num_relevant: Int[Tensor, "queries"], k: int) -> Values:
    r"""Return whether any of the first k neighbours is relevant (recall as defined in metric learning).

    $$\text{Recall@}k = \max_{i \le k} rel_i$$

    Args:
        relevance: `[queries, ranks]`, 1 for relevant neighbours, otherwise 0, in ranked order.
        num_relevant: `[queries]`, number R of relevant items in the whole gallery.
        k: At least 1; may exceed the number of ranks.

    Raises:
        ValueError: If an argument is out of range.

    >>> recall_at_k(torch.tensor([[0, 1, 0], [0, 0, 1]]), torch.tensor([1, 2]), 2)
    tensor([1., 0.], dtype=torch.float64)
    """
    hits = _checked(relevance, num_relevant, k)[:, :k]
    return _defined(hits.sum(1).clamp(max=1.0), num_relevant)


@take_arrays("relevance", "num_relevant")
def precision_at_k(relevance: Relevance, num_relevant: Int[Tensor, "queries"], k: int) -> Values:
    r"""Compute the fraction of the first k neighbours that are relevant.

    $$\text{Precision@}k = \frac1k \sum_{i \le k} rel_i$$

    Arguments and errors are those of `recall_at_k`.

    >>> precision_at_k(torch.tensor([[0, 1, 0], [0, 0, 1]]), torch.tensor([1, 2]), 2)
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    hits = _checked(relevance, num_relevant, k)[:, :k]
    return _defined(hits.sum(1) / k, num_relevant)


@take_arrays("relevance", "num_relevant")
def r_precision(relevance: Relevance, num_relevant: Int[Tensor, "queries"]) -> Values:
    r"""Compute the fraction of the first R neighbours that are relevant; R is the number of relevant items.

    $$\text{R-Precision} = \frac1R \sum_{i \le R} rel_i$$

    Arguments and errors are those of `recall_at_k`, without k.

    >>> r_precision(torch.tensor([[1, 0, 1], [0, 1, 0]]), torch.tensor([2, 1]))
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    hits = _first_r(_checked(relevance, num_relevant), num_relevant)
    return _defined(hits.sum(1) / num_relevant, num_relevant)


@take_arrays("relevance", "num_relevant")
def map_at_r(relevance: Relevance, num_relevant: Int[Tensor, "queries"]) -> Values:
    r"""Compute the mean average precision over the first R neighbours.

    $$\text{MAP@}R = \frac1R \sum_{i \le R} rel_i \, \text{Precision@}i$$

    Arguments and errors are those of `recall_at_k`, without k.

    Source: Musgrave et al., A Metric Learning Reality Check, 2020.

    >>> map_at_r(torch.tensor([[1, 0, 1], [0, 1, 0]]), torch.tensor([2, 2]))
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    hits = _first_r(_checked(relevance, num_relevant), num_relevant)
    return _defined(_sum_of_precisions(hits, num_relevant) / num_relevant, num_relevant)


@take_arrays("relevance", "num_relevant")
def map_at_k(relevance: Relevance, num_relevant: Int[Tensor, "queries"], k: int, *, divisor: Divisor = "min") -> Values:
    r"""Compute the mean average precision over the first k neighbours.

    $$\text{MAP@}k = \frac{1}{\min(k, R)} \sum_{i \le k} rel_i \, \text{Precision@}i$$

    The divisor is ``"min"``, min(k, R), which gives a perfect list 1; ``"k"``, as in the Multi-Proxy Anchor paper;
    ``"hits"``, the number of relevant items among the first k, as in Open Metric Learning and torchmetrics, which also
    gives 1 to a list whose only hit is at rank 1; or ``"R"``, as in pytorch-metric-learning. With ``"R"`` and k the
    length of the list, this is the mean average precision over the whole list.

    Arguments and errors are those of `recall_at_k`.

    >>> rankings, two = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0]]), torch.tensor([2, 2])
    >>> map_at_k(rankings, two, 4)
    tensor([0.8333, 0.2500], dtype=torch.float64)
    >>> map_at_k(rankings, two, 4, divisor="k")
    tensor([0.4167, 0.1250], dtype=torch.float64)
    >>> map_at_k(rankings, two, 4, divisor="hits")
    tensor([0.8333, 0.5000], dtype=torch.float64)
    """
    hits = _checked(relevance, num_relevant, k)[:, :k]
    divisors = {
        "min": num_relevant.clamp(max=k),
        "k": torch.full_like(num_relevant, k),
        "hits": hits.sum(1).clamp(min=1.0),
        "R": num_relevant,
    }
    if divisor not in divisors:
        raise ValueError(f"divisor is {divisor!r} but must be one of {', '.join(map(repr, divisors))}")
    return _defined(_sum_of_precisions(hits, num_relevant) / divisors[divisor], num_relevant)


def map_at_k_name(divisor: Divisor) -> str:
    """Return the part before the @ of the names in `retrieval_metrics`."""
    return "map" if divisor == "min" else f"map_over_{divisor.lower()}"


@take_arrays("relevance", "num_relevant")
def mrr(relevance: Relevance, num_relevant: Int[Tensor, "queries"]) -> Values:
    r"""Compute the reciprocal rank of the first relevant item, 0 if none is listed; its mean is the MRR.

    $$\text{RR} = \frac{1}{\min \{i : rel_i = 1\}}$$

    Arguments and errors are those of `recall_at_k`, without k.

    >>> mrr(torch.tensor([[0, 1, 1], [0, 0, 0]]), torch.tensor([2, 1]))
    tensor([0.5000, 0.0000], dtype=torch.float64)
    """
    hits = _checked(relevance, num_relevant)
    return _defined(hits.amax(1) / (hits.argmax(1) + 1), num_relevant)


@take_arrays("relevance", "num_relevant")
def ndcg_at_k(relevance: Relevance, num_relevant: Int[Tensor, "queries"], k: int) -> Values:
    r"""Compute the normalised discounted cumulative gain: the gain of the list over the gain of the best possible list.

    $$\text{nDCG@}k = \frac{\sum_{i \le k} (2^{rel_i} - 1) / \log_2(i + 1)}
                           {\sum_{i \le \min(k, R)} 1 / \log_2(i + 1)}$$

    Arguments and errors are those of `recall_at_k`.

    >>> ndcg_at_k(torch.tensor([[1, 1, 0], [0, 0, 1]]), torch.tensor([2, 1]), 3)
    tensor([1.0000, 0.5000], dtype=torch.float64)
    """
    hits = _checked(relevance, num_relevant, k)[:, :k]
    discounts = torch.tensor([1 / math.log2(place) for place in range(2, k + 2)], dtype=torch.float64)
    discounts = _whole_steps(discounts, torch.tensor(k)).to(hits.device)
    gains = (hits * discounts[: hits.shape[1]]).sum(1)
    ideal = discounts.cumsum(0)[num_relevant.long().clamp(1, k) - 1]
    return _defined(gains / ideal, num_relevant)


def _checked(
    relevance: Relevance, num_relevant: Int[Tensor, "queries"], k: int = 1
) -> Float64[Tensor, "queries ranks"]:
    if k < 1:
        raise ValueError(f"k is {k} but must be at least 1")
    if relevance.shape[1] == 0:
        raise ValueError("relevance has no neighbours; rank at least one")
    hits = relevance.double()
    if not bool(((hits == 0) | (hits == 1)).all()):
        raise ValueError("relevance holds values other than 0 and 1; pass one 0 or 1 per neighbour")
    if bool((hits.sum(1) > num_relevant).any()):
        raise ValueError("num_relevant is below the hits in relevance; pass the count over the whole gallery")
    return hits


def average_precision(ranks: Float64[Tensor, "queries relevant"], num_relevant: Int[Tensor, "queries"]) -> Values:
    """Compute the average precision over the whole list from the ranks of all R relevant items, infinite beyond R."""
    number = torch.arange(1, ranks.shape[1] + 1, device=ranks.device)
    return _whole_steps(number / ranks, num_relevant[:, None]).sum(1) / num_relevant


def _sum_of_precisions(hits: Float64[Tensor, "queries ranks"], num_relevant: Int[Tensor, "queries"]) -> Values:
    places = torch.arange(1, hits.shape[1] + 1, dtype=hits.dtype, device=hits.device)
    # The quotient of two given whole numbers is the same on every machine.
    return _whole_steps(hits * (hits.cumsum(1) / places), num_relevant[:, None]).sum(1)


def _whole_steps(terms: Float64[Tensor, "*terms"], most: Int[Tensor, "*#terms"]) -> Float64[Tensor, "*terms"]:
    """Round values in [0, 1] so that a sum of at most `most` of them is exact in any order."""
    ones = torch.ones_like(most, dtype=torch.int64)
    steps = ones.bitwise_left_shift(52 - torch.frexp(most.double()).exponent).double()
    return (terms * steps).round() / steps


def _first_r(
    hits: Float64[Tensor, "queries ranks"], num_relevant: Int[Tensor, "queries"]
) -> Float64[Tensor, "queries ranks"]:
    return hits * (torch.arange(hits.shape[1], device=hits.device) < num_relevant[:, None])


def _defined(values: Values, num_relevant: Int[Tensor, "queries"]) -> Values:
    return values.masked_fill(num_relevant == 0, torch.nan)
