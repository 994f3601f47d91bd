"""Hubness, distances, alignment and uniformity against plain loops over pairs, and what their plots show."""

import math
import statistics
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxemic.analysis.geometry import (
    Hubness,
    alignment,
    chance_occurrences,
    class_distances,
    hubness,
    plot_class_distances,
    plot_occurrences,
    uniformity,
)
from proxemic.metrics.exact import Distance

DISTANCES: tuple[Distance, ...] = ("cosine", "euclidean")
SEEDS = st.integers(0, 2**32 - 1)


def sample(rows: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


def some_labels(rows: int, classes: int = 3) -> Tensor:
    return torch.arange(rows) * 7 % classes


def apart(x: list[float], y: list[float], distance: str) -> float:
    if distance == "euclidean":
        return math.dist(x, y)
    return 1 - math.fsum(a * b for a, b in zip(x, y, strict=True)) / math.hypot(*x) / math.hypot(*y)


def by_loops(points: Tensor, labels: Tensor, distance: str) -> tuple[list[float], list[float]]:
    """Distances of all ordered pairs of one class, and of two."""
    rows, within, between = points.double().tolist(), [], []
    for one, other in permutations(range(len(rows)), 2):
        kind = within if labels[one] == labels[other] else between
        kind.append(apart(rows[one], rows[other], distance))
    return within, between


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("k", [1, 4, 19])
def test_occurrences_are_counted(distance: Distance, k: int) -> None:
    points = sample(20, 3)
    rows, counts = points.double().tolist(), [0] * 20
    for one in range(20):
        others = sorted((apart(rows[one], rows[other], distance), other) for other in range(20) if other != one)
        for _, other in others[:k]:
            counts[other] += 1
    found = hubness(points, k=k, distance=distance)
    assert found.occurrences.tolist() == counts
    assert found.largest == max(counts)
    assert found.antihubs == counts.count(0) / 20
    spread = statistics.pstdev(counts)
    expected = statistics.fmean((count - k) ** 3 for count in counts) / spread**3 if spread else 0.0
    assert found.skewness == pytest.approx(expected, abs=1e-12)


def test_a_regular_ring_has_no_hubs_and_a_star_has_one() -> None:
    turn = torch.arange(24) * (2 * math.pi / 24)
    ring = torch.stack([turn.cos(), turn.sin()], 1)
    found = hubness(ring, k=4, distance="euclidean")
    assert found.occurrences.tolist() == [4] * 24
    assert (found.skewness, found.antihubs, found.largest) == (0.0, 0.0, 4)
    star = hubness(torch.cat([torch.eye(30), torch.zeros(1, 30)]), k=1, distance="euclidean")
    assert star.occurrences.tolist() == [1, *[0] * 29, 30]
    assert star.skewness > 5


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("bins", [1, 7, 4096])
def test_distances_are_those_of_the_loops(distance: Distance, bins: int) -> None:
    points, labels = 3 + sample(40, 5), some_labels(40)
    within, between = by_loops(points, labels, distance)
    found = class_distances(points, labels, distance=distance, bins=bins)
    assert found.within_mean == pytest.approx(statistics.fmean(within), rel=1e-6)
    assert found.between_mean == pytest.approx(statistics.fmean(between), rel=1e-6)
    assert found.within_std == pytest.approx(statistics.pstdev(within), rel=1e-5)
    assert found.between_std == pytest.approx(statistics.pstdev(between), rel=1e-5)
    low, high = min(within + between), max(within + between)
    assert found.edges[[0, -1]].tolist() == pytest.approx([low, high], rel=1e-5, abs=1e-7)
    for counts, distances in ((found.within, within), (found.between, between)):
        places = [min(int((distance - low) / (high - low) * bins), bins - 1) for distance in distances]
        expected = torch.tensor(places).bincount(minlength=bins)
        # A distance at the edge of a bin may fall to either side of it.
        assert (counts.cumsum(0) - expected.cumsum(0)).abs().max() <= 2
        assert counts.sum() == len(distances)
    wins = sum((mine < other) + (mine == other) / 2 for mine in within for other in between)
    ties = (found.within.double() * found.between).sum() / len(within) / len(between)  # of which half may be wrong
    assert abs(found.auc - wins / len(within) / len(between)) <= ties / 2 + 1e-6
    assert ties < 2e-3 or bins < 4096
    assert found.anchors == 40


def test_the_area_under_the_curve() -> None:
    line = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    apart = class_distances(line, torch.tensor([0, 0, 1, 1]), distance="euclidean")
    assert apart.auc == 1.0
    # One class of 0 and 10, one of 1 and 11: pairs of one lie 10 apart, pairs of two 1, 11, 9 and 1.
    mixed = class_distances(line[[0, 2, 1, 3]], torch.tensor([0, 0, 1, 1]), distance="euclidean")
    assert mixed.auc == 0.25
    assert class_distances(torch.ones(4, 2), torch.tensor([0, 0, 1, 1])).auc == 0.5
    assert class_distances(sample(50, 3), some_labels(50), bins=1).auc == 0.5


def test_fewer_bins_hold_the_same_pairs() -> None:
    found = class_distances(sample(30, 4), some_labels(30), bins=64)
    few = found.coarser(8)
    assert few.within.tolist() == [int(found.within[at : at + 8].sum()) for at in range(0, 64, 8)]
    assert few.between.tolist() == [int(found.between[at : at + 8].sum()) for at in range(0, 64, 8)]
    assert few.edges.tolist() == found.edges[::8].tolist()
    assert few.within_mean == found.within_mean


@pytest.mark.parametrize("power", [0.5, 2.0, 3.0])
def test_alignment_and_uniformity_are_those_of_the_loops(power: float) -> None:
    points, labels = sample(30, 6) * torch.arange(1, 31)[:, None], some_labels(30)
    rows = [[item / math.hypot(*row) for item in row] for row in points.double().tolist()]
    pairs = list(permutations(range(30), 2))
    positive = [math.dist(rows[one], rows[other]) ** power for one, other in pairs if labels[one] == labels[other]]
    assert alignment(points, labels, alpha=power) == pytest.approx(statistics.fmean(positive), rel=1e-5)
    potential = [math.exp(-power * math.dist(rows[one], rows[other]) ** 2) for one, other in pairs]
    assert uniformity(points, t=power) == pytest.approx(math.log(statistics.fmean(potential)), rel=1e-5)


def test_points_that_are_all_the_same_are_aligned_and_not_uniform() -> None:
    points = sample(1, 7).expand(5, -1)
    assert uniformity(points) == pytest.approx(0, abs=1e-12)
    assert alignment(points, torch.zeros(5, dtype=torch.int64)) == 0.0
    assert uniformity(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), t=1e4) == -4e4, "in log space"
    spread = uniformity(sample(800, 256))
    assert spread == pytest.approx(-4, abs=0.1)


