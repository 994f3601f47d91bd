"""``proxemic cluster`` as a user types it."""

from pathlib import Path

from command_line import Here, assert_refused, warm_proxemic


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
