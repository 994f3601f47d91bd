"""Plots of comparisons."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from comparisons import comparison, entry, finish
from proxemic.protocols.comparison.directory import Comparison
from proxemic.protocols.comparison.plots import draw_curves, draw_points

A, B, C = [0.50, 0.52, 0.57], [0.60, 0.61, 0.68], [0.70, 0.40]


@pytest.fixture
def three(tmp_path: Path) -> Comparison:
    """The third recipe has no third seed, and was chosen on the test classes."""
    entries = [entry("small/a"), entry("small/b", "BLoss"), entry("small/c", evaluation={"select_on": "test"})]
    made = comparison(tmp_path / "made", entries)
    for each, values in zip(entries, (A, B, C), strict=True):
        for seed, value in enumerate(values):
            finish(made.cell(each, seed), {"recall@1": value, "map@r": value / 2, "ndcg@8": value / 4})
    made.write()
    return made


def test_plots(three: Comparison) -> None:
    draw_points(three)
    draw_curves(three)
    for name in ("points.png", "curves.png"):
        with Image.open(three.path / name) as picture:
            assert (np.asarray(picture.convert("L")) < 128).mean() > 0.001
    drawn = (three.path / "points.svg").read_text()
    draw_points(three)
    assert (three.path / "points.svg").read_text() == drawn
    finish(three.cell(three.entries[2], 2), {"recall@1": 0.9, "map@r": 0.9, "ndcg@8": 0.9})
    draw_points(three)
    assert (three.path / "points.svg").read_text() != drawn


def test_plots_of_nothing(tmp_path: Path) -> None:
    made = comparison(tmp_path, [entry("small/$a_1$"), entry("large/b")], seeds=1)
    draw_points(made)
    draw_curves(made)
    assert "not measured" in (tmp_path / "points.svg").read_text()
    assert (tmp_path / "curves.png").exists()
