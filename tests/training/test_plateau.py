"""Phases that end at a plateau equal phases of that length. `test_kills` resumes them."""

import csv
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lightning.pytorch.callbacks import EarlyStopping

from proxemic.recipes.reader import read_recipe
from proxemic.studies.finished import FinishedRun
from proxemic.training import UntilPlateau, train
from proxemic.training.phases import EndedPhase, ended_phases

WARPED = ["--loss", "WarpedSoftmaxLoss", "--loss.alpha", "4", "--loss.k1", "0.9", "--loss.k2", "1.2"]
SECOND = ["--second_phase.loss.alpha", "1", "--second_phase.optim.lr", "0.0005"]
# Nothing is better by so much: the first epoch is the best, and two more are waited for.
UNTIL = ["--training.until_plateau.patience", "2", "--training.until_plateau.min_improvement", "1"]
FLAGS = [*WARPED, *SECOND, *UNTIL, "--second_phase.epochs", "5", "--training.epochs", "12"]
OTHER = ["--evaluation.untrained", "false", "--training.loggers", "[]", "--training.threads", "1"]


def run(recipe: Path, out: Path, *flags: str) -> list[str]:
    lines: list[str] = []
    train(read_recipe(recipe, [*flags, *OTHER]).recipe, out, report=lines.append)
    return lines


def history(run: Path) -> list[dict[str, str]]:
    with (run / "history.csv").open(newline="") as file:
        return [{name: value for name, value in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def whole(recipe: Path) -> tuple[Path, list[str]]:
    """A run of two phases that end after three epochs each, of at most twelve, and its lines for the user."""
    out = recipe.parent / "whole"
    return out, run(recipe, out, *FLAGS)


@given(
    values=st.lists(st.integers(0, 8).map(lambda n: n / 8), max_size=20),
    patience=st.integers(1, 4),
    improvement=st.integers(0, 2).map(lambda n: n / 8),
)
def test_a_plateau_is_where_lightning_stops_early(values: list[float], patience: int, improvement: float) -> None:
    oracle = EarlyStopping("x", min_delta=improvement, patience=patience, mode="max")
    stops = (oracle._evaluate_stopping_criteria(torch.tensor(value))[0] for value in values)
    expected = next((epoch for epoch, stop in enumerate(stops, start=1) if stop), None)
    assert UntilPlateau(patience, improvement).reached(values) == expected


def test_a_run_ends_as_if_its_phases_were_meant_to_be_so_long(
    recipe: Path, whole: tuple[Path, list[str]], tmp_path: Path
) -> None:
    out, said = whole
    fixed = tmp_path / "fixed"
    run(recipe, fixed, *WARPED, *SECOND, "--second_phase.epochs", "3", "--training.epochs", "6")
    rows = history(out)
    assert [row.pop("phase") for row in rows] == ["1"] * 3 + ["2"] * 3
    assert rows == history(fixed)
    for name in ("model.safetensors", "loss.safetensors"):  # the last weights of the first phase went on
        assert (out / name).read_bytes() == (fixed / name).read_bytes()
    metrics, expected = (json.loads((value / "metrics.json").read_text()) for value in (out, fixed))
    assert metrics.pop("phases") == [{"epochs": 3, "reason": "plateau"}] * 2
    assert metrics == expected
    why = "ended after 3 epochs, at a plateau: validation map@r has not grown by more than 1 in 2 epochs."
    assert [line for line in said if "phase ended" in line] == [f"The first phase {why}", f"The second phase {why}"]


def test_one_phase_ends_at_its_plateau(recipe: Path, tmp_path: Path) -> None:
    assert "Training ended after 3 epochs, at a plateau" in " ".join(run(recipe, tmp_path / "run", *UNTIL))
    assert len(history(tmp_path / "run")) == 3


def test_a_phase_whose_epochs_are_over_before_a_plateau_says_so(recipe: Path, tmp_path: Path) -> None:
    said = run(recipe, tmp_path / "run", *UNTIL, "--training.epochs", "2")
    assert "Training ended after all of its 2 epochs, before a plateau." in said


def test_epochs_are_the_most_that_there_may_be() -> None:
    growing = [0.1, 0.2, 0.3, 0.4, 0.5]
    until = UntilPlateau(patience=1)
    assert ended_phases(growing, (3, 2), until) == [EndedPhase(3, "epochs"), EndedPhase(2, "epochs")]
    assert ended_phases(growing[:2], (3, 2), until) == []
    assert ended_phases([0.5, 0.4], (2, 2), until) == [EndedPhase(2, "plateau")]  # both at once


def test_the_loss_of_the_chosen_epoch_is_that_of_its_phase(whole: tuple[Path, list[str]], tmp_path: Path) -> None:
    metrics = json.loads((whole[0] / "metrics.json").read_text())
    for name in ("recipe.yaml", "model.safetensors", "model.json", "loss.safetensors"):
        (tmp_path / name).write_bytes((whole[0] / name).read_bytes())
    for epoch, slope in ((3, 1.0), (4, 1.2)):  # below alpha, which is 4, and above it, which is then 1
        (tmp_path / "metrics.json").write_text(json.dumps(metrics | {"epoch": epoch}))
        f1 = FinishedRun(tmp_path).loss.f1  # type: ignore[union-attr]
        assert float(f1(torch.tensor(3.0)) - f1(torch.tensor(2.0))) == pytest.approx(slope)  # type: ignore[operator]
