"""The searches of a reality check, with trainings that cost nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.protocols.reality_check.cross_validation import CrossValidation, plan_folds
from proxemic.protocols.reality_check.search import find_best
from proxemic.protocols.reality_check.spaces import CheckSpaces
from proxemic.protocols.runs.jobs import Job, Workers
from proxemic.training.module import TrainingDiverged


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
        on_failure: Callable[[Job, Exception], object] | None = None,
    ) -> None:
        for job in jobs:
            self.jobs.append(job)
            if isinstance(self.outcome, dict):
                on_result(job, self.outcome)
            else:
                assert on_failure is not None
                on_failure(job, self.outcome)


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("plan")
    recipe = write_recipe(folder / "tiny.yaml", write_folder(folder / "images", classes=1, images=1))
    flags = ("--loss", "ProxyAnchorLoss")
    return plan_folds(recipe, flags, folds=2, embedding_size=8, metric="map@r", split_seed=0)


def search(plan: dict[str, str], workers: Workers, out: Path) -> tuple[dict[str, Any], float, list[str]]:
    validation = CrossValidation(plan, out, workers, folds=2, metric="map@r")
    spaces = CheckSpaces.of(validation.base, (), None, "mine.yaml")
    lines: list[str] = []
    parameters, value = find_best(spaces, validation, trials=2, seed=0, report=lines.append)
    return parameters, value, lines


def test_a_trial_is_the_mean_of_its_folds_and_the_first_is_the_recipe(plan: dict[str, str], tmp_path: Path) -> None:
    workers = FakeWorkers({"validation": {"map@r": 0.25}})
    parameters, value, lines = search(plan, workers, tmp_path)
    assert (value, parameters["optim.lr"]) == (0.25, 0.002)
    assert [job.out.relative_to(tmp_path).as_posix() for job in workers.jobs] == [
        f"trials/{trial}/fold-{fold}" for trial in (0, 1) for fold in (0, 1)
    ]
    assert not any(job.test for job in workers.jobs)
    assert [line.split(", ")[0] for line in lines] == ["trial 1/2", "trial 2/2"]
    assert all(line.endswith("map@r 0.2500") for line in lines)


def test_trials_that_diverge_are_noted_and_the_search_goes_on(plan: dict[str, str], tmp_path: Path) -> None:
    diverged = FakeWorkers(TrainingDiverged("The loss became nan: try a tenth of the learning rate."))
    with pytest.raises(UserError, match=r"None of the 2 trials worked.*became nan"):
        search(plan, diverged, tmp_path)
    assert {job.out.parent.name for job in diverged.jobs} == {"0", "1"}


def test_a_failure_that_is_not_of_the_parameters_ends_the_search(plan: dict[str, str], tmp_path: Path) -> None:
    full = FakeWorkers(UserError("The disk is full."))
    with pytest.raises(UserError, match="fold-0: The disk is full"):
        search(plan, full, tmp_path)
    workers = FakeWorkers({"validation": {"map@r": 0.5}})
    search(plan, workers, tmp_path)
    assert {job.out.parent.name for job in workers.jobs} == {"0", "1"}  # the first is retried


def test_a_directory_of_another_recipe_is_refused(plan: dict[str, str], tmp_path: Path) -> None:
    workers = FakeWorkers({})
    CrossValidation(plan, tmp_path, workers, folds=2, metric="map@r")
    other = {name: text.replace("0.002", "0.003") for name, text in plan.items()}
    with pytest.raises(UserError, match="begun with another recipe"):
        CrossValidation(other, tmp_path, workers, folds=2, metric="map@r")
