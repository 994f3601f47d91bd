"""One process of a search, whose trainings cost nothing."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from command_line import csv_rows
from images import write_folder, write_recipe
from proxemic.errors import Interrupted, TrainingDiverged, UserError
from proxemic.recipes.reader import read_recipe
from proxemic.studies.jobs import Job
from proxemic.studies.tuning import search as module
from proxemic.studies.tuning.directory import TuningOptions
from proxemic.studies.tuning.search import Search
from proxemic.studies.tuning.study import Trial, TrialFailed, quiet

SPACE = {
    "optim.lr": {"low": 0.001, "high": 0.1, "log": True},
    "optim.loss_lr": {"low": 0.1, "high": 1},
    "second_phase.optim.lr": {"factor": [0.01, 1], "log": True},
}


def begun(folder: Path, trials: int = 4, first: Any = (), report: Any = str, **options: Any) -> Search:
    recipe = write_recipe(folder / "tiny.yaml", write_folder(folder / "images", classes=1, images=1))
    out = folder / "out"
    out.mkdir()
    flags = ["--training.epochs", "3", "--second_phase.epochs", "1", "--second_phase.optim.lr", "0.0002"]
    (out / "base.yaml").write_text(read_recipe(recipe, flags).yaml)
    settings = TuningOptions(str(recipe), flags, SPACE, trials, "out", first=[*first])
    return Search(out, out / "base.yaml", settings, report, **options)


def test_a_search_of_both_phases_writes_its_trials_and_the_best_recipe(tmp_path: Path) -> None:
    seen: list[Trial] = []

    def objective(trial: Trial) -> float:
        seen.append(trial)
        if trial.number == 1:
            raise TrialFailed("The loss is nan.")
        return 0.25 if trial.number else 0.5

    lines: list[str] = []
    given = [{"optim.lr": 0.01, "second_phase.optim.lr": 0.5}]
    search = begun(tmp_path, first=given, report=lines.append, objective=objective)
    with quiet():
        best, finished = search.run(seed=0)
        search.draw()
    # The recipe's own rates are 0.002 and 0.0002, the given ones 0.01 and half of it.
    rates = [(trial.parameters["optim.lr"], trial.parameters["second_phase.optim.lr"]) for trial in seen]
    assert rates[:2] == [(0.002, pytest.approx(0.0002)), (0.01, 0.005)]
    assert all(second <= first for first, second in rates), "a factor of the same trial's value in the first phase"
    assert len(set(rates)) == 4
    assert [trial.state for trial in finished] == ["complete", "failed", "complete", "complete"]
    assert (best.number, best.value) == (0, 0.5)
    assert lines[0].startswith("trial 0  map@r 50.00  (best 50.00, trial 0)  1 of 4, ")
    assert lines[1].startswith("trial 1  failed  (best 50.00, trial 0)  2 of 4")
    assert lines[1].endswith("second_phase.optim.lr 0.005  The loss is nan.")
    rows = csv_rows(search.out / "trials.csv")
    assert [float(row["second_phase.optim.lr"]) for row in rows] == pytest.approx([second for _, second in rates])
    assert [row["failure"] for row in rows] == ["", "The loss is nan.", "", ""]
    content = yaml.safe_load((search.out / "best.yaml").read_text())
    assert (content["optim"]["lr"], content["second_phase"]["optim"]["lr"]) == pytest.approx(rates[0])
    assert json.loads((search.out / "best.json").read_text())["trial"] == 0
    for plot in ("importance.png", "slices.png"):
        with Image.open(search.out / plot) as picture:
            picture.verify()


def test_the_seed_is_that_of_a_new_study(tmp_path: Path) -> None:
    def drawn(name: str, seed: int) -> list[dict[str, Any]]:
        (tmp_path / name).mkdir()
        search = begun(tmp_path / name, objective=lambda trial: trial.parameters["optim.lr"])
        with quiet():
            _, trials = search.run(seed=seed)
        return [dict(trial.parameters) for trial in trials]

    one, another = drawn("one", 0), drawn("another", 1)
    assert drawn("again", 0) == one
    assert another[0] == one[0], "the recipe's own values"
    assert another[1:] != one[1:]


def test_a_search_whose_trials_all_fail_ends(tmp_path: Path) -> None:
    def objective(trial: Trial) -> float:
        raise TrialFailed("There is no disk.")

    with quiet(), pytest.raises(UserError, match="first 5 trials all failed; the last: There is no disk"):
        begun(tmp_path, trials=20, objective=objective).run()
    (tmp_path / "few").mkdir()
    with quiet(), pytest.raises(UserError, match="None of the 2 trials worked; the last: There is no disk"):
        begun(tmp_path / "few", trials=2, objective=objective).run()


def test_what_ends_a_trial_and_what_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    search, trial, raised = begun(tmp_path), Trial(0, {"optim.lr": 0.1}, lambda *_: None), list[Exception]()

    def run_job(job: Job, **_: Any) -> dict[str, Any]:
        assert job.flags == ("--optim.lr", "0.1", "--evaluation.start", "false")
        if raised:
            raise raised.pop()
        return {"validation": {"map@r": 0.5}}

    monkeypatch.setattr(module, "run_job", run_job)
    run = search.trial_folder(0)
    run.mkdir(parents=True)  # killed before it wrote its recipe
    assert search.train(trial) == 0.5
    assert not run.exists()
    for error, ended in (
        (TrainingDiverged("The loss became nan."), TrialFailed),
        (UserError("The disk is full."), UserError),
        (Interrupted("Stopped."), Interrupted),
    ):
        raised.append(error)
        with pytest.raises(ended, match=str(error)):
            search.train(trial)
