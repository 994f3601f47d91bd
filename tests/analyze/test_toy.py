"""``proxemic analyze toy`` as a user runs it."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from command_line import Here, assert_refused, csv_rows, warm_proxemic
from comparisons import interval
from proxemic.analysis.toy import Scene
from proxemic.analyze._toy import _means, _projection
from proxemic.studies.finished import FinishedRun
from proxemic.studies.groups import repetitions


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A flat run and one in space, with snapshots."""
    base = tmp_path_factory.mktemp("toy")
    names = ["warped-softmax", "data-wise"]
    for name in names:
        words = ["--training.epochs", "1", "--model.width", "4", "--training.loggers", "[]"]
        result = warm_proxemic("train", "--recipe", f"toy/{name}", "--out", base / name, *words)
        assert result.returncode == 0, result.stderr
        assert "Test: 10 classes, TRAINED ON (closed set), 500 queries" in result.stdout
    return [base / name for name in names]


def test_side_by_side_with_an_animation(runs: list[Path], tmp_path: Path, here: Here) -> None:
    result = here("analyze", "toy", *runs, "--diagram", "--out", tmp_path / "toy")
    assert result.returncode == 0, result.stderr
    assert "projected" not in result.stdout
    kinds = ("png", "svg", "csv")
    expected = {f"toy{name}.{kind}" for name in ("", "-diagram") for kind in kinds} | {"toy.gif"}
    assert {path.name for path in tmp_path.iterdir()} == expected
    lines = csv_rows(tmp_path / "toy-diagram.csv")
    first, last = (load_file(runs[0] / "snapshots" / f"epoch-000{number}.safetensors") for number in (0, 1))
    for when, shot in (("before", first), ("after", last)):
        places = [float(row["x"]) for row in lines if (row["when"], row["kind"]) == (when, "image")]
        assert places == pytest.approx(shot["embeddings"][:, 0].tolist(), abs=1e-5)
    with Image.open(tmp_path / "toy.gif") as film:
        assert (film.n_frames, film.info["loop"]) == (2, 0)  # type: ignore[attr-defined]
    rows = csv_rows(tmp_path / "toy.csv")
    first = FinishedRun(runs[0])
    images = [row for row in rows if row["run"] == "warped-softmax" and row["kind"] == "image"]
    places = first.embed(first.splits.train)
    assert [float(row["x"]) for row in images] == pytest.approx(places[:, 0].tolist(), abs=1e-5)
    assert {row["z"] for row in images} == {""}
    deep = [row for row in rows if row["run"] == "data-wise"]
    assert sum(row["kind"] == "proxy" for row in deep) == 10
    assert all(sum(float(row[axis]) ** 2 for axis in "xyz") == pytest.approx(1, abs=1e-4) for row in deep)


def test_forces_over_the_training(run: Path, runs: list[Path], tmp_path: Path, here: Here) -> None:
    result = here("analyze", "forces", runs[1], "--out", tmp_path / "f")
    assert result.returncode == 0, result.stderr
    rows = [(row["training"], row["epoch"]) for row in csv_rows(tmp_path / "f-training.csv")]
    assert rows == [("data-wise", str(epoch)) for epoch in range(2)]
    assert_refused(here("analyze", "forces", run), ["AllPairMultiProxyAnchorLoss", "one proxy per class"])


def test_many_dimensions_are_projected_and_it_says_so(run: Path, tmp_path: Path, here: Here) -> None:
    result = here("analyze", "toy", run, "--out", tmp_path / "toy")
    assert result.returncode == 0, result.stderr
    assert "16 dimensions projected to 2 by PCA, which keep " in result.stdout
    assert "No animation" in result.stdout
    assert {path.suffix for path in tmp_path.iterdir()} == {".png", ".svg", ".csv"}


def test_without_proxies_and_animation(pairwise: Path, tmp_path: Path, here: Here) -> None:
    result = here("analyze", "toy", pairwise, "--no-animation", "--out", tmp_path / "toy")
    assert result.returncode == 0, result.stderr
    assert "animation" not in result.stdout
    assert {row["kind"] for row in csv_rows(tmp_path / "toy.csv")} == {"image"}


def test_refused(run: Path, runs: list[Path], tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "toy", run, runs[0]), ["different classes", "one by one"])
    shutil.copytree(runs[0], tmp_path / "copy")
    copied = here("analyze", "toy", runs[0], tmp_path / "copy")
    assert_refused(copied, ["same recipe and the same seed"])
    assert copied.stdout == ""
    assert_refused(here("analyze", "toy", run, "--diagram"), ["kept no snapshots", "proxemic.training.Snapshots"])


def test_seeds_have_means_and_pairs() -> None:
    runs: Any = [
        SimpleNamespace(path=Path(f"{name}/{seed}"), name=name, setting=name, seed=seed)
        for name in ("plain", "warped")
        for seed in (0, 1)
    ]
    ratios = dict(zip((run.path for run in runs), (3.0, 5.0, 4.0, 8.0), strict=True))
    separations = {path: {"ratio": ratio} for path, ratio in ratios.items()}
    means = _means(repetitions(runs), separations)
    pairs = {"plain: mean": (3, 5), "warped: mean": (4, 8), "warped less plain, paired": (1, 3)}
    for (title, pair), (name, row) in zip(pairs.items(), means.items(), strict=True):
        assert name.startswith(title)
        assert (row["ratio"].mean, row["ratio"].half_width) == pytest.approx(interval(*pair))
    assert _means(repetitions(runs[::2]), separations) == {}, "one seed alone has no mean"


def test_one_dimension_is_drawn_as_a_line() -> None:
    scene = Scene(torch.tensor([[1.0], [3.0]]), torch.tensor([0, 1]), torch.tensor([[[1.0]], [[3.0]]]))
    flatten, note = _projection(scene)
    assert note == "1 dimension, drawn as a line."
    flat = flatten(scene)
    assert flat.embeddings.tolist() == [[1.0, 0.0], [3.0, 0.0]]
    assert flat.proxies is not None
    assert flat.proxies.tolist() == [[[1.0, 0.0]], [[3.0, 0.0]]]
