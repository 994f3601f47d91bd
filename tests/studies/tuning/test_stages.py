"""The stages of a search: their trials, and the values of the recipe in each."""

from pathlib import Path
from typing import Any

import pytest

from images import write_folder, write_recipe
from proxemic.errors import Interrupted, TrainingDiverged, UserError
from proxemic.studies.jobs import Job
from proxemic.studies.tuning import stages as stages_module
from proxemic.studies.tuning.directory import TuningDirectory
from proxemic.studies.tuning.search import FinishedTrial, Trial, TrialFailed
from proxemic.studies.tuning.spaces import Stage, load_space, read_dimension, read_stages
from proxemic.studies.tuning.stages import StageSearch, check_stages, first_values, shares, stage_values

WARPED = read_stages(load_space("WarpedSoftmaxLoss"), "WarpedSoftmaxLoss")


def test_stages_share_the_trials() -> None:
    stages = (Stage({}, {}, share=0.4), Stage({}, {}, share=0.6))
    assert [shares(stages, trials) for trials in (50, 7, 2)] == [[20, 30], [3, 4], [1, 1]]
    assert shares((Stage({}, {}), Stage({}, {}), Stage({}, {})), 4) == [1, 1, 2]
    assert shares((Stage({}, {}, share=0.99), Stage({}, {})), 3) == [2, 1]
    with pytest.raises(ValueError, match="--trials is 1, but must be at least 2"):
        shares(stages, 1)


def test_values_of_another_recipe_by_stage() -> None:
    recipe = {
        "optim": {"lr": 0.1},
        "loss": {"init_args": {"temperature": 2.0, "k1": 0.9}},
        "second_phase": {"loss": {"init_args": {"k1": 0.3}}, "optim": {"lr": 0.01}},
    }
    assert first_values(recipe, WARPED) == [
        {"optim.lr": 0.1, "loss.temperature": 2.0},
        {"loss.k1": 0.3, "optim.lr": 0.01},
    ]
    assert first_values({"optim": {"lr": 0.1}}, WARPED)[1] == {}  # those of its only phase would be no continuation


def test_a_key_that_the_recipe_has_not(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images", classes=1, images=1))
    stages = (Stage({"loss.alhpa": read_dimension({"low": 1, "high": 2}, "")}, {}),)
    with pytest.raises(UserError, match=r"search space mine.yaml, stage 1, does not fit .* did you mean --loss.alpha"):
        check_stages(recipe, (), stages, "mine.yaml")


def test_the_phases_of_a_recipe_become_the_stages() -> None:
    base = {"training": {"epochs": 50}, "second_phase": {"epochs": 30}}
    stages = WARPED
    first = stage_values(base, stages, 1, {})
    second = stage_values(base, stages, 2, {"loss.temperature": 3.0})
    assert (first["training.epochs"], second["training.epochs"]) == (20, 30)
    assert first["second_phase"] is second["second_phase"] is None
    assert second["loss.temperature"] == 3.0
    assert (first["loss.f1"], second["loss.f1"]) == ("torch.positive", None)


def test_the_second_stage_does_not_warm_up_again() -> None:
    base = {"training": {"epochs": 50, "warmup_epochs": 5}, "second_phase": None}
    stages = WARPED
    assert "training.warmup_epochs" not in stage_values(base, stages, 1, {})
    assert stage_values(base, stages, 2, {})["training.warmup_epochs"] == 0


@pytest.fixture
def stage(tmp_path: Path) -> StageSearch:
    directory = TuningDirectory(tmp_path / "out")
    return StageSearch(directory, 1, Stage({}, {}), {"training.epochs": 1}, "map@r")


TRIAL = Trial(0, {"optim.lr": 0.1}, lambda *_: None)


def test_what_ends_a_trial_and_what_ends_the_search(stage: StageSearch, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Exception] = []

    def run_job(job: Job, **_: Any) -> dict[str, Any]:
        assert job.flags == ("--training.epochs", "1", "--optim.lr", "0.1", "--evaluation.start", "false")
        if raised:
            raise raised.pop()
        return {"validation": {"map@r": 0.5}}

    monkeypatch.setattr(stages_module, "run_job", run_job)
    run = stage.directory.runs(1, 0, 1)[0]
    run.mkdir(parents=True)  # killed before it wrote its recipe
    assert stage.objective(TRIAL) == 0.5
    assert not run.exists()
    raised.append(TrainingDiverged("The loss became nan."))
    with pytest.raises(TrialFailed, match=r"^The loss became nan\.$"):
        stage.objective(TRIAL)
    for error in (UserError("The disk is full."), Interrupted("Stopped.")):
        raised.append(error)
        with pytest.raises(type(error), match=str(error)):
            stage.objective(TRIAL)


def test_weights_that_are_not_on_this_machine_are_trained_again(
    stage: StageSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    best, trained = FinishedTrial(3, "complete", 0.5, {"optim.lr": 0.1}, 1.0), list[list[str]]()

    def run_job(job: Job, **_: Any) -> dict[str, Any]:
        trained.append(sorted(path.name for path in job.out.glob("*")))
        job.out.mkdir(parents=True, exist_ok=True)
        for name in ("recipe.yaml", "metrics.json", "loss.safetensors"):
            (job.out / name).touch()
        return {}

    monkeypatch.setattr(stages_module, "run_job", run_job)
    stage.directory.path.mkdir()
    (run,) = stage.weights(best)
    assert (run, trained) == (stage.directory.runs(1, 3, 1)[0], [[]])
    assert stage.weights(best) == [run]
    assert len(trained) == 1
    (run / "loss.safetensors").unlink()  # as the runs of a resumed search are, once another trial was better
    stage.weights(best)
    for name in ("loss.safetensors", "metrics.json"):
        (run / name).unlink()
    stage.weights(best)  # interrupted, so that it goes on
    assert trained == [[], [], ["recipe.yaml"]]
