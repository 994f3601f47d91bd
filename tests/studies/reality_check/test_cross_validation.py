"""The folds of a reality check, with trainings that cost nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from images import write_folder, write_recipe
from proxemic.errors import TrainingDiverged, UserError
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.studies.jobs import Job, Workers
from proxemic.studies.reality_check import cross_validation
from proxemic.studies.reality_check.cross_validation import CrossValidation, plan_folds
from proxemic.studies.reality_check.directory import RealityCheck
from proxemic.studies.tuning.study import Trial, TrialFailed


class FakeWorkers(Workers):
    """Gives every job the same result, or the same failure."""

    def __init__(self, outcome: dict[str, Any] | Exception) -> None:
        self.outcome = outcome
        self.jobs: list[Job] = []

    def run(
        self,
        jobs: Sequence[Job],
        *,
        on_result: Callable[[Job, dict[str, Any]], object],
        on_failure: Callable[[Job, Exception], object],
    ) -> None:
        for job in jobs:
            self.jobs.append(job)
            if isinstance(self.outcome, dict):
                on_result(job, self.outcome)
            else:
                on_failure(job, self.outcome)


CHECK = RealityCheck(("tiny",), trials=2, folds=2, embedding_size=8)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recipe in full."""
    folder = tmp_path_factory.mktemp("plan")
    recipe = write_recipe(folder / "tiny.yaml", write_folder(folder / "images", classes=1, images=1))
    return read_recipe(recipe, ("--loss", "ProxyAnchorLoss")).yaml


def validated(base: str, out: Path, outcome: dict[str, Any] | Exception) -> tuple[CrossValidation, list[Job]]:
    workers = FakeWorkers(outcome)
    return CrossValidation(out, base, CHECK, workers), workers.jobs


def test_a_trial_is_the_mean_of_its_folds(base: str, tmp_path: Path) -> None:
    validation, jobs = validated(base, tmp_path, {"validation": {"map@r": 0.25}})
    assert validation.evaluate(Trial(3, {"optim.lr": 0.1}, lambda *_: None)) == 0.25
    assert [job.out for job in jobs] == [tmp_path / "trials" / "3" / f"fold-{fold}" for fold in (0, 1)]
    assert not any(job.test for job in jobs)
    assert {job.flags for job in jobs} == {("--optim.lr", "0.1")}


def test_trainings_that_diverge_fail_their_trial_and_others_end_the_search(base: str, tmp_path: Path) -> None:
    for error, ended in (
        (TrainingDiverged("The loss became nan: try a tenth of the learning rate."), TrialFailed),
        (ValueError("alpha is -1."), TrialFailed),
        (UserError("The disk is full."), UserError),
    ):
        validation, _ = validated(base, tmp_path, error)
        with pytest.raises(ended, match=rf"fold-0: {error}"):
            validation.evaluate(Trial(0, {}, lambda *_: None))


def test_a_schedule_that_waits_for_held_out_classes_is_refused() -> None:
    flags = ("--optim.schedule", "torch.optim.lr_scheduler.ReduceLROnPlateau")
    content = yaml.safe_load(read_recipe(find_recipe("glyphs-small"), flags).yaml)
    with pytest.raises(UserError, match="has the schedule ReduceLROnPlateau, which needs held-out classes"):
        plan_folds(content, "glyphs-small", CHECK)


def test_one_phase_is_repeated_for_the_mean_epochs_of_the_folds(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_validation, "concatenated", lambda runs: {"concatenated": {"map@r": len(runs) / 4}})
    validation, jobs = validated(base, tmp_path, {"test": {"map@r": 0.25}, "epoch": 7})
    results = validation.repeat(3, ("--optim.lr", "0.1"))
    expected = {"separated": {"map@r": 0.25}, "concatenated": {"map@r": 0.5}, "complete": {"map@r": 0.25}}
    assert results == expected
    assert jobs[-1].flags == ("--optim.lr", "0.1", "--seed", "3", "--training.epochs", "10")
    assert validation.repeat(3, ()) == expected  # read, not trained
    assert len(jobs) == 3


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (4, "--optim.lr 0.1 --second_phase null --training.epochs 5"),
        (7, "--optim.lr 0.1 --second_phase.optim.lr 0.2 --second_phase.epochs 5 --training.epochs 10"),
    ],
)
def test_without_a_second_phase_its_values_are_left_out(epoch: int, expected: str) -> None:
    base = {"second_phase": {"epochs": 3}, "training": {"epochs": 8}}
    validation: Any = SimpleNamespace(base=base, out=Path("out"), first_epochs=5)
    flags = ["--optim.lr", "0.1", "--second_phase.optim.lr", "0.2"]
    assert " ".join(CrossValidation._complete(validation, [{"epoch": epoch}], flags, Path("f")).flags) == expected
