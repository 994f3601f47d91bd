"""Verification: how well a distance separates pairs of the same class from pairs of different classes.

A pair is accepted if its distance is at most a threshold; pass the negative of a similarity. All thresholds between two
successive distances are equivalent; the midpoint is returned. The threshold that accepts no pair is the next float64
below the smallest distance, the one that accepts all pairs is the largest distance.

The true accept rate (TAR) is the fraction of the pairs of the same class that are accepted; the false accept rate (FAR)
is the fraction of the pairs of different classes that are accepted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import pstdev
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.metrics import exact
from proxemic.metrics.arrays import as_integers, check_finite, take_arrays
from proxemic.metrics.exact import Distance, ExactRows, check_distance

FAR = (1e-1, 1e-2, 1e-3, 1e-4)
"""The default false accept rates."""


@dataclass(frozen=True)
class VerificationAccuracy:
    """Accuracy over folds, in [0, 1]; each fold uses the threshold that is best on the other folds.

    Args:
        mean: Unweighted mean over the folds.
        std: Standard deviation over the folds, with their number as divisor, as insightface prints it.
        accuracies: Accuracy of each fold, in ascending order of the folds' numbers.
        thresholds: Threshold of each fold.
    """

    mean: float
    std: float
    accuracies: tuple[float, ...]
    thresholds: tuple[float, ...]


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold with its measured true and false accept rates."""

    threshold: float
    tar: float
    far: float


class OperatingPoints(dict[float, OperatingPoint]):
    """Operating points, by the requested false accept rate."""


@dataclass(frozen=True)
class VerificationMetrics:
    """Results of `verification_metrics`.

    Args:
        accuracy: Accuracy over folds.
        auc: Area under the ROC curve.
        eer: Equal error rate.
        eer_threshold: Threshold at which the two error rates differ least.
        tar_at_far: Operating points by the requested false accept rate.
        pairs: Number of pairs.
        same: Number of pairs of the same class.
    """

    accuracy: VerificationAccuracy
    auc: float
    eer: float
    eer_threshold: float
    tar_at_far: OperatingPoints
    pairs: int
    same: int


@take_arrays("first", "second")
@torch.no_grad()
def pair_distances(
    first: Float[Tensor, "pairs dim"], second: Float[Tensor, "..."], *, distance: Distance = "cosine"
) -> Float64[Tensor, "pairs"]:
    r"""Compute the distance of each pair: the cosine distance $1 - \cos$, in [0, 2], or the Euclidean distance.

    Distances are exact (see `proxemic.metrics.exact`). The cosine distance to or from a zero vector is 1.

    Args:
        first: `[pairs, dim]`, finite embeddings of the first image of each pair, read as float32.
        second: `[pairs, dim]`, embeddings of the second image.
        distance: ``"cosine"`` or ``"euclidean"``.

    Returns:
        `[pairs]`, float64.

    Raises:
        ValueError: If the shapes differ, or embeddings are NaN or infinite.

    >>> pair_distances(torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[0.0, 0.0], [0.0, 2.0]]),
    ...                distance="euclidean")
    tensor([5.0000, 2.2361], dtype=torch.float64)
    """
    check_distance(distance)
    if first.shape != second.shape:
        raise ValueError(
            f"second has shape {tuple(second.shape)} but first {tuple(first.shape)}; they must agree, one per pair"
        )
    left, right = ExactRows(first, "first"), ExactRows(second, "second")
    if distance == "euclidean":  # pairs have no gallery: the difference loses no digits far from the origin
        return ExactRows(left.rows - right.rows, "first - second").squares.sqrt_()
    rows = torch.arange(len(first), device=left.rows.device)
    return exact.row_distances(left, right, rows, rows, distance)