def measures(points: Tensor, labels: Tensor, distance: Distance) -> list[float]:
    hubs, found = hubness(points, k=3, distance=distance), class_distances(points, labels, distance=distance)
    spreads = [found.within_mean, found.within_std, found.between_mean, found.between_std, found.auc]
    return [hubs.skewness, hubs.antihubs, hubs.largest, *spreads, alignment(points, labels), uniformity(points)]


@settings(max_examples=25)
@given(seed=SEEDS, distance=st.sampled_from(DISTANCES))
def test_the_order_of_the_rows_and_the_tiles_change_nothing(seed: int, distance: Distance) -> None:
    points, labels = sample(25, 4, seed), some_labels(25)
    expected = measures(points, labels, distance)
    order = torch.randperm(25, generator=torch.Generator().manual_seed(seed))
    assert measures(points[order], labels[order], distance) == pytest.approx(expected, rel=1e-12)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.analysis.geometry._ROWS", 4 + seed % 7)
        patch.setattr("proxemic.analysis.geometry._COLUMNS", 5 + seed % 11)
        assert measures(points, labels, distance) == pytest.approx(expected, rel=1e-12)
        tiled = class_distances(points, labels, distance=distance)
    whole = class_distances(points, labels, distance=distance)
    assert torch.equal(tiled.within, whole.within)
    assert torch.equal(tiled.between, whole.between)


