"""The expected best of n trials, against all n-subsets with replacement."""

import itertools
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from PIL import Image

from command_line import csv_rows
from proxemic.errors import UserError
from proxemic.files import write_csv
from proxemic.studies.tuning.curves import draw_search_curves, expected_best, search_curve
from proxemic.studies.tuning.directory import TuningOptions, tuning_directory

VALUES = [0.3, 0.9, 0.1, 0.9, 0.5]


def test_the_expected_best_is_the_mean_over_all_draws() -> None:
    curve = expected_best(np.array(VALUES), 4)
    for draws in (1, 2, 3, 4):
        oracle = fmean(max(drawn) for drawn in itertools.product(VALUES, repeat=draws))
        assert curve[draws - 1] == pytest.approx(oracle, abs=1e-12)
    rows = np.array([VALUES, VALUES[::-1]])
    assert expected_best(rows).shape == (2, 5)
    np.testing.assert_allclose(expected_best(rows)[1], expected_best(np.array(VALUES)))


def searched(folder: Path) -> Path:
    folder.mkdir()
    options = TuningOptions("mine.yaml", [], {"optim.lr": {"low": 0, "high": 1}}, 5, "s")
    tuning_directory(folder).begin(options, {folder / "base.yaml": "training: {epochs: 8}"})
    steps = (8, 8, 2, 8, 4)
    rows = [[n, "", value, steps[n]] for n, value in enumerate(VALUES)]
    rows[3][2] = ""  # a failed trial
    write_csv(folder / "trials.csv", ("trial", "state", "value", "epochs"), rows)
    return folder


def test_the_curve_of_a_search(tmp_path: Path) -> None:
    curve = search_curve(searched(tmp_path / "out"))
    values = np.array([0.3, 0.9, 0.1, 0.0, 0.5])  # the failed trial came to nothing
    np.testing.assert_allclose(curve.expected, expected_best(values))
    assert curve.found.tolist() == [0.3, 0.9, 0.9, 0.9, 0.9]
    assert curve.full_runs.tolist() == pytest.approx([n * 6 / 8 for n in range(1, 6)])
    assert np.all((curve.low <= curve.expected) & (curve.expected <= curve.high))
    curves = [search_curve(searched(tmp_path / name), name) for name in ("a", "b")]
    paths = draw_search_curves(curves, tmp_path / "curves", "map@r")
    with Image.open(paths[0]) as picture:
        picture.verify()
    rows = csv_rows(paths[-1])
    assert [(row["search"], row["trials"]) for row in rows] == [(name, str(n)) for name in "ab" for n in range(1, 6)]
    assert float(rows[4]["found"]) == 0.9


def test_a_search_without_trials_has_no_curve(tmp_path: Path) -> None:
    folder = searched(tmp_path / "out")
    (folder / "trials.csv").unlink()
    with pytest.raises(UserError, match="holds no finished trial"):
        search_curve(folder)
    with pytest.raises(UserError, match="does not hold a study"):
        search_curve(tmp_path)
