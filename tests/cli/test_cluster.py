"""``proxemic cluster`` as a user types it."""

import math
import shutil
import subprocess
from pathlib import Path

from command_line import Here, assert_refused, warm_proxemic
from proxemic.retrieval import Calibration, Embedder


def cut_first(result: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    """Remove the first line, which says what the command is doing."""
    result.stderr = result.stderr.partition("\n")[2]
    return result


def test_pictures_into_a_table_and_into_links(folder: Path, run: Path, here: Here, tmp_path: Path) -> None:
    table = warm_proxemic("cluster", folder, "--model", run, "--min-size", "3", "--out", tmp_path / "groups.csv")
    assert table.returncode == 0, table.stderr
    assert table.stdout.startswith("72 photos: ")
    assert "pairwise F1 " in table.stdout
    assert len((tmp_path / "groups.csv").read_text().splitlines()) == 73
    links = here(
        "cluster", folder, "--model", run, "--method", "agglomerative", "--threshold", "0.2", "--min-size", "3",
        "--out", tmp_path / "groups",
    )  # fmt: skip
    assert links.returncode == 0, links.stderr
    assert len([path for path in (tmp_path / "groups").rglob("*.png") if path.is_symlink()]) == 72
    again = here("cluster", folder, "--model", run, "--out", tmp_path / "groups")
    assert_refused(cut_first(again), ["exists: name a new folder"])


def test_a_model_without_thresholds_says_how_to_learn_them(folder: Path, run: Path, here: Here) -> None:
    result = here("cluster", folder, "--model", run, "--method", "agglomerative")
    assert_refused(cut_first(result), ["proxemic calibrate", "--threshold"])


def test_the_threshold_is_that_of_the_calibrated_model(folder: Path, run: Path, here: Here, tmp_path: Path) -> None:
    model = tmp_path / "run"
    shutil.copytree(run, model)
    facts = (0.1, 0.001, 0.1, math.nan, math.nan, 0.9, 0.25)
    Calibration(Embedder.load(model).checksum, "cosine", "photos", 7, 300, 300, *facts).write(model)
    words = ("cluster", folder, "--model", model, "--min-size", "3", "--out")

    def clustered(*flags: str) -> tuple[str, str]:
        table = tmp_path / f"groups {' '.join(flags)}.csv"
        result = here(*words, table, *flags)
        assert result.returncode == 0, result.stderr
        return table.read_text(), " ".join([*result.stderr.split(), *result.stdout.split()])

    by_default, said = clustered()
    assert "a mean distance of 0.2500" in said
    assert "learnt from 7 classes, and with fewer than 20" in said
    assert "no group" not in said
    for flags in (["--threshold", "0.25"], ["--method", "agglomerative"]):
        assert clustered(*flags)[0] == by_default
    by_rate, said = clustered("--rate", "0.1")
    assert by_rate == clustered("--threshold", "0.001")[0] != by_default
    assert "Most photos are in no group: give the number of groups" in said
    assert_refused(cut_first(here(*words[:4], "--rate", "0.2")), ["rate of 0.1, not 0.2"])


def test_a_number_of_groups(folder: Path, run: Path, here: Here, tmp_path: Path) -> None:
    result = here("cluster", folder, "--model", run, "--groups", "12", "--out", tmp_path / "groups.csv")
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("72 photos: 12 clusters of ")
    assert ", 0 photos in none." in result.stdout
    for words, said in (
        (["--groups", "73"], "from 1 to 72"),
        (["--groups", "0"], "from 1 to 72"),
        (["--method", "kmeans"], "give --groups alone"),
        (["--groups", "3", "--threshold", "0.1"], "give --groups alone"),
        (["--rate", "0.1", "--threshold", "0.1"], "leave out one of them"),
    ):
        assert_refused(cut_first(here("cluster", folder, "--model", run, *words)), [said])