@take_arrays("distances", "same", "folds")
def verification_accuracy(
    distances: Shaped[Tensor, "..."], same: Shaped[Tensor, "..."], *, folds: int | Shaped[Tensor, "..."] = 10
) -> VerificationAccuracy:
    r"""Compute the accuracy over pairs, with each fold's threshold chosen as the best on all other folds.

    All thresholds are tried, not a grid. Among equally good thresholds, the smallest is used: it accepts the fewest
    pairs.

    Args:
        distances: `[pairs]`, finite.
        same: `[pairs]`, bool: whether both images of a pair have the same class.
        folds: `[pairs]`, the fold of each pair as an integer; or a number of folds, at least 2, which makes that many
            blocks of consecutive pairs of nearly equal size (the protocol of LFW and of insightface's packs). Blocks
            require that both kinds of pairs are mixed.

    Raises:
        ValueError: If an argument is out of range, or the pairs outside a fold are all of one kind.

    Source: Huang et al., Labeled Faces in the Wild, 2007, section 3 (view 2).

    >>> distances = torch.tensor([0.1, 0.9, 0.2, 0.8, 0.7, 0.6])
    >>> same = torch.tensor([True, False, True, False, True, False])
    >>> accuracy = verification_accuracy(distances, same, folds=3)
    >>> accuracy.accuracies, round(accuracy.mean, 3), [round(threshold, 3) for threshold in accuracy.thresholds]
    ((1.0, 1.0, 0.5), 0.833, [0.4, 0.35, 0.5])
    """
    distances, same = _checked(distances, same)
    numbers = _fold_numbers(folds, len(distances))
    accuracies, thresholds = [], []
    for fold in numbers.unique().tolist():
        tested = numbers == fold
        others = same[~tested]
        if bool(others.all()) or not bool(others.any()):
            raise ValueError(
                f"folds leaves {len(others)} pairs outside fold {fold}, all of one kind, but a threshold needs both "
                "kinds; give folds that mix them"
            )
        threshold, _ = best_threshold(distances[~tested], others)
        right = (distances[tested] <= threshold) == same[tested]
        accuracies.append(int(right.sum()) / len(right))
        thresholds.append(threshold)
    mean = math.fsum(accuracies) / len(accuracies)
    return VerificationAccuracy(mean, pstdev(accuracies), tuple(accuracies), tuple(thresholds))


@take_arrays("distances", "same")
def best_threshold(distances: Shaped[Tensor, "..."], same: Shaped[Tensor, "..."]) -> tuple[float, float]:
    """Find the threshold with the highest accuracy (the smallest of equally good ones) and that accuracy.

    Arguments and errors are those of `verification_accuracy`, without folds.

    >>> best_threshold(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([True, False, False]))
    (0.5, 1.0)
    """
    roc = _roc(distances, same)
    right = roc.same + (roc.different[-1] - roc.different)
    best = int(right.argmax())  # the first of equal ones
    return float(roc.thresholds[best]), int(right[best]) / len(distances)


@take_arrays("distances", "same")
def roc_auc(distances: Shaped[Tensor, "..."], same: Shaped[Tensor, "..."]) -> float:
    r"""Compute the area under the ROC curve: the probability that a pair of one class is nearer; a tie counts half.

    $$P(d^+ < d^-) + \tfrac12 P(d^+ = d^-)$$

    Arguments and errors are those of `verification_accuracy`, without folds.

    >>> roc_auc(torch.tensor([0.1, 0.5, 0.5, 0.9]), torch.tensor([True, True, False, False]))
    0.875
    """
    roc = _roc(distances, same)
    # Twice the number of comparisons won: whole numbers, so that only the division rounds.
    won = int((roc.different.diff() * (roc.same[:-1] + roc.same[1:])).sum())
    return won / (2 * int(roc.same[-1]) * int(roc.different[-1]))


@take_arrays("distances", "same")
def tar_at_far(
    distances: Shaped[Tensor, "..."], same: Shaped[Tensor, "..."], far: Sequence[float] = FAR
) -> OperatingPoints:
    """Find the highest TAR among the thresholds with a FAR of at most `far`, over all pairs, without interpolation.

    With n pairs of different classes, a FAR is a multiple of 1/n. A rate below 1/n cannot be measured: its point has no
    false accept. The rates of a point are measured, so its FAR may be lower than requested.

    Arguments and errors are those of `verification_accuracy`, with `far`, rates in [0, 1], instead of folds.

    >>> distances = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    >>> tar_at_far(distances, torch.tensor([True, False, True, True, False, False]), far=(0.4, 0.01))
    {0.4: OperatingPoint(threshold=4.5, tar=1.0, far=0.3333333333333333),
     0.01: OperatingPoint(threshold=1.5, tar=0.3333333333333333, far=0.0)}
    """
    for rate in far:
        if not 0 <= rate <= 1:
            raise ValueError(f"far holds {rate!r} but each must be a rate in [0, 1]")
    roc = _roc(distances, same)
    tars, fars = (counts.double() / counts[-1] for counts in (roc.same, roc.different))
    places = {rate: int((fars <= rate).sum()) - 1 for rate in far}
    return OperatingPoints(
        (rate, OperatingPoint(float(roc.thresholds[place]), float(tars[place]), float(fars[place])))
        for rate, place in places.items()
    )


