"""``proxemic tune``: real searches of tiny trainings, stopped and gone on with; and bad input, one sentence each."""

import json
import os
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import warm
from command_line import Here, assert_refused, csv_rows, start_with_workers
from images import write_folder, write_recipe
from leftovers import killed_at
from proxemic.recipes.reader import read_recipe
from proxemic.studies.tuning import TuningResult, tune
from proxemic.studies.tuning.directory import TuningOptions, tuning_directory


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images", classes=9))


SPACE = """\
optim.lr: {factor: 10, log: true}
loss.alpha: {choices: [16, 32]}
"""


@pytest.fixture(scope="module")
def space(recipe: Path) -> Path:
    path = recipe.parent / "space.yaml"
    path.write_text(SPACE)
    return path


def rows(out: Path) -> list[dict[str, str]]:
    return csv_rows(out / "trials.csv")


def history(run: Path) -> list[int]:
    return [int(float(row["epoch"])) for row in csv_rows(run / "history.csv")]


@dataclass(frozen=True)
class Searched:
    """A finished search, with what it reported."""

    result: TuningResult
    lines: list[str]
    words: list[str | Path]


@pytest.fixture(scope="module")
def searched(recipe: Path, space: Path) -> Searched:
    out = recipe.parent / "searched"
    lines: list[str] = []
    result = tune(
        recipe,
        out=out,
        overrides={"training.epochs": 2},
        metric="recall@1",
        space=str(space),
        trials=3,
        pruner="median",
        report=lines.append,
    )
    words = ["tune", "--recipe", recipe, "--space", space, "--out", out, "--trials", "3", "--training.epochs", "2"]
    return Searched(result, lines, [*words, "--metric", "recall@1", "--pruner", "median"])


def test_a_search_from_begin_to_end(searched: Searched) -> None:
    result, out = searched.result, searched.result.out
    assert [line.split()[1] for line in searched.lines] == ["0", "1", "2"]
    assert "recall@1" in searched.lines[0]
    assert "3 of 3" in searched.lines[2]

    trials, best = rows(out), json.loads((out / "best.json").read_text())
    assert [row["state"] for row in trials] == ["complete"] * 3
    assert [str(trial.value) for trial in result.trials] == [row["value"] for row in trials]
    assert trials[0]["optim.lr"] == "0.002"  # the recipe's own comes first
    assert result.value == best["value"] == max(float(row["value"]) for row in trials)
    number = next(row["trial"] for row in trials if float(row["value"]) == best["value"])
    assert best["trial"] == int(number)
    assert result.parameters == best["parameters"]
    assert result.best_recipe == out / "best.yaml"
    found = yaml.safe_load((out / "best.yaml").read_text())
    assert found["optim"]["lr"] == best["parameters"]["optim.lr"]
    assert found["loss"]["init_args"]["alpha"] == best["parameters"]["loss.alpha"]
    assert found["evaluation"]["metric"] == "recall@1"
    read_recipe(out / "best.yaml")
    for plot in ("importance.png", "slices.png"):
        assert (out / plot).read_bytes().startswith(b"\x89PNG")

    for row in trials:
        run = out / "trials" / row["trial"]
        metrics = json.loads((run / "metrics.json").read_text())
        assert "test" not in metrics  # never looked at
        assert metrics["validation"]["recall@1"] == float(row["value"])
        assert history(run) == [1, 2]
        kept = row["trial"] == number
        assert (run / "model.safetensors").exists() == (run / "checkpoints" / "last.ckpt").exists() == kept


def test_a_finished_search_is_only_read(searched: Searched, here: Here) -> None:
    """The command with the same flags continues the study that the function began."""
    out, words = searched.result.out, searched.words
    before = {path: path.stat().st_mtime_ns for path in (out / "trials").rglob("*")}
    killed_at(out / "best.yaml")
    again = here(*words)
    assert again.returncode == 0, again.stderr
    assert f"proxemic train --recipe {out}/best.yaml" in again.stdout.splitlines()[-1]
    assert not list(out.rglob("*.tmp"))
    assert {path: path.stat().st_mtime_ns for path in (out / "trials").rglob("*")} == before
    words += ["--seed", "1", "--optim.loss_lr", "0.5"]
    assert_refused(here(*words), ["another flags, seed, recipe than base.yaml", f"--resume {out}"])


