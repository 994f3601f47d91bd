"""One process of a search, whose trainings cost nothing."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from images import write_folder, write_recipe
from proxemic.errors import Interrupted, TrainingDiverged, UserError
from proxemic.recipes.reader import read_recipe
from proxemic.studies.jobs import Job
from proxemic.studies.tuning import worker as module
from proxemic.studies.tuning.directory import TuningDirectory, TuningOptions
from proxemic.studies.tuning.search import FinishedTrial, Trial, TrialFailed
from proxemic.studies.tuning.spaces import Stage
from proxemic.studies.tuning.worker import StageSearch, TuningWorker

SPACE = [{"search": {"optim.lr": {"factor": 10, "log": True}}}, {"search": {"optim.loss_lr": {"low": 0.1, "high": 1}}}]


@pytest.mark.parametrize("last", [0.25, 0.75])
def test_an_earlier_stage_that_was_better_is_noted(
    last: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images", classes=1, images=1))
    directory = TuningDirectory(tmp_path / "out")
    options = TuningOptions(str(recipe), [], SPACE, "mine.yaml", 3, "tpe", "none", None, "out", 0)
    directory.begin(options, {directory.base: read_recipe(recipe).yaml})
    monkeypatch.setattr(StageSearch, "objective", lambda stage, _: {1: 0.5, 2: last}[stage.number])
    lines: list[str] = []
    worker = TuningWorker(directory.path, None, lines.append)
    worker.make_trials()
    best, finished = worker.finish()
    assert [len(stage) for stage in finished] == [2, 1]
    assert (best.value, best.parameters["optim.loss_lr"]) == (last, finished[1][0].parameters["optim.loss_lr"])
    assert lines[2].startswith(
        f"trial 2-0  map@r {100 * last:.2f}  (best {100 * last:.2f}, trial 2-0)  1 of 1, 0 s left"
    )
    note = ["NOTE: stage 1 reached map@r 50.00, more than the last stage's 25.00."] if last < 0.5 else []
    assert lines[3:] == note
    content = yaml.safe_load(directory.best_recipe.read_text())
    assert content["optim"]["lr"] == pytest.approx(worker.best[0].parameters["optim.lr"])
    assert json.loads((directory.path / "best.json").read_text())["trial"] == "2-0"
    with (directory.path / "trials.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["stage"], row["trial"], row["optim.loss_lr"] != "") for row in rows] == [
        ("1", "0", False),
        ("1", "1", False),
        ("2", "0", True),
    ]
    for plot in ("importance.png", "slices.png"):  # also of a stage whose only trial tells of no importance
        with Image.open(directory.path / plot) as picture:
            picture.verify()


def test_what_ends_a_trial_and_what_ends_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = StageSearch(TuningDirectory(tmp_path / "out"), 1, Stage({}, {}), {"training.epochs": 1}, "map@r")
    trial, raised = Trial(0, {"optim.lr": 0.1}, lambda *_: None), list[Exception]()

    def run_job(job: Job, **_: Any) -> dict[str, Any]:
        assert job.flags == ("--training.epochs", "1", "--optim.lr", "0.1", "--evaluation.start", "false")
        if raised:
            raise raised.pop()
        return {"validation": {"map@r": 0.5}}

    monkeypatch.setattr(module, "run_job", run_job)
    run = stage.directory.runs(1, 0, 1)[0]
    run.mkdir(parents=True)  # killed before it wrote its recipe
    assert stage.objective(trial) == 0.5
    assert not run.exists()
    for error, ended in (
        (TrainingDiverged("The loss became nan."), TrialFailed),
        (UserError("The disk is full."), UserError),
        (Interrupted("Stopped."), Interrupted),
    ):
        raised.append(error)
        with pytest.raises(ended, match=str(error)):
            stage.objective(trial)


def test_weights_that_are_not_on_this_machine_are_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = StageSearch(TuningDirectory(tmp_path), 1, Stage({}, {}), {}, "map@r")
    best, trained = FinishedTrial(3, "complete", 0.5, {"optim.lr": 0.1}, 1.0), list[list[str]]()

    def run_job(job: Job, **_: Any) -> dict[str, Any]:
        trained.append(sorted(path.name for path in job.out.glob("*")))
        job.out.mkdir(parents=True, exist_ok=True)
        for name in ("recipe.yaml", "metrics.json", "loss.safetensors"):
            (job.out / name).touch()
        return {}

    monkeypatch.setattr(module, "run_job", run_job)
    # Not there; there; as the runs of a resumed search are, once another trial was better; interrupted.
    for missing in ((), (), ("loss.safetensors",), ("loss.safetensors", "metrics.json")):
        for name in missing:
            (tmp_path / "trials" / "1-3" / name).unlink()
        assert stage.weights(best) == stage.directory.runs(1, 3, 1)
    assert trained == [[], [], ["recipe.yaml"]]