def test_of_many_rows_a_sample_is_compared_with_all() -> None:
    points, labels = sample(600, 8), some_labels(600, classes=20)
    whole = class_distances(points, labels, max_pairs=600**2)
    part = class_distances(points, labels, max_pairs=600**2 - 1, seed=1)
    assert (whole.anchors, part.anchors) == (600, 599)
    few = class_distances(points, labels, max_pairs=600 * 150 + 7, seed=1)
    assert few.anchors == 150
    assert int(few.within.sum()) == 150 * 29, "an anchor meets every row of its class"
    assert int(few.between.sum()) == 150 * 570
    assert few.within_mean == pytest.approx(whole.within_mean, abs=0.02)
    assert few.auc == pytest.approx(whole.auc, abs=0.02)
    again, other = (class_distances(points, labels, max_pairs=600 * 150, seed=seed) for seed in (1, 2))
    assert again.within_mean == few.within_mean != other.within_mean
    assert alignment(points, labels, max_pairs=600 * 150, seed=1) == pytest.approx(2 * few.within_mean, rel=1e-12)
    assert uniformity(points, max_pairs=600 * 150) == pytest.approx(uniformity(points), abs=0.05)


def test_refuses() -> None:
    points, labels = sample(6, 3), some_labels(6)
    with pytest.raises(ValueError, match=r"must be \[6\]"):
        class_distances(points, labels[:3])
    with pytest.raises(ValueError, match="2 samples or more"):
        uniformity(points[:1])
    with pytest.raises(ValueError, match="no samples of two classes"):
        class_distances(points, torch.zeros(6, dtype=torch.int64))
    for measure in (class_distances, alignment):
        with pytest.raises(ValueError, match="no two samples of one class"):
            measure(points, torch.arange(6))
    refused = {
        "bins is 0": lambda: class_distances(points, labels, bins=0),
        "max_pairs is 5, but must be at least 6": lambda: class_distances(points, labels, max_pairs=5),
        "alpha is 0": lambda: alignment(points, labels, alpha=0.0),
        "t is nan": lambda: uniformity(points, t=math.nan),
        "k is 6 but must be a whole number from 1 to 5": lambda: hubness(points, k=6),
    }
    for words, call in refused.items():
        with pytest.raises(ValueError, match=words):
            call()
    points[2, 1] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinite values in 1 of 6"):
        class_distances(points, labels)


@pytest.mark.parametrize(("rows", "k"), [(20, 4), (6, 5), (300, 10)])
def test_chance_is_binomial(rows: int, k: int) -> None:
    largest = min(rows - 1, 3 * k)
    occurrences = torch.tensor([largest, *[0] * (rows - 1)])
    p = k / (rows - 1)
    expected = [rows * math.comb(rows - 1, n) * p**n * (1 - p) ** (rows - 1 - n) for n in range(largest + 1)]
    assert chance_occurrences(Hubness(occurrences, k)).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_bars_are_the_rows_of_each_number() -> None:
    points = torch.randn(60, 5, generator=torch.Generator().manual_seed(0))
    found = hubness(points, k=5)
    axes = plot_occurrences(found, title="a run").axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert heights == [int((found.occurrences == n).sum()) for n in range(found.largest + 1)]
    assert axes.get_title(loc="left") == "a run"


def test_histograms_are_shares_and_lines_are_means() -> None:
    points = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    found = class_distances(points, torch.arange(40) % 4, distance="euclidean")
    figure = plot_class_distances(found, distance="euclidean")
    axes = figure.axes[0]
    outlines = [patch for patch in axes.patches if not patch.get_fill()]
    for outline, counts in zip(outlines, (found.coarser(64).within, found.coarser(64).between), strict=True):
        values = outline.get_data().values
        assert values == pytest.approx((100 * counts / counts.sum()).numpy())
        assert np.sum(values) == pytest.approx(100)
    means = [line.get_xdata()[0] for line in axes.lines]
    assert means == pytest.approx([found.within_mean, found.between_mean])
    (legend,) = figure.legends
    assert f"{found.auc:.4f}" in legend.get_title().get_text()
