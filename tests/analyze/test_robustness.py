"""``proxemic analyze robustness`` as a user runs it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import Here, assert_refused, cells, csv_rows, warm_proxemic
from comparisons import interval
from proxemic.data.corruptions import CORRUPTIONS, CorruptedPixels, Corruption
from proxemic.runs.embed import embed_images
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.studies.finished import FinishedRun

FEW = ["--corruptions", "dropout,shear", "--severities", "2,5"]


@pytest.fixture(scope="module")
def grey(run: Path) -> Path:
    """It sees grey pictures, of other test classes."""
    flags = ["--images.channels=1", "--images.mean=[0.5]", "--images.std=[0.5]", "--data.test_fraction=0.5"]
    recipe = run.parent / "tiny.yaml"
    result = warm_proxemic("train", "--recipe", recipe, "--training.epochs", "1", "--out", run.parent / "grey", *flags)
    assert result.returncode == 0, result.stderr
    return run.parent / "grey"


def evaluated(run: FinishedRun, metric: str, corruption: Corruption | None) -> float:
    """The metric of one run alone, step by step."""
    images, preprocessing = run.test, run.recipe.images
    if corruption is not None:
        images = images.with_pixels(CorruptedPixels(images.pictures, corruption, preprocessing))
        preprocessing = replace(preprocessing, resize=None)
    embeddings = embed_images(run.model, images, preprocessing, batch_size=5)
    return evaluate_embeddings(embeddings, images, run.recipe.evaluation)[metric]


def table(output: str) -> dict[str, list[str]]:
    return {name: values for name, *values in cells(output)}


def test_the_values_are_those_of_each_run_alone(
    softmax: list[Path], pairwise: Path, tmp_path: Path, here: Here
) -> None:
    stem = tmp_path / "new" / "table"
    words = ["analyze", "robustness", softmax[1], pairwise, softmax[0], *FEW, "--seed", "3", "--metric", "map@r"]
    result = here(*words, "--out", stem)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in stem.parent.iterdir()) == ["table.csv", "table.png", "table.svg"]

    rows = csv_rows(stem.with_name("table.csv"))
    settings = [("none", 0), *((name, severity) for name in ("dropout", "shear") for severity in (2, 5))]
    assert [(row["run"], row["corruption"], int(row["severity"])) for row in rows] == [
        (str(path), *setting) for path in (*softmax, pairwise) for setting in settings
    ]
    opened = {path: FinishedRun(path) for path in (*softmax, pairwise)}
    for row in rows:
        path, severity = Path(row["run"]), int(row["severity"])
        corruption = Corruption(row["corruption"], severity, seed=3) if severity else None
        assert float(row["value"]) == pytest.approx(evaluated(opened[path], "map@r", corruption), abs=1e-6)
        assert row["metric"] == "map@r"
        assert row["group"] == ("pairwise" if path == pairwise else "softmax")
        assert row["seed"] == ("1" if path == softmax[1] else "0")
        if corruption is None:
            stored = json.loads((path / "metrics.json").read_text())["test"]["map@r"]
            assert float(row["value"]) == pytest.approx(stored, abs=1e-6)

    values = [[100 * float(row["value"]) for row in rows if row["run"] == str(path)] for path in (*softmax, pairwise)]
    shown = table(result.stdout)
    assert list(shown) == ["none", "dropout", "shear", "mean of these", "relative drop"]
    means = [[value[0], sum(value[1:3]) / 2, sum(value[3:]) / 2, sum(value[1:]) / 4] for value in values]
    for item in means:
        item.append(100 * (1 - item[3] / item[0]))
    for number, found in enumerate(shown.values()):
        first, second, alone = (mean[number] for mean in means)
        mean, half = interval(first, second)
        assert found == [f"{mean:.1f} ± {half:.1f}", f"{alone:.1f}"]


def test_the_seed_is_that_of_the_corruptions(softmax: list[Path], here: Here) -> None:
    words = ["analyze", "robustness", softmax[0], "--corruptions", "dropout", "--severities", "5", "--metric", "map@r"]
    first, again, other = (table(here(*words, "--seed", seed).stdout) for seed in ("3", "3", "4"))
    assert first == again != other


def test_hue_of_grey_images_is_left_out_with_a_note(grey: Path, here: Here) -> None:
    result = here("analyze", "robustness", grey, "--severities", "3", "--against", "paper")
    assert result.returncode == 0, result.stderr
    assert "These name no row of the papers' tables: `grey`." in result.stdout
    assert result.stdout.startswith(f"hue-and-saturation is left out: {grey} sees grey images.\n")
    assert list(table(result.stdout))[1:-2] == [name for name in CORRUPTIONS if name != "hue-and-saturation"]
    assert "±" not in result.stdout
    assert_refused(here("analyze", "robustness", grey, "--corruptions", "hue-and-saturation"), [str(grey), "grey"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--corruptions", "shear,blurr"], ["'blurr'", "defocus-blur"]),
        (["--severities", "0,3"], ["'0,3'", "1 (mild) to 5 (strong)"]),
        (["--metric", "recall@100", *FEW], ["recall@100", "recall@1, recall@2"]),
    ],
)
def test_bad_flags(flags: list[str], words: list[str], run: Path, tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "robustness", run, "--out", tmp_path / "table", *flags), words)
    assert not list(tmp_path.iterdir())


def test_runs_that_cannot_be_compared(run: Path, grey: Path, tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "robustness", run, grey), [str(run), str(grey), "different test images"])
    copy = shutil.copytree(run, tmp_path / "copy")
    assert_refused(here("analyze", "robustness", run, copy), [str(run), str(copy), "the same seed"])
    into_a_folder = here("analyze", "robustness", run, "--out", tmp_path)
    assert_refused(into_a_folder, [f"the folder {tmp_path}", f"{tmp_path / 'figure'}"])


def test_a_network_that_sees_too_little_is_told_before_the_work(run: Path, tmp_path: Path, here: Here) -> None:
    small = tmp_path / "small"
    shutil.copytree(run, small)
    recipe = (run / "recipe.yaml").read_text()
    assert "size: 28" in recipe
    (small / "recipe.yaml").write_text(recipe.replace("size: 28", "size: 7"))
    assert_refused(here("analyze", "robustness", small), ["at least 8 by 8 pixels"])


def test_an_interrupt_leaves_nothing(run: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def interrupted(*arguments: object) -> dict[str, float]:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return {"recall@1": 0.5}

    monkeypatch.setattr("proxemic.studies.corrupted.evaluate_embeddings", interrupted)
    assert_refused(here("analyze", "robustness", run, *FEW, "--out", tmp_path / "table"), ["Stopped at once"])
    assert not list(tmp_path.iterdir())


def test_a_metric_of_0_has_no_relative_drop(
    run: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.studies.corrupted.evaluate_embeddings", lambda *_: {"recall@1": 0.0})
    result = here("analyze", "robustness", run, *FEW, "--out", tmp_path / "table")
    assert table(result.stdout)["relative drop"] == ["–"]
