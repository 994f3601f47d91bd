"""Figures on disk."""

import csv
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from proxemic.errors import UserError
from proxemic.plots import write_figure


def draw() -> Figure:
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([1, 2], [3, 4])
    return figure


def test_the_same_numbers_make_the_same_files(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        write_figure(draw(), tmp_path / folder / "line.v2", ["x", "y"], [(1, 3), (2, None)])
    names = ["line.v2.csv", "line.v2.png", "line.v2.svg"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    with (tmp_path / "one" / "line.v2.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["x", "y"], ["1", "3"], ["2", ""]]


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(UserError, match="could not be written"):
        write_figure(draw(), tmp_path / "taken" / "line", ["x"], [])
