"""Plots of comparisons."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from comparisons import comparison, entry, finish
from proxemic.studies.comparison import plots
from proxemic.studies.comparison.directory import Comparison
from proxemic.studies.comparison.plots import draw_curves, draw_points


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


def test_data_sets_of_fewer_metrics_have_fewer_plots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, *_, **__: figures.append(figure))
    entries = [entry("small/a"), entry("large/b", evaluation={"ndcg_at": []})]
    draw_points(comparison(tmp_path, entries, seeds=1))
    shown = [axes.get_title() for axes in figures[0].axes if axes.get_visible()]
    assert shown == [
        *(f"small: {metric}" for metric in ("recall@1", "map@r", "ndcg@8")),
        *(f"large: {metric}" for metric in ("recall@1", "map@r")),
    ]


def test_plots_of_nothing(tmp_path: Path) -> None:
    made = comparison(tmp_path, [entry("small/$a_1$"), entry("large/b")], seeds=1)
    draw_points(made)
    draw_curves(made)
    assert "not measured" in (tmp_path / "points.svg").read_text()
    assert (tmp_path / "curves.png").exists()