def test_a_budget_is_counted_in_epochs_and_other_recipes_are_tried_first(
    recipe: Path, tmp_path: Path, here: Here
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(recipe.read_text().replace("lr: 0.002", "lr: 0.0005"))
    around = tmp_path / "around.yaml"
    around.write_text(recipe.read_text().replace("lr: 0.002", "lr: 0.005"))
    (tmp_path / "space.yaml").write_text("optim.lr: {factor: 10, log: true}\n")
    words = ["--space", tmp_path / "space.yaml", "--training.epochs", "2", "--budget", "3", "--out", tmp_path / "out"]
    result = here("tune", "--recipe", recipe, *words, "--around", around, "--first", other)
    assert result.returncode == 0, result.stderr
    made = rows(tmp_path / "out")
    assert [row["optim.lr"] for row in made[:2]] == ["0.002", "0.0005"]
    assert [row["epochs"] for row in made] == ["2", "2", "2"], "as many epochs as three complete trials"
    assert "6 of 6 epochs" in result.stdout
    content = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert content["space"] == {"optim.lr": {"low": 0.0005, "high": 0.05, "log": True, "points": 3}}


def test_a_trial_is_not_to_be_evaluated_on_the_test_classes(searched: Searched, tmp_path: Path, here: Here) -> None:
    shutil.copytree(searched.result.out, tmp_path / "out")
    trial = tmp_path / "out" / "trials" / "0"
    for left in ("metrics.json", "recipe.yaml"):  # finished, then as if it were under way
        refused = here("train", "--resume", trial)
        assert_refused(refused, ["is a trial of proxemic tune", "must not be evaluated on the test classes"])
        if left == "metrics.json":
            (trial / left).unlink()


def wait_for_rows(run: Path, count: int, process: warm.Process | None = None) -> None:
    end = time.monotonic() + 1200
    while time.monotonic() < end:
        assert process is None or process.poll() is None, process.communicate()
        if (run / "history.csv").exists() and len(history(run)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{run} did not begin")


def test_workers_that_are_killed_and_a_search_that_is_stopped_go_on(
    recipe: Path, space: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.studies.tuning.study.GRACE", 1)
    out = tmp_path / "out"
    words = ["tune", "--recipe", recipe, "--space", space, "--out", out, "--trials", "2", "--training.epochs", "20"]
    process = start_with_workers(*words, "--workers", "2")
    for name in ("0", "1"):
        wait_for_rows(out / "trials" / name, 2, process)  # both at a time
    process.kill()  # its workers end with it
    process.communicate()

    begun = {"0", "1"}
    first_rows = {name: (out / "trials" / name / "history.csv").read_text().splitlines()[1] for name in begun}
    stopped_itself = threading.Event()

    def interrupt() -> None:
        # Either may be taken up first; in the middle of the second one.
        while not (first := [name for name in begun if (out / "trials" / name / "metrics.json").exists()]):
            assert not stopped_itself.is_set()
            time.sleep(0.01)
        (second,) = begun - set(first)
        run = out / "trials" / second
        more = len(history(run)) + 1
        while len(history(run)) < more:
            assert not stopped_itself.is_set()
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        interrupting = pool.submit(interrupt)
        stopped = here("tune", "--resume", out)
        stopped_itself.set()
    interrupting.result()
    assert_refused(stopped, ["Stopped", f"proxemic tune --resume {out}"])
    (first,) = [line.split()[1] for line in stopped.stdout.splitlines() if line.startswith("trial")]

    finished = here("tune", "--resume", out)
    assert finished.returncode == 0, finished.stderr
    (second,) = [line.split()[1] for line in finished.stdout.splitlines() if line.startswith("trial")]
    assert {first, second} == begun
    assert [row["state"] for row in rows(out)] == ["complete", "complete"]
    for name, starts in ((first, 2), (second, 3)):
        run = out / "trials" / name
        assert history(run) == list(range(1, 21))
        # Only the first start was from the beginning: the first epoch took the seconds that it took then.
        assert (run / "history.csv").read_text().splitlines()[1] == first_rows[name]
        # A log of each start; a worker that seemed dead on a busy machine has started once more.
        assert len([*(run / "logs" / "tensorboard" / "version_0").iterdir()]) >= starts


def test_what_a_flag_gives_is_not_searched(recipe: Path, space: Path, tmp_path: Path, here: Here) -> None:
    out = tmp_path / "out"
    words = ["tune", "--recipe", recipe, "--space", space, "--out", out, "--trials", "1", "--training.epochs", "1"]
    result = here(*words, "--loss.alpha", "20")
    assert result.returncode == 0, result.stderr
    assert "Not tuned, because flags set it: loss.alpha." in result.stdout
    assert [set(row) & {"optim.lr", "loss.alpha"} for row in rows(out)] == [{"optim.lr"}]
    trials = [yaml.safe_load(path.read_text()) for path in (out / "trials").glob("*/recipe.yaml")]
    assert [trial["loss"]["init_args"]["alpha"] for trial in trials] == [20]
    words = ["--recipe", recipe, "--space", space, "--loss.alpha=20", "--optim.lr=1", "--out", tmp_path / "other"]
    assert_refused(here("tune", *words), ["Flags give optim.lr, loss.alpha", "leave out one of these flags"])


REFUSED: dict[str, tuple[list[str], list[str]]] = {
    "no recipe": ([], ["--recipe is missing"]),
    "unknown recipe": (["--recipe", "glyps"], ["did you mean glyphs"]),
    "no trials": (["--recipe", "tiny.yaml", "--trials", "0"], ["trials is 0", "at least 1"]),
    "no budget": (["--recipe", "tiny.yaml", "--budget", "0"], ["budget is 0.0", "above 0"]),
    "budget and trials": (["--recipe", "tiny.yaml", "--budget", "4", "--trials", "8"], ["--budget and --trials both"]),
    "budget of a grid": (["--recipe", "tiny.yaml", "--budget", "4", "--sampler", "grid"], ["--sampler grid both set"]),
    "no workers": (["--recipe", "tiny.yaml", "--workers", "0"], ["workers is 0", "at least 1"]),
    "unknown sampler": (["--recipe", "tiny.yaml", "--sampler", "gp"], ["gp", "random"]),
    "unknown space": (["--recipe", "tiny.yaml", "--space", "ProxyAncorLoss"], ["did you mean ProxyAnchorLoss"]),
    "space without file": (["--recipe", "tiny.yaml", "--space", "no.yaml"], ["no.yaml", "not a readable"]),
    "space of another loss": (
        ["--recipe", "tiny.yaml", "--space", "HISTLoss"],
        ["search space HISTLoss does not fit the recipe", "loss.tau"],
    ),
    "choice on test": (
        ["--recipe", "tiny.yaml", "--evaluation.select_on", "test"],
        ["select_on is test", "set --evaluation.select_on validation", "validation_fraction above 0"],
    ),
    "no choice": (["--recipe", "tiny.yaml", "--evaluation.select_on", "last"], ["select_on is last", "validation"]),
    "unknown metric": (["--recipe", "tiny.yaml", "--metric", "map"], ["'map'", "map@r"]),
    "storage": (["--recipe", "tiny.yaml", "--storage", "here.db"], ["here.db", "Optuna storage URL"]),
    "resume with more": (["--resume", "out", "--trials", "3"], ["resume takes all settings", "leave out trials"]),
    "resume of nothing": (["--resume", "nowhere"], ["nowhere", "does not hold a study"]),
    "out is a file": (["--recipe", "tiny.yaml", "--out", "tiny.yaml"], ["is a file"]),
    "out is taken": (["--recipe", "tiny.yaml", "--out", "images"], ["other files than those of a study"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, recipe: Path, here: Here) -> None:
    before = sorted(recipe.parent.iterdir())
    words, expected = REFUSED[case]
    assert_refused(here("tune", *words, cwd=recipe.parent), expected)
    assert sorted(recipe.parent.iterdir()) == before


def test_without_validation_classes_the_search_ends_at_once(recipe: Path, tmp_path: Path, here: Here) -> None:
    words: list[Any] = ["--recipe", recipe, "--out", tmp_path / "out", "--data.validation_fraction", "0"]
    assert_refused(here("tune", *words), ["no validation classes", "data.validation_fraction is 0"])


def test_a_password_is_not_written(recipe: Path, space: Path, tmp_path: Path, here: Here) -> None:
    out = tmp_path / "out"
    options = TuningOptions(str(recipe), [], yaml.safe_load(SPACE), 1, "s", storage="mysql://me:***@host/x")
    tuning_directory(out).begin(options, {out / "base.yaml": read_recipe(recipe).yaml})
    assert_refused(here("tune", "--resume", out), ["password", "give --storage again"])
    assert_refused(here("tune", "--resume", out, "--storage", "sqlite:///x.db"), ["mysql://me:***@host/x", "same"])


def test_images_that_are_gone_cost_no_trial(recipe: Path, space: Path, tmp_path: Path, here: Here) -> None:
    """They are no fault of the hyper-parameters: nothing is noted, and the study continues when they are back."""
    images, out, begun = recipe.parent / "images", tmp_path / "out", tmp_path / "begun"
    words: list[Any] = ["--recipe", recipe, "--space", space, "--trials", "1", "--training.epochs", "1"]
    flags = ["--training.epochs", "1"]
    options = TuningOptions(str(recipe), flags, {"optim.lr": {"low": 0.001, "high": 0.01}}, 1, "begun")
    tuning_directory(begun).begin(options, {begun / "base.yaml": read_recipe(recipe, flags).yaml})
    hidden = images.rename(images.with_name("hidden"))
    try:
        assert_refused(here("tune", *words, "--out", out), [str(images)])
        assert not out.exists()
        assert_refused(here("tune", "--resume", begun), [str(images)])
        assert not (begun / "trials.csv").exists()
    finally:
        hidden.rename(images)
    assert here("tune", "--resume", begun).returncode == 0
    assert [row["state"] for row in rows(begun)] == ["complete"]
