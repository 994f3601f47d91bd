"""Plots of a study: every value is inside its axes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from proxemic.studies.tuning import plots
from proxemic.studies.tuning.plots import draw_slices
from proxemic.studies.tuning.spaces import Choices, Dimension, Factor, Range
from proxemic.studies.tuning.study import FinishedTrial


def offsets(collection: Any) -> list[list[float]]:
    return np.asarray(collection.get_offsets()).tolist()


def test_the_slices_of_every_kind_of_parameter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: figures.append(figure))
    space: dict[str, Dimension] = {
        "rate": Range(0.001, 0.1, log=True),
        "margin": Range(1.0, 3.0),
        "backbone": Choices(("resnet50", "convnet", "vit")),
        "decay": Factor(0.5, 2.0),
    }
    drawn = [(0.001, 1.0, "vit", 0.5), (0.1, 3.0, "resnet50", 2.0), (0.01, 2.0, "convnet", 1.0)]
    trials = [
        FinishedTrial(number, "complete", value, dict(zip(space, values, strict=True)), 1.0)
        for number, (value, values) in enumerate(zip((0.25, 0.75, 0.5), drawn, strict=True))
    ]
    draw_slices([*trials, FinishedTrial(3, "failed", None, {}, 1.0)], space, "map@r", tmp_path)
    (figure,) = figures
    axes = dict(zip(space, figure.axes, strict=True))
    assert [item.get_xlabel() for item in figure.axes] == ["rate", "margin", "backbone", "decay, factor"]
    assert figure.axes[0].get_ylabel() == "map@r"
    assert axes["rate"].get_xlim() == pytest.approx((0.001 / 100**0.05, 0.1 * 100**0.05))
    assert axes["margin"].get_xlim() == pytest.approx((0.9, 3.1))
    assert axes["backbone"].get_xlim() == pytest.approx((-0.5, 2.5))
    assert [text.get_text() for text in axes["backbone"].get_xticklabels()] == ["resnet50", "convnet", "vit"]
    for item, name in zip(figure.axes, space, strict=True):
        dots, star = map(offsets, item.collections)
        assert [value for _, value in dots] == [0.25, 0.75, 0.5]
        assert star == [dots[1]], name
    assert [place for place, _ in offsets(axes["backbone"].collections[0])] == [2, 0, 1]
