"""Plots of comparisons."""

from pathlib import Path

import numpy as np
from PIL import Image

from comparisons import comparison, entry, finish
from proxemic.protocols.comparison.directory import Comparison
from proxemic.protocols.comparison.plots import draw_curves, draw_points


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
