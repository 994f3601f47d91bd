r"""Chance levels: the expected values of `proxemic.metrics.ranking` for a random ranking, in closed form.

A random ranking puts the R relevant items of a gallery with n items at any R ranks with equal probability, so that

$$E[rel_i] = \frac Rn \qquad E[rel_i \, rel_j] = \frac{R (R - 1)}{n (n - 1)} \quad (i \ne j)$$

Retrieval among few classes is easy: with two classes, half of a random ranking is relevant. So compare a value with its
chance level on the same test set.

Every function takes R and n of each query, both without the query itself, and returns one float64 value per query, NaN
if nothing is relevant. A k may exceed the gallery.
"""

import math

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from proxemic.metrics.ranking import Divisor

Counts = Int[Tensor, "queries"]
Values = Float64[Tensor, "queries"]


def recall_at_k(num_relevant: Counts, gallery: Counts, k: int) -> Values:
    r"""Compute the probability that at least one of the first k is relevant.

    $$E[\text{Recall@}k] = 1 - \binom{n - R}{k} \Big/ \binom nk$$
    """
    relevant, size = num_relevant.double(), gallery.double()
    irrelevant, places = size - relevant, size.clamp(max=k)
    # Difference of the logarithms of the two binomials, in which k! cancels.
    none = (irrelevant + 1).lgamma() - (irrelevant - places + 1).clamp(min=1.0).lgamma()
    none -= (size + 1).lgamma() - (size - places + 1).lgamma()
    return _defined(torch.where(places > irrelevant, 1.0, -torch.expm1(none)), num_relevant)


def precision_at_k(num_relevant: Counts, gallery: Counts, k: int) -> Values:
    r"""Compute $E[\text{Precision@}k] = \frac{\min(k, n)}{k} \frac Rn$."""
    return r_precision(num_relevant, gallery) * (gallery.double().clamp(max=k) / k)


def r_precision(num_relevant: Counts, gallery: Counts) -> Values:
    r"""Compute $E[\text{R-Precision}] = \frac Rn$."""
    return _defined(num_relevant.double() / gallery, num_relevant)


def map_at_r(num_relevant: Counts, gallery: Counts) -> Values:
    r"""Compute $E[\text{MAP@}R] = \frac1R \left( H_R \frac Rn + (R - H_R) \frac{R (R - 1)}{n (n - 1)} \right)$.

    Here $H_m = 1 + \frac12 + \dots + \frac1m$.
    """
    relevant = num_relevant.double()
    return _defined(_precisions(num_relevant, gallery, relevant) / relevant, num_relevant)


def map_at_k(num_relevant: Counts, gallery: Counts, k: int, *, divisor: Divisor = "min") -> Values:
    r"""Compute $E[\text{MAP@}k]$: $H_m \frac Rn + (m - H_m) \frac{R (R - 1)}{n (n - 1)}$ with m = min(k, n), divided.

    With the divisor `hits`: for h hits at random among m ranks, the expected sum over h is
    $\frac{H_m}{m} + \frac{(m - H_m)(h - 1)}{m (m - 1)}$, and $E[h] = m \frac Rn$.
    """
    relevant, places = num_relevant.double(), gallery.double().clamp(max=k)
    if divisor == "hits":
        harmonic = _harmonic(places)
        slope = (places - harmonic) / (places * (places - 1)).clamp(min=1.0)
        any_hit = recall_at_k(num_relevant, gallery, k)
        values = any_hit * (harmonic / places - slope) + slope * places * (relevant / gallery)
    else:
        divisors = {"min": relevant.clamp(max=k), "k": torch.full_like(relevant, k), "R": relevant}
        values = _precisions(num_relevant, gallery, places) / divisors[divisor]
    return _defined(values, num_relevant)


def average_precision(num_relevant: Counts, gallery: Counts) -> Values:
    r"""Compute $E[\text{MAP}] = \frac1n \left( H_n + (n - H_n) \frac{R - 1}{n - 1} \right)$, over the whole list."""
    return _defined(_precisions(num_relevant, gallery, gallery.double()) / num_relevant.double(), num_relevant)


def mrr(num_relevant: Counts, gallery: Counts) -> Values:
    r"""Compute $E[\text{RR}] = \frac{R}{n - R + 1} \left( H_n - H_{R - 1} \right)$.

    The first relevant item is at rank i with probability $\binom{n - i}{R - 1} \big/ \binom nR$, and
    $\sum_i \frac1i \binom{n - i}{R - 1} = \binom{n}{R - 1} (H_n - H_{R - 1})$.
    """
    relevant, size = num_relevant.double(), gallery.double()
    values = relevant / (size - relevant + 1) * (_harmonic(size) - _harmonic((relevant - 1).clamp(min=0.0)))
    return _defined(values, num_relevant)


def ndcg_at_k(num_relevant: Counts, gallery: Counts, k: int) -> Values:
    r"""Compute $E[\text{nDCG@}k]$: $\frac Rn$ times the discounts of min(k, n) ranks over those of min(k, R)."""
    discounts = torch.tensor([0.0, *(1 / math.log2(place) for place in range(2, k + 2))], dtype=torch.float64)
    sums = discounts.cumsum(0)
    gains = r_precision(num_relevant, gallery) * sums[gallery.clamp(max=k).long()]
    return gains / sums[num_relevant.clamp(1, k).long()]


def _precisions(num_relevant: Counts, gallery: Counts, places: Values) -> Values:
    """Compute the expected sum of rel_i · Precision@i over the first ranks."""
    relevant, size = num_relevant.double(), gallery.double()
    harmonic = _harmonic(places)
    pairs = relevant * (relevant - 1) / (size * (size - 1)).clamp(min=1.0)
    return harmonic * (relevant / size) + (places - harmonic) * pairs


def _harmonic(count: Values) -> Values:
    return torch.special.digamma(count + 1) - torch.special.digamma(torch.ones_like(count))


def _defined(values: Values, num_relevant: Counts) -> Values:
    return values.masked_fill(num_relevant == 0, torch.nan)
