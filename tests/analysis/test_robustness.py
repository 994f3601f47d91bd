"""Means and drops against plain loops, and what the figure shows."""

import math
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from proxemic.analysis.robustness import Robustness, plot_robustness

SHARE = st.floats(0.01, 1)
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5))


@given(data=st.data(), shape=SHAPES)
def test_means_drops_and_curves_are_those_of_plain_loops(data: st.DataObject, shape: tuple[int, int, int]) -> None:
    runs, corruptions, severities = shape
    clean = data.draw(st.lists(SHARE, min_size=runs, max_size=runs))
    cells = math.prod(shape)
    values = np.array(data.draw(st.lists(SHARE, min_size=cells, max_size=cells))).reshape(shape)
    found = Robustness(torch.tensor(clean, dtype=torch.float64), torch.from_numpy(values))
    for run in range(runs):
        for corruption in range(corruptions):
            row = [float(value) for value in values[run, corruption]]
            mean = sum(row) / severities
            assert float(found.over_severities[run, corruption]) == pytest.approx(mean)
            assert float(found.relative_drop[run, corruption]) == pytest.approx((clean[run] - mean) / clean[run])
            assert found.curves[run, corruption].tolist() == [clean[run], *row]


def test_nothing_is_lost_of_nothing() -> None:
    found = Robustness(torch.tensor([0.0, 0.5]).double(), torch.tensor([[[0.1]], [[0.25]]]).double())
    assert found.relative_drop[0].isnan().all()
    assert found.relative_drop[1].tolist() == [0.5]


def curves(groups: int = 2, corruptions: int = 5, points: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(groups, corruptions, points, generator=generator, dtype=torch.float64)
    return {f"loss_{group}$": value for group, value in enumerate(values)}


def draw(**changes: Any) -> Figure:
    means = curves()
    arguments = {
        "means": means,
        "half_widths": {"loss_0$": torch.full((5, 4), 0.3).double()},
        "corruptions": ["shear", "dropout", "cutout", "jigsaw", "blur"],
        "severities": [1, 3, 5],
        "metric": "recall@1",
    } | changes
    return plot_robustness(**arguments)


def test_a_panel_shows_the_means_in_percent_with_bands_where_there_are_intervals() -> None:
    figure, means = draw(), curves()
    panels = figure.axes
    assert [axes.get_title() for axes in panels if axes.get_visible()] == [
        "shear", "dropout", "cutout", "jigsaw", "blur",
    ]  # fmt: skip
    assert len(panels) == 6
    for place, axes in enumerate(panels[:5]):
        for line, values in zip(axes.get_lines(), means.values(), strict=True):
            assert np.asarray(line.get_xdata()).tolist() == [0, 1, 3, 5]
            np.testing.assert_allclose(np.asarray(line.get_ydata()), 100 * values[place])
        (band,) = axes.collections
        heights = np.asarray(band.get_paths()[0].vertices)[:, 1]
        first = means["loss_0$"][place]
        assert heights.min() == pytest.approx(100 * max(float(first.min()) - 0.3, 0))
        assert heights.max() == pytest.approx(100 * min(float(first.max()) + 0.3, 1))
        assert [label.get_text() for label in axes.get_xticklabels()] == ["clean", "1", "3", "5"]
    assert [axes.get_ylabel() for axes in panels[:4]] == ["recall@1, %", "", "", "recall@1, %"]
    assert [axes.get_xlabel() for axes in panels[:5]] == ["", "", "severity", "severity", "severity"]


@pytest.mark.parametrize("groups", [1, 9, 20])
def test_one_legend_outside_of_the_panels_names_every_group_differently(groups: int) -> None:
    means = {f"glyphs $small$ loss {group}": curve for group, curve in enumerate(curves(groups).values())}
    figure = draw(means=means, half_widths={})
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(means)
    assert not any(text.get_parse_math() for text in legend.get_texts())
    figure.savefig(BytesIO(), dpi=100)  # lays it out
    box = legend.get_window_extent()
    assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
    for axes in (axis for axis in figure.axes if axis.get_visible()):
        around = axes.get_tightbbox()
        assert around is not None
        assert box.y1 <= around.y0
        assert axes.get_window_extent().height > 150  # however long the legend is
        lines = axes.get_lines()
        assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == groups
        assert len({(line.get_color(), line.get_marker()) for line in lines}) == groups
