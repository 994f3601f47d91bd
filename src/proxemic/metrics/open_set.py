"""Open-set identification: name queries whose class is in the gallery, and reject queries of other classes.

A query is mated if the gallery contains its class, otherwise non-mated. A query is accepted if its nearest neighbour is
within a threshold; an accepted non-mated query is a false alarm, whatever its neighbour's label.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.metrics.arrays import as_integers, check_shape, take_arrays
from proxemic.metrics.confidence import FEWEST_CLASSES, Interval, bootstrap_statistic
from proxemic.metrics.exact import Distance, comparable_rows, distance_block
from proxemic.metrics.neighbours import EXACT_COLUMNS, EXACT_ROWS, NeighbourSearch, distances_of, relevance_of
from proxemic.metrics.relevance import relevant_counts

FALSE_ALARM_RATES = (1e-1, 1e-2, 1e-3)
"""The default false alarm rates."""

_NUMBERS = 2**21  # weights of queries held at once: 16 MB


class Nearest(NamedTuple):
    """Distance of each query to its nearest neighbour, whether that has the query's class, and the query's class.

    Distances are float64, because thresholds lie between two of them; in float32 they would round to one.
    """

    distances: Float64[Tensor, " queries"]
    correct: Bool[Tensor, " queries"]
    labels: Int64[Tensor, " queries"]

    def take(self, kept: Bool[Tensor, " queries"]) -> "Nearest":
        """Select some of the queries."""
        return Nearest(*(part[kept] for part in self))


@dataclass(frozen=True)
class OpenSetPoint:
    """A threshold on the distance with its rates; all NaN if the requested false alarm rate cannot be measured.

    Args:
        threshold: Largest distance to the nearest neighbour at which a query is accepted.
        rate: Detection and identification rate: fraction of the mated queries that are accepted with the right class.
        false_alarm_rate: Fraction of the non-mated queries that are accepted; at most the requested rate.
    """

    threshold: float
    rate: float
    false_alarm_rate: float


@dataclass(frozen=True, eq=False)
class OpenSetIdentification:
    """Results of `open_set_identification`.

    Args:
        points: Thresholds with their rates, by the requested false alarm rate.
        rank_1: Fraction of the mated queries whose nearest neighbour has their class: closed-set identification, the
            detection and identification rate without a threshold.
        mated: Nearest neighbours of the mated queries.
        non_mated: Nearest neighbours of the other queries.
    """

    points: Mapping[float, OpenSetPoint]
    rank_1: float
    mated: Nearest
    non_mated: Nearest

    @property
    def values(self) -> dict[str, float]:
        """The rates: `rank_1`, and `dir@far=…` of each point."""
        return {"rank_1": self.rank_1} | {dir_name(rate): point.rate for rate, point in self.points.items()}

    @property
    def per_query(self) -> dict[str, Bool[Tensor, " mated"]]:
        """Whether each mated query is identified, by the names of `values`."""
        distances, correct, _ = self.mated
        accepted = {dir_name(rate): distances <= point.threshold for rate, point in self.points.items()}
        return {"rank_1": correct} | {name: correct & item for name, item in accepted.items()}

    def intervals(self, *, level: float = 0.95, resamples: int = 2000, seed: int = 0) -> dict[str, Interval]:
        """Compute intervals of `values`, and of the thresholds as `threshold@far=…`, by `bootstrap_statistic`.

        Each resample draws whole classes of queries, which search the same gallery, and chooses the thresholds again.
        Bounds are NaN if mated or non-mated queries have fewer than `FEWEST_CLASSES` classes. The arguments are those
        of `bootstrap_statistic`.
        """
        sample = _Sample(self.mated, self.non_mated)
        statistics: dict[str, tuple[float, _Statistic]] = {"rank_1": (self.rank_1, sample.rank_1)}
        for rate, point in self.points.items():
            statistics[dir_name(rate)] = point.rate, partial(sample.rates, rate=rate)
            statistics[threshold_name(rate)] = point.threshold, partial(sample.thresholds, rate=rate)
        intervals = {}
        for name, (value, statistic) in statistics.items():
            low = high = math.nan
            if not math.isnan(value) and sample.fewest_classes >= FEWEST_CLASSES:
                interval = bootstrap_statistic(statistic, sample.classes, level=level, resamples=resamples, seed=seed)
                # Shifted quantiles may be outside the range of the statistic.
                most = math.inf if name.startswith("threshold") else 1.0
                low, high = (min(max(bound, 0.0), most) for bound in (interval.low, interval.high))
            intervals[name] = Interval(value, low, high)
        return intervals


@take_arrays("queries", "query_labels", "gallery", "gallery_labels", "exclude", "query_sequences", "gallery_sequences")
@torch.no_grad()
def open_set_identification(
    queries: Float[Tensor, "queries dim"],
    query_labels: Shaped[Tensor, "..."],
    gallery: Float[Tensor, "gallery ..."],
    gallery_labels: Shaped[Tensor, "..."],
    *,
    distance: Distance = "cosine",
    false_alarm_rates: Sequence[float] = FALSE_ALARM_RATES,
    exclude: Shaped[Tensor, "..."] | None = None,
    query_sequences: Shaped[Tensor, "..."] | None = None,
    gallery_sequences: Shaped[Tensor, "..."] | None = None,
    chunk_size: int | None = None,
) -> OpenSetIdentification:
    r"""Compute the detection and identification rate (DIR) at false alarm rates (FAR), at rank 1: the watch-list task.

    Let $n(q)$ be the gallery item nearest to a query $q$ and $d(q)$ its distance, $M$ the mated queries, whose class is
    in the gallery, and $N$ the non-mated queries:

    $$\mathrm{FAR}(\tau) = \frac{|\{q \in N : d(q) \le \tau\}|}{|N|}, \qquad
    \mathrm{DIR}(\tau) = \frac{|\{q \in M : d(q) \le \tau,\ n(q) \text{ has the class of } q\}|}{|M|}$$

    DIR is given for the largest threshold whose FAR does not exceed the requested one. Non-mated queries at the same
    distance pass together, so fewer may pass than allowed. All thresholds between two successive distances are
    equivalent; the midpoint is returned. A rate below 1 / |N| cannot be measured, and its point is NaN. Among gallery
    items at the same distance, items of other classes come first.

    Args:
        queries: `[queries, dim]`, finite embeddings, read as float32. All arrays may be tensors, NumPy arrays or lists.
        query_labels: `[queries]`, integers.
        gallery: `[gallery, dim]`, finite embeddings to search.
        gallery_labels: `[gallery]`, integers.
        distance: Distance that defines the nearest item.
        false_alarm_rates: Each FAR, in (0, 1).
        exclude: As in `nearest_neighbours`, for a gallery that overlaps the queries.
        query_sequences: As in `nearest_neighbours`. A query is non-mated if all items of its class are excluded.
        gallery_sequences: `[gallery]`, number of each item's sequence.
        chunk_size: As in `nearest_neighbours`.

    Raises:
        ValueError: If an argument is out of range, or there are no mated or no non-mated queries.

    Source: Phillips, Grother and Micheals, Evaluation Methods in Face Recognition, in: Handbook of Face Recognition,
    2nd edition, 2011, section 21.2.1.

    >>> gallery, queries = [[0.0], [10.0]], [[1.0], [4.0], [9.5], [6.0], [13.0]]
    >>> labels = [0, 0, 1, 2, 2]  # 2 is not in the gallery
    >>> found = open_set_identification(queries, labels, gallery, [0, 1], distance="euclidean",
    ...                                 false_alarm_rates=(0.5, 0.1))
    >>> found.rank_1, found.points[0.5]
    (1.0, OpenSetPoint(threshold=3.5, rate=0.666..., false_alarm_rate=0.5))
    >>> found.points[0.1]  # of two non-mated queries
    OpenSetPoint(threshold=nan, rate=nan, false_alarm_rate=nan)
    """
    for name, rows in (("queries", queries), ("gallery", gallery)):
        check_shape(name, rows)
    labels = (
        as_integers("query_labels", query_labels, len(queries), "query"),
        as_integers("gallery_labels", gallery_labels, len(gallery), "gallery item"),
    )
    search = NeighbourSearch(queries, gallery, distance, exclude, query_sequences, gallery_sequences, labels)
    is_mated, nearest = _is_mated(search), _nearest(search, chunk_size)
    return identification_of(nearest.take(is_mated), nearest.take(~is_mated), false_alarm_rates)


@torch.no_grad()
def nearest_others(
    embeddings: Float[Tensor, "samples dim"],
    labels: Int64[Tensor, " samples"],
    *,
    distance: Distance,
    sequences: Int64[Tensor, " samples"] | None = None,
    queries: Int64[Tensor, " queries"] | None = None,
) -> Nearest:
    """Find the nearest other sample of each sample, or of `queries` among them, that is not alone in its class.

    With sequences, samples of the query's sequence are ignored.
    """
    x = embeddings if queries is None else embeddings[queries]
    rows = torch.arange(len(embeddings), device=embeddings.device) if queries is None else queries
    own, sequence = labels[rows], None if sequences is None else sequences[rows]
    search = NeighbourSearch(x, embeddings, distance, rows, sequence, sequences, (own, labels))
    return _nearest(search).take(_is_mated(search))


@torch.no_grad()
def nearest_other_classes(
    queries: Float[Tensor, "queries dim"],
    query_labels: Int64[Tensor, " queries"],
    gallery: Float[Tensor, "samples dim"],
    gallery_labels: Int64[Tensor, " samples"],
    *,
    distance: Distance,
    k: int,
) -> tuple[Float64[Tensor, "queries k"], Int64[Tensor, "queries k"]]:
    """Find the k nearest classes of the gallery other than the query's, by their nearest items.

    If there are fewer classes, infinite distances follow.
    """
    left, right = comparable_rows(queries, gallery, distance)
    own, labels = (item.to(right.rows.device) for item in (query_labels, gallery_labels))
    classes, parts = max(k, int(labels.max()) + 1), []
    for rows in torch.arange(len(left), device=own.device).split(EXACT_ROWS):
        near = torch.full((len(rows), classes), torch.inf, device=own.device)
        for start in range(0, len(right), EXACT_COLUMNS):
            part = slice(start, min(start + EXACT_COLUMNS, len(right)))
            distances = distance_block(left, right, rows, part, distance).float()
            distances.masked_fill_(own[rows, None] == labels[part], torch.inf)
            near.scatter_reduce_(1, labels[part].expand(len(rows), -1), distances, "amin")
        parts.append(near.topk(k, largest=False))
    values, places = (torch.cat(item) for item in zip(*parts, strict=True))
    return values.double().cpu(), places.cpu()


def _nearest(search: NeighbourSearch, chunk_size: int | None = None) -> Nearest:
    assert search.labels is not None
    keys = search.nearest_keys(1, chunk_size)
    distances, correct = distances_of(keys).squeeze(1).double(), relevance_of(keys).squeeze(1)
    return Nearest(distances.cpu(), correct.cpu(), search.labels[0].cpu())


def _is_mated(search: NeighbourSearch) -> Bool[Tensor, " queries"]:
    return (relevant_counts(search)[0] > 0).cpu()


def identification_of(mated: Nearest, non_mated: Nearest, false_alarm_rates: Sequence[float]) -> OpenSetIdentification:
    """Compute open-set identification from the nearest neighbours of the queries."""
    for rate in false_alarm_rates:
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
            raise ValueError(f"false_alarm_rates holds {rate!r} but each must be above 0 and below 1")
    if not len(mated.labels) or not len(non_mated.labels):
        raise ValueError(
            f"of {len(mated.labels) + len(non_mated.labels)} queries, {len(mated.labels)} have a class of the gallery, "
            "but some must have one and others not; choose other queries, or classes for the gallery"
        )
    sample = _Sample(mated, non_mated)
    every_class = torch.ones(1, sample.classes, dtype=torch.float64)
    points = {}
    for rate in false_alarm_rates:
        threshold = math.nan
        if 1 / len(non_mated.labels) <= rate:
            threshold = float(sample.thresholds(every_class, rate=rate))
        known = 1.0 if threshold == threshold else math.nan
        hits, alarms = mated.correct & (mated.distances <= threshold), non_mated.distances <= threshold
        points[rate] = OpenSetPoint(threshold, known * _part(hits), known * _part(alarms))
    return OpenSetIdentification(points, _part(mated.correct), mated, non_mated)


def dir_name(rate: float) -> str:
    """Return the name of the detection and identification rate at a false alarm rate."""
    return f"dir@far={rate:g}"


def threshold_name(rate: float) -> str:
    """Return the name of the threshold at a false alarm rate."""
    return f"threshold@far={rate:g}"


_Statistic = Callable[[Float64[Tensor, "resamples classes"]], Float64[Tensor, "resamples"]]


class _Sample:
    """Statistics of queries whose classes have weights, the number of times that each class was drawn."""

    def __init__(self, mated: Nearest, non_mated: Nearest) -> None:
        classes, numbers = torch.cat([mated.labels, non_mated.labels]).unique(return_inverse=True)
        ours, theirs = numbers.split([len(mated.labels), len(non_mated.labels)])
        self.classes = len(classes)
        self.fewest_classes = min(len(value.unique()) for value in (ours, theirs))
        self._mated = ours.bincount(minlength=self.classes).double()
        correct = mated.correct
        self._hits, order = mated.distances[correct].sort()
        self._hit_classes = ours[correct][order]
        self._alarms, order = non_mated.distances.sort()
        self._alarm_classes = theirs[order]
        self._values = torch.cat([mated.distances, non_mated.distances]).unique()

    def thresholds(self, weights: Float64[Tensor, "resamples classes"], *, rate: float) -> Float64[Tensor, "resamples"]:
        """Compute the threshold at a false alarm rate."""
        refused = torch.empty(len(weights), dtype=torch.float64)
        for part in self._parts(len(weights)):
            alarms = weights[part][:, self._alarm_classes].cumsum(1)
            place = (alarms / alarms[:, -1:] <= rate).sum(1)  # the first false alarm that is too many
            refused[part] = self._alarms[place.clamp(max=len(self._alarms) - 1)]
        place = torch.searchsorted(self._values, refused)
        below = self._values[(place - 1).clamp(min=0)]
        middle = torch.where(refused.isfinite(), (below + refused) / 2, below)
        return torch.where(place > 0, middle, torch.nextafter(refused, refused.new_tensor(-math.inf)))

    def rates(self, weights: Float64[Tensor, "resamples classes"], *, rate: float) -> Float64[Tensor, "resamples"]:
        """Compute the detection and identification rate at a false alarm rate."""
        return self._rates(weights, self.thresholds(weights, rate=rate))

    def rank_1(self, weights: Float64[Tensor, "resamples classes"]) -> Float64[Tensor, "resamples"]:
        """Compute the fraction of the mated queries whose nearest neighbour has their class."""
        return self._rates(weights, weights.new_full((len(weights),), math.inf))

    def _rates(
        self, weights: Float64[Tensor, "resamples classes"], thresholds: Float64[Tensor, "resamples"]
    ) -> Float64[Tensor, "resamples"]:
        detected = torch.zeros_like(thresholds)
        place = torch.searchsorted(self._hits, thresholds, right=True)
        for part in self._parts(len(weights)):
            hits = weights[part][:, self._hit_classes].cumsum(1)
            hits = torch.cat([hits.new_zeros(len(hits), 1), hits], 1)
            detected[part] = hits.gather(1, place[part, None]).squeeze(1)
        return detected / (weights @ self._mated)

    def _parts(self, resamples: int) -> Iterator[slice]:
        """Yield parts of the resamples so small that the weights of all queries fit in memory."""
        step = max(1, _NUMBERS // max(len(self._hits), len(self._alarms)))
        yield from (slice(start, start + step) for start in range(0, resamples, step))


def _part(kind: Bool[Tensor, " queries"]) -> float:
    return int(kind.sum()) / len(kind)
