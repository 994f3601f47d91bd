"""``proxemic analyze trajectories`` as a user runs it."""

import shutil
from pathlib import Path

import yaml

from command_line import Here, assert_refused, cells, csv_rows
from comparisons import interval
from proxemic.analyze import trajectories
from proxemic.studies.finished import Run


def test_a_group_of_seeds(warp: list[Path], tmp_path: Path, here: Here) -> None:
    result = here("analyze", "trajectories", *warp, "--out", tmp_path / "dtp", "--log")
    assert result.returncode == 0, result.stderr
    opened = [Run(path) for path in warp]
    ((name, epochs, before, last, chosen, alpha, recall, nmi),) = cells(result.stdout)
    ends = [run.history[-1]["avg_dtp"] for run in opened]
    assert (name, epochs, alpha) == ("warp", "3", "2.5")
    mean, half = interval(*ends)
    assert last == f"{mean:.4g} ± {half:.2g}"
    firsts = [run.measured_before["avg_dtp"] for run in opened]
    mean, half = interval(*firsts)
    assert before == f"{mean:.4g} ± {half:.2g}"
    results = [run.metrics for run in opened if run.metrics is not None]
    picks = [
        next(row["avg_dtp"] for row in run.history if row["epoch"] == result["epoch"])
        for run, result in zip(opened, results, strict=True)
    ]
    assert chosen.startswith(f"{sum(picks) / 2:.4g} ±")
    for shown, metric in ((recall, "recall@1"), (nmi, "nmi")):
        assert shown.startswith(f"{50 * sum(result.get('test', {})[metric] for result in results):.2f} ±")
    rows = csv_rows(tmp_path / "dtp.csv")
    drawn = [(0.0, first) for first in firsts]
    expected = [
        pair
        for first, run in zip(drawn, opened, strict=True)
        for pair in (first, *((row["epoch"], row["avg_dtp"]) for row in run.history))
    ]
    assert [(float(row["epoch"]), float(row["avg_dtp"])) for row in rows] == expected
    assert {path.name for path in tmp_path.iterdir()} == {"dtp.png", "dtp.svg", "dtp.csv"}


def test_runs_that_broke_off_are_marked(warp: list[Path], tmp_path: Path, here: Here) -> None:
    for name in ("stopped", "unstable"):
        shutil.copytree(warp[0], tmp_path / name)
        (tmp_path / name / "metrics.json").unlink()
        recipe = tmp_path / name / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("alpha: 2.5", f"alpha: {len(name)}"))
    (tmp_path / "unstable" / "diverged.txt").write_text("The loss became inf.\n")
    words = [warp[0], tmp_path / "stopped", tmp_path / "unstable"]
    result = here("analyze", "trajectories", *words, "--out", tmp_path / "dtp")
    assert result.returncode == 0, result.stderr
    assert [row[1] for row in cells(result.stdout)] == ["3", "3 unfinished", "3 unstable"]
    assert "unstable: the training ended when" in result.stdout
    svg = (tmp_path / "dtp.svg").read_text()
    assert "stopped (unfinished)" in svg
    assert "unstable (unstable)" in svg


def test_a_seed_that_broke_off_does_not_cut_the_others_short(warp: list[Path], tmp_path: Path, here: Here) -> None:
    shutil.copytree(warp[1], tmp_path / "warp" / "seed-1")
    (tmp_path / "warp" / "seed-1" / "metrics.json").unlink()
    lines = (tmp_path / "warp" / "seed-1" / "history.csv").read_text().splitlines(keepends=True)
    (tmp_path / "warp" / "seed-1" / "history.csv").write_text("".join(lines[:2]))
    result = here("analyze", "trajectories", warp[0], tmp_path / "warp" / "seed-1", "--out", tmp_path / "dtp")
    assert result.returncode == 0, result.stderr
    assert [row[:2] for row in cells(result.stdout)] == [["warp", "3"], ["warp, seed 1", "1 unfinished"]]


def test_other_columns(warp: list[Path], tmp_path: Path, here: Here) -> None:
    result = here("analyze", "trajectories", *warp, "--measure", "loss", "--out", tmp_path / "loss")
    assert result.returncode == 0, result.stderr
    assert len(cells(result.stdout)[0]) == 6  # without alpha
    assert_refused(here("analyze", "trajectories", *warp, "--out", tmp_path), ["--out is the folder"])


def test_refused(run: Path, warp: list[Path], tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "trajectories", run), ["has no avg_dtp", "loss, recall@1", "DistanceToProxy"])
    assert_refused(here("analyze", "trajectories", warp[0], "--measure", "gap"), ["has no gap", "ProxyGap"])
    shutil.copytree(warp[0], tmp_path / "new")
    (tmp_path / "new" / "history.csv").unlink()
    assert_refused(here("analyze", "trajectories", tmp_path / "new"), ["has no epoch yet"])


def test_only_a_warp_has_an_alpha(warp: list[Path], tmp_path: Path) -> None:
    def alpha(**content: object) -> float | None:
        run = tmp_path / f"run-{len([*tmp_path.iterdir()])}"
        shutil.copytree(warp[0], run)
        recipe = yaml.safe_load((run / "recipe.yaml").read_text())
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe | content))
        [line] = trajectories([run], out=tmp_path / "dtp").figures.values()
        return line.expected

    anchor = {"class_path": "proxemic.losses.ProxyAnchorLoss", "init_args": {"alpha": 32}}
    assert alpha() == 2.5
    assert alpha(loss=anchor) is None
    assert alpha(second_phase={"epochs": 1, "loss": {"alpha": 3.5}}) == 3.5
    assert alpha(second_phase={"epochs": 1, "loss": anchor}) is None
