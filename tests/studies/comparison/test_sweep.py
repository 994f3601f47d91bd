"""Sweeps over values of a recipe; as a user runs them: tests/analyze/test_sweep.py."""

from pathlib import Path

import numpy as np
import pytest

from comparisons import interval
from proxemic.errors import UserError
from proxemic.studies.comparison import sweep
from proxemic.studies.comparison.directory import Comparison, Result
from proxemic.studies.comparison.sweep import plan_sweep, plot_sweep, run_sweep
from proxemic.studies.comparison.vary import Axis, Sweep, read_sweeps

RECIPE = "glyphs-small/arcface"


def test_a_directory_of_another_sweep_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    sweeps = read_sweeps(["loss.scale=8"])
    plan_sweep(RECIPE, sweeps, [0], tmp_path, ["--training.epochs", "3"], "recall@1")
    (file,) = (tmp_path / "values").iterdir()
    before = file.read_bytes()
    with pytest.raises(UserError, match="was begun with another recipe or other flags"):
        plan_sweep(RECIPE, sweeps, [0], tmp_path, ["--training.epochs", "4"], "recall@1")
    assert file.read_bytes() == before
    plan_sweep(RECIPE, sweeps, [0, 1], tmp_path, ["--training.epochs", "3"], "recall@1")
    with pytest.raises(UserError, match=r"glyphs-small/c\* matches \d+ recipes, but a sweep varies one"):
        plan_sweep("glyphs-small/c*", sweeps, [0], tmp_path, [], "recall@1")


def test_a_run_that_failed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(comparison: Comparison, **_: object) -> None:
        list(comparison.cells())[-1].fail("The loss is nan.")

    monkeypatch.setattr(sweep, "finish_comparison", fail)
    comparison, names = plan_sweep(RECIPE, read_sweeps(["loss.scale=8,16"]), [0], tmp_path, [], "recall@1")
    with pytest.raises(UserError, match=r"^1 runs failed, the first of them loss\.scale=16\.yaml, seed 0: The loss is"):
        run_sweep(comparison, names)


@pytest.mark.parametrize(
    ("values", "scale", "places"),
    [
        (("1", "4", "32"), "log", [1, 4, 32]),
        (("1", "4", "6"), "linear", [1, 4, 6]),
        (("-1", "4", "32"), "linear", [-1, 4, 32]),
        (("relu", "gelu", "none"), "linear", [0, 1, 2]),
    ],
)
def test_a_curve_is_drawn_where_its_values_are(values: tuple[str, ...], scale: str, places: list[float]) -> None:
    pairs = [(0.25, 0.5), (0.5, 0.75), (0.75, 0.75)]
    results = [
        {seed: Result({"test": {"recall@1": value}}, 1, "validation", 1.0) for seed, value in enumerate(pair)}
        for pair in pairs
    ]
    figure = plot_sweep(Sweep((Axis(("loss.x",), values),)), results, "recall@1", "glyphs")
    (axes,) = figure.axes
    assert axes.get_xscale() == scale
    assert [label.get_text() for label in axes.get_xticklabels()] == list(values)
    mean, *dots = (np.asarray(line.get_xydata()) for line in axes.lines if len(np.asarray(line.get_xydata())) != 1)
    expected = [interval(100 * one, 100 * other)[0] for one, other in pairs]
    assert mean.tolist() == pytest.approx(np.column_stack([places, expected]))
    assert dots[-1].tolist() == [[places[-1], 75.0], [places[-1], 75.0]]
