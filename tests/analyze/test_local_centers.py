"""``proxemic analyze local-centers`` as a user runs it."""

import json
from pathlib import Path

import numpy as np
import pytest

from command_line import Here, assert_refused, warm_proxemic
from comparisons import interval


@pytest.fixture(scope="module")
def centers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two short runs with two proxies per class."""
    runs = [tmp_path_factory.mktemp("centers") / f"seed-{seed}" for seed in (0, 1)]
    for seed, run in enumerate(runs):
        words = ["--recipe", "glyphs-small/mpa", "--training.epochs", "1", "--seed", str(seed), "--training.loggers=[]"]
        result = warm_proxemic(
            "train",
            *words,
            "--loss.proxies_per_class",
            "2",
            "--evaluation.start",
            "false",  # whose features one epoch is not better than, and which have no proxies
            "--model.width",
            "4",
            "--data.train_classes",
            "24",
            "--data.test_classes",
            "8",
            "--out",
            run,
        )
        assert result.returncode == 0, result.stderr
    return runs


def test_local_centers_of_one_run_and_of_several(centers: list[Path], tmp_path: Path, here: Here) -> None:
    data = tmp_path / "data.json"
    one = here("analyze", "local-centers", centers[0], "--draws", "1", "--shuffles", "20")
    assert one.returncode == 0, one.stderr
    assert "beyond chance" not in one.stdout
    log = centers[0].with_name("seed-0.log")  # as proxemic compare leaves it beside a run
    log.write_text("training\n")
    both = here("analyze", "local-centers", *centers, log, "--draws", "1", "--shuffles", "20", "--json", data)
    assert both.returncode == 0, both.stderr
    found = json.loads(data.read_text())
    assert list(found) == [str(run) for run in centers]
    means = both.stdout[both.stdout.index("beyond chance") :]
    for name in ("family", "weight", "slant"):
        values = [run[name]["information"] - run[name]["chance"] for run in found.values()]
        assert all(0 <= run[name]["information"] <= run[name]["most"] <= 1 for run in found.values())
        (line,) = (line for line in means.splitlines() if name in line)
        mean, half = (round(number, 3) + 0.0 for number in interval(*values))  # never −0.000
        assert f"{mean:.3f} ± {half:.3f}" in line
    for run in found.values():
        assert f"mean cosine between two of them {run['proxies']['cosine']:.4f}" in both.stdout
        assert f"{run['proxies']['used']:.2f} of the 2 proxies of a class" in both.stdout
        assert 1 <= run["proxies"]["used"] <= 2


def test_local_centers_need_groups_within_classes(run: Path, here: Here) -> None:
    assert_refused(here("analyze", "local-centers", run), [str(run), "have no attributes that differ within"])


def test_the_subclasses_of_a_table_of_vectors(tmp_path: Path, here: Here) -> None:
    generator = np.random.default_rng(0)
    # Each class has two clusters as far apart as classes are, the subclasses, but for some rows without one.
    places = generator.normal(size=(12, 2, 8))
    vectors = np.repeat(places.reshape(24, 8), 10, axis=0) + generator.normal(scale=0.05, size=(240, 8))
    np.save(tmp_path / "vectors.npy", vectors.astype(np.float32))
    rows = [f"{row // 20},{'' if row % 10 == 9 else row // 10}" for row in range(240)]
    (tmp_path / "labels.csv").write_text("\n".join(["label,subclass", *rows]) + "\n")
    run = tmp_path / "run"
    words = [
        *("--recipe", "own-vectors", "--data.root", tmp_path / "vectors.npy", "--data.labels", tmp_path / "labels.csv"),
        *("--loss", "SoftTripleLoss", "--loss.proxies_per_class", "2", "--loss.gamma", "1", "--training.epochs", "6"),
        *("--model.embedding_size", "8", "--evaluation.start", "false", "--batches.size", "64", "--out", run),
        *("--training.start_proxies", "k_means", "--training.loggers=[]", "--optim.loss_lr", "0.001"),
    ]
    trained = here("train", *words)
    assert trained.returncode == 0, trained.stderr
    data = tmp_path / "data.json"
    measured = here("analyze", "local-centers", run, "--draws", "2", "--shuffles", "20", "--json", data)
    assert measured.returncode == 0, measured.stderr
    (found,) = json.loads(data.read_text()).values()
    assert set(found) == {"subclass", "proxies"}
    assert found["subclass"]["information"] > 0.9  # of 1 bit
    assert found["proxies"]["used"] == 2
