"""The reality check on a few images: its splits, its averages, and how it resumes."""

import csv
import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.nn.functional import normalize

import warm
from command_line import Here, assert_refused, start_with_workers
from images import write_folder, write_recipe
from leftovers import killed_at
from proxemic.data import OwnImages, Preprocessing
from proxemic.metrics import retrieval_metrics
from proxemic.models import load_model
from proxemic.recipes.reader import read_recipe

SMALL = ["--trials", "2", "--repeats", "1", "--folds", "2", "--embedding-size", "8", "--workers", "2"]
# Nothing is better by so much, so that both phases end after two epochs, of the three that they may have.
PHASES = ["--training.epochs", "6", "--training.loggers", "[]", "--second_phase.epochs", "3"]
PHASES += ["--training.until_plateau.patience", "1", "--training.until_plateau.min_improvement", "1"]
PHASES += ["--model.normalize", "false"]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reality")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


@pytest.fixture(scope="module")
def checked(recipe: Path) -> Path:
    """In two phases: stopped by Ctrl-C in the first trial, killed in the second, then resumed to its end."""
    out = recipe.parent / "out"
    process = start_with_workers("reality-check", recipe, *PHASES, *SMALL, "--out", out)
    wait_for(process, out, "tiny/trials/0/fold-*/checkpoints/last.ckpt")
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    # Not how one fold goes on, which would evaluate it on the test classes.
    assert f"continue with proxemic reality-check --resume {out}" in errors
    assert "proxemic train" not in errors

    process = start_with_workers("reality-check", "--resume", out)
    checkpoint = wait_for(process, out, "tiny/trials/[1-9]/fold-*/checkpoints/last.ckpt")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    begun = [checkpoint.parents[1] / "environment.json", *out.glob("tiny/trials/*/fold-*/metrics.json")]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in begun]
    process = start_with_workers("reality-check", "--resume", out)
    output, errors = process.communicate(timeout=1200)
    assert process.returncode == 0, errors
    # The running trial was resumed at once, not restarted, and the first one was finished.
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in begun] == before
    assert len(before) in (3, 4)
    assert "| separated MAP@R |" in output.replace("  ", " ")
    assert output.count("2 of 2") == 1
    return out


def wait_for(process: warm.Process, out: Path, pattern: str) -> Path:
    while (path := next(out.glob(pattern), None)) is None:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return path


def test_the_folds_share_the_training_classes_and_none_sees_the_test(checked: Path, recipe: Path) -> None:
    test = set(OwnImages(recipe.parent / "images", 0.34, 0.0).load().test_images.class_names)
    data = [yaml.safe_load((checked / "tiny" / "recipes" / f"fold-{fold}.yaml").read_text()) for fold in range(2)]
    assert [item["data"]["init_args"]["fold"] for item in data] == [0, 1]
    assert {item["evaluation"]["select_on"] for item in data} == {"validation"}
    for metrics in checked.glob("tiny/trials/*/fold-*/metrics.json"):
        assert "test" not in json.loads(metrics.read_text())
    complete = yaml.safe_load(next(checked.glob("tiny/repeats/0/complete/recipe.yaml")).read_text())
    assert complete["model"]["embedding_size"] == 16
    assert complete["evaluation"]["select_on"] == "last"
    assert complete["data"]["init_args"]["validation_fraction"] == 0
    proxies = load_file(checked / "tiny/repeats/0/complete/loss.safetensors")["proxies"]
    assert len(proxies) == 12 - len(test)


def test_every_kind_is_what_it_says(checked: Path, recipe: Path) -> None:
    results = json.loads((checked / "tiny/repeats/0/results.json").read_text())
    folds = [checked / f"tiny/repeats/0/fold-{fold}" for fold in range(2)]
    separated = [json.loads((fold / "metrics.json").read_text())["test"]["map@r"] for fold in folds]
    assert results["separated"]["map@r"] == pytest.approx(sum(separated) / 2)
    test = OwnImages(recipe.parent / "images", 0.34, 0.0).load().test_images
    parts = []
    for fold in folds:
        model, preprocessing = load_model(fold)
        transform = Preprocessing(**preprocessing).evaluation()
        with torch.no_grad():
            parts.append(model(torch.stack([transform(test.pictures[i]) for i in range(len(test))])))
    assert (parts[0].norm(dim=1) - 1).abs().max() > 0.1
    joined = retrieval_metrics(torch.cat([normalize(part) for part in parts], 1), test.labels)
    assert results["concatenated"]["map@r"] == pytest.approx(joined["map@r"], abs=1e-6)
    joined = retrieval_metrics(torch.cat(parts, 1), test.labels)
    assert results["concatenated unnormalized"]["map@r"] == pytest.approx(joined["map@r"], abs=1e-6)
    complete = json.loads((checked / "tiny/repeats/0/complete/metrics.json").read_text())
    assert results["complete"] == complete["test"]


def test_complete_is_trained_for_the_mean_epochs_of_both_phases(checked: Path) -> None:
    folds = [json.loads((checked / f"tiny/repeats/0/fold-{n}/metrics.json").read_text()) for n in range(2)]
    for fold in folds:
        assert fold["phases"] == [{"epochs": 2, "reason": "plateau"}] * 2
    second = sum(max(0, fold["epoch"] - 2) for fold in folds) / 2
    complete = yaml.safe_load((checked / "tiny/repeats/0/complete/recipe.yaml").read_text())
    # Means of up to 4 epochs, of which up to 2 are in the second phase, rounded up to a multiple of 5.
    assert complete["training"]["epochs"] == (10 if second else 5)
    assert (complete["second_phase"] or {"epochs": 0})["epochs"] == (5 if second else 0)
    assert complete["training"]["until_plateau"] is None
    history = (checked / "tiny/repeats/0/complete/history.csv").read_text().splitlines()
    assert len(history) == 1 + complete["training"]["epochs"]


