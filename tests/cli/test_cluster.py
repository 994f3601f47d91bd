"""``proxemic cluster`` as a user types it."""

import shutil
from pathlib import Path

from command_line import Here, assert_refused, warm_proxemic
from proxemic.retrieval import CalibratedThreshold, Calibration, Embedder


def test_pictures_into_a_table_and_into_links(folder: Path, run: Path, here: Here, tmp_path: Path) -> None:
    table = warm_proxemic("cluster", folder, "--model", run, "--min-size", "3", "--out", tmp_path / "groups.csv")
    assert table.returncode == 0, table.stderr
    assert table.stdout.startswith("72 pictures: ")
    assert "pairwise F1 " in table.stdout
    assert len((tmp_path / "groups.csv").read_text().splitlines()) == 73
    links = here(
        "cluster", folder, "--model", run, "--method", "agglomerative", "--threshold", "0.2", "--min-size", "3",
        "--out", tmp_path / "groups",
    )  # fmt: skip
    assert links.returncode == 0, links.stderr
    assert len([path for path in (tmp_path / "groups").rglob("*.png") if path.is_symlink()]) == 72
    again = here("cluster", folder, "--model", run, "--out", tmp_path / "groups")
    again.stderr = again.stderr.removeprefix(f"Looking at {folder}\n")
    assert_refused(again, ["exists: name a new folder"])


def test_a_model_without_thresholds_says_how_to_learn_them(folder: Path, run: Path, here: Here) -> None:
    result = here("cluster", folder, "--model", run, "--method", "agglomerative")
    result.stderr = result.stderr.removeprefix(f"Looking at {folder}\n")
    assert_refused(result, ["proxemic calibrate", "--threshold"])


def test_the_threshold_is_that_of_the_calibrated_model(folder: Path, run: Path, here: Here, tmp_path: Path) -> None:
    model = tmp_path / "run"
    shutil.copytree(run, model)
    learnt = CalibratedThreshold(0.01, 0.25, 0.2, 0.3, 0.009, 0.9, 0.8, 0.95)
    checksum = Embedder.load(model).checksum
    Calibration(checksum, "cosine", "photos", 30, 300, 0.95, (learnt,)).write(model)
    words = ("cluster", folder, "--model", model, "--method", "agglomerative", "--min-size", "3", "--out")
    assert here(*words, tmp_path / "learnt.csv").returncode == 0
    assert here(*words, tmp_path / "given.csv", "--threshold", "0.25").returncode == 0
    assert here(*words, tmp_path / "other.csv", "--threshold", "0.001").returncode == 0
    tables = [(tmp_path / f"{name}.csv").read_text() for name in ("learnt", "given", "other")]
    assert tables[0] == tables[1] != tables[2]
