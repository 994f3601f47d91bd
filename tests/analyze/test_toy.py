"""``proxemic analyze toy`` as a user runs it."""

import shutil
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file

from command_line import Here, assert_refused, csv_rows, warm_proxemic
from comparisons import interval
from proxemic.analyze import toy
from proxemic.studies.finished import FinishedRun


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


def test_seeds_have_means_and_pairs(softmax: list[Path], mean_proxy: list[Path], tmp_path: Path) -> None:
    runs = [*softmax, *mean_proxy]
    found = toy(runs, animation=False, out=tmp_path / "toy").figures
    plain, other = ([found.separations[run]["ratio"] for run in group] for group in (softmax, mean_proxy))
    pairs = {"softmax: mean": plain, "softmax-mean-proxy: mean": other}
    pairs["softmax-mean-proxy less softmax, paired"] = [
        after - before for before, after in zip(plain, other, strict=True)
    ]
    assert len(found.means) == 3
    for (title, pair), (name, row) in zip(pairs.items(), found.means.items(), strict=True):
        assert name.startswith(title)
        assert (row["ratio"].mean, row["ratio"].half_width) == pytest.approx(interval(*pair))
    alone = toy(runs[::2], animation=False, out=tmp_path / "toy").figures
    assert alone.means == {}, "one seed alone has no mean"


def test_one_dimension_is_drawn_as_a_line(tiny: Path, tmp_path: Path, here: Here) -> None:
    flags = ["--training.epochs", "1", "--model.embedding_size", "1", "--model.normalize", "false"]
    assert here("train", "--recipe", tiny, "--out", tmp_path / "run", *flags).returncode == 0
    result = here("analyze", "toy", tmp_path / "run", "--no-animation", "--out", tmp_path / "toy")
    assert "1 dimension, drawn as a line." in result.stdout
    rows = csv_rows(tmp_path / "toy.csv")
    run = FinishedRun(tmp_path / "run")
    signs = run.embed(run.train).flatten().sign().tolist()  # of length 1, as the loss compares cosines
    assert [float(row["x"]) for row in rows if row["kind"] == "image"] == signs
    assert {(row["y"], row["z"]) for row in rows} == {("0.0", "")}