def test_the_best_trial_of_both_phases_is_repeated(checked: Path) -> None:
    best, found = json.loads((checked / "tiny/best.json").read_text()), trials(checked / "tiny/trials")
    assert len(found) == 2
    assert best["value"] == pytest.approx(max(found.values()))
    assert {"loss.alpha", "optim.lr", "second_phase.optim.lr"} <= best["parameters"].keys()
    assert best["parameters"]["second_phase.optim.lr"] <= best["parameters"]["optim.lr"]
    repeated = read_recipe(checked / "tiny/repeats/0/fold-1/recipe.yaml").recipe
    assert repeated.second_phase is not None
    assert repeated.second_phase.optim.lr == best["parameters"]["second_phase.optim.lr"]
    assert len((checked / "tiny/trials.csv").read_text().splitlines()) == 3


def trials(folder: Path) -> dict[Path, float]:
    """Return the mean result of the folds of each trial."""
    found = {}
    for trial in folder.iterdir():
        folds = [json.loads((trial / f"fold-{fold}" / "metrics.json").read_text()) for fold in range(2)]
        found[trial] = sum(fold["validation"]["map@r"] for fold in folds) / 2
    return found


def test_results_are_written_and_a_finished_check_is_only_read(checked: Path, here: Here) -> None:
    with (checked / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["kind"] for row in rows} == {"separated", "concatenated", "concatenated unnormalized", "complete"}
    table = (checked / "table.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in checked.glob("tiny/repeats/**/*")}
    killed_at(checked / "table.md")
    result = here("reality-check", "--resume", checked, "--against", "paper")
    assert result.returncode == 0
    assert (checked / "against-paper.md").read_text() in result.stdout
    assert "These name no row" in result.stdout
    assert not list(checked.rglob("*.tmp"))
    assert all(line in result.stdout for line in table.splitlines()[2:4])
    assert {path: path.stat().st_mtime_ns for path in checked.glob("tiny/repeats/**/*")} == before
    shown = here("reality-check", "--resume", checked, "--dry-run")
    assert shown.returncode == 0
    assert "tiny.yaml: 2 of 2 trials of 2 folds finished, 1 of 1 repetitions" in shown.stdout
    # Large files are kept only of the repetitions.
    assert not list(checked.glob("*/trials/**/*.safetensors"))
    assert not list(checked.rglob("checkpoints"))
    assert len(list(checked.glob("tiny/repeats/0/*/model.safetensors"))) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ["no recipe", "proxemic recipes list"]),
        (["glyphs", "--trials", "0"], ["trials is 0"]),
        (["glyphs", "--folds", "1"], ["folds is 1"]),
        (["glyphs", "--embedding-size", "0"], ["embedding_size is 0"]),
        (["glyphs", "glyphs"], ["their names must differ"]),
        (["glyhps"], ["glyhps", "glyphs"]),
        (["glyphs", "--workers", "0"], ["workers is 0"]),
        (["glyphs", "--space", "ProxyAncorLoss"], ["no search space 'ProxyAncorLoss' (did you mean ProxyAnchorLoss?)"]),
        (
            ["glyphs/mpa-ap", "--space", "SphereFaceLoss"],
            ["glyphs/mpa-ap: The search space SphereFaceLoss does not fit the recipe", "loss.scale"],
        ),
        (["glyphs", *["--space", "ProxyAnchorLoss"] * 2], ["--space is given 2 times", "each of the 1 recipes"]),
        (["cub/realty-check/*"], ["No recipe is called 'cub/realty-check/*'"]),
    ],
)
def test_bad_input_is_one_sentence(here: Here, tmp_path: Path, words: list[str], said: list[str]) -> None:
    assert_refused(here("reality-check", *words, "--out", tmp_path / "out"), said)


def test_all_recipes_are_read_before_any_is_trained(here: Here, tmp_path: Path, recipe: Path) -> None:
    wrong = recipe.with_name("wrong.yaml")
    wrong.write_text(recipe.read_text().replace("proxies_per_class", "proxies_for_class"))
    assert_refused(here("reality-check", recipe, wrong, "--out", tmp_path / "out"), ["proxies_for_class"])
    assert_refused(here("reality-check", recipe, "--metric", "map@9", "--out", tmp_path / "out"), ["map@9"])
    words = ["--data.root", tmp_path / "none", "--out", tmp_path / "out"]
    assert_refused(here("reality-check", recipe, *words), [str(tmp_path / "none")])
    assert not (tmp_path / "out").exists()


def test_a_dry_run_writes_nothing(here: Here, tmp_path: Path, recipe: Path) -> None:
    result = here("reality-check", recipe, *SMALL, "--out", tmp_path / "out", "--dry-run")
    assert result.returncode == 0, result.stderr
    assert "tiny.yaml: 0 of 2 trials of 2 folds finished, 0 of 1 repetitions" in result.stdout
    assert not (tmp_path / "out").exists()


def test_a_directory_of_something_else_is_left_alone(here: Here, tmp_path: Path, checked: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    assert_refused(here("reality-check", "glyphs", "--out", tmp_path), ["holds other files"])
    assert_refused(here("reality-check", "--resume", tmp_path), ["does not hold a reality check"])
    assert_refused(here("reality-check", "glyphs", "--out", checked), ["holds a reality check with another recipes"])
    for words in (["glyphs"], ["--trials", "3"]):
        assert_refused(here("reality-check", *words, "--resume", checked), ["resume takes all settings"])
