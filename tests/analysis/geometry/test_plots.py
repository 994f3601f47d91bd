"""What the pictures of the geometry show is what was measured."""

import math

import numpy as np
import pytest
import torch

from proxemic.analysis.geometry import Hubness, class_distances, hubness
from proxemic.analysis.geometry.plots import chance_occurrences, plot_class_distances, plot_occurrences


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
    figure = plot_class_distances(found, distance="euclidean", bins=16)
    axes = figure.axes[0]
    outlines = [patch for patch in axes.patches if not patch.get_fill()]
    for outline, counts in zip(outlines, (found.coarser(16).within, found.coarser(16).between), strict=True):
        values = outline.get_data().values
        assert values == pytest.approx((100 * counts / counts.sum()).numpy())
        assert np.sum(values) == pytest.approx(100)
    means = [line.get_xdata()[0] for line in axes.lines]
    assert means == pytest.approx([found.within_mean, found.between_mean])
    (legend,) = figure.legends
    assert f"{found.auc:.4f}" in legend.get_title().get_text()