@take_arrays("distances", "same")
def equal_error_rate(distances: Shaped[Tensor, "..."], same: Shaped[Tensor, "..."]) -> tuple[float, float]:
    r"""Compute the equal error rate: FAR = 1 − TAR on the ROC curve (not its convex hull), interpolated linearly.

    Arguments and errors are those of `verification_accuracy`, without folds.

    Returns:
        The rate, and the threshold at which FAR and 1 − TAR differ least (the smaller of two).

    >>> equal_error_rate(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([True, False, True, False]))
    (0.5, 2.5)
    """
    roc = _roc(distances, same)
    positives, negatives = int(roc.same[-1]), int(roc.different[-1])
    # FAR − FRR in units of 1 / (positives · negatives), which rises with each point from below 0 to above 0.
    gaps = roc.different * positives - (positives - roc.same) * negatives
    place = int((gaps < 0).sum())
    below, above = int(gaps[place - 1]), int(gaps[place])
    start, end = int(roc.different[place - 1]), int(roc.different[place])
    rate = (start + Fraction(-below, above - below) * (end - start)) / negatives
    nearest = place if above < -below else place - 1
    return float(rate), float(roc.thresholds[nearest])


@take_arrays("distances", "same", "folds")
def verification_metrics(
    distances: Shaped[Tensor, "..."],
    same: Shaped[Tensor, "..."],
    *,
    folds: int | Shaped[Tensor, "..."] = 10,
    far: Sequence[float] = FAR,
) -> VerificationMetrics:
    """Compute accuracy over folds, ROC AUC, equal error rate and TAR at each FAR.

    Arguments and errors are those of `verification_accuracy` and `tar_at_far`.

    >>> distances = pair_distances(torch.eye(4), torch.eye(4)[[0, 2, 2, 1]])
    >>> metrics = verification_metrics(distances, torch.tensor([True, False, True, False]), folds=2, far=(0.1,))
    >>> metrics.accuracy.mean, metrics.auc, metrics.eer, metrics.tar_at_far[0.1].tar
    (1.0, 1.0, 0.0, 1.0)
    """
    accuracy = verification_accuracy(distances, same, folds=folds)
    eer, eer_threshold = equal_error_rate(distances, same)
    points = tar_at_far(distances, same, far)
    return VerificationMetrics(
        accuracy, roc_auc(distances, same), eer, eer_threshold, points, len(same), int(same.sum())
    )


class _Roc(NamedTuple):
    """Number of accepted pairs of each kind at each threshold, from none to all."""

    thresholds: Float64[Tensor, " points"]
    same: Int64[Tensor, " points"]
    different: Int64[Tensor, " points"]


def _roc(distances: Tensor, same: Tensor) -> _Roc:
    distances, same = _checked(distances, same)
    values, place = distances.unique(return_inverse=True)
    counts = [torch.bincount(place[kind], minlength=len(values)).cumsum(0) for kind in (same, ~same)]
    middle = values[:-1] / 2 + values[1:] / 2
    # Between adjacent floats, the midpoint rounds to one of them; the upper one would accept the next pair.
    middle = torch.where(middle < values[1:], middle, values[:-1])
    none = torch.nextafter(values[:1], values.new_tensor(-math.inf))
    nothing = torch.zeros(1, dtype=torch.int64)
    return _Roc(torch.cat([none, middle, values[-1:]]), *(torch.cat([nothing, count]) for count in counts))


def _checked(distances: Tensor, same: Tensor) -> tuple[Float64[Tensor, " pairs"], Bool[Tensor, " pairs"]]:
    if distances.ndim != 1 or distances.shape != same.shape:
        raise ValueError(
            f"same has shape {tuple(same.shape)} and distances {tuple(distances.shape)}; both must be [pairs]"
        )
    if same.dtype != torch.bool:
        raise ValueError(f"same has {same.dtype} but must be bool: pass `same == 1` for ones and zeros")
    distances, same = distances.detach().cpu().double(), same.cpu()
    check_finite("distances", distances[:, None], "pairs")
    positives = int(same.sum())
    if positives in (0, len(same)):
        raise ValueError(f"same is true for {positives} of {len(same)} pairs but both kinds are needed; add the other")
    return distances, same


def _fold_numbers(folds: int | Tensor, pairs: int) -> Int64[Tensor, " pairs"]:
    if isinstance(folds, Tensor):
        numbers = as_integers("folds", folds, pairs, "pair").cpu()
        if len(numbers.unique()) < 2:
            raise ValueError("folds puts all pairs into one fold but two are needed; use best_threshold without folds")
        return numbers
    if isinstance(folds, bool) or not isinstance(folds, int) or not 2 <= folds <= pairs:
        raise ValueError(f"folds is {folds!r} but must be an integer from 2 to {pairs}, the pairs, or one per pair")
    blocks = torch.arange(pairs).tensor_split(folds)
    return torch.cat([torch.full_like(block, fold) for fold, block in enumerate(blocks)])
