"""A comparison that is trained, killed and gone on with; and what is refused before anything is written."""

import csv
import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from command_line import run_here, start_with_workers
from proxemic.errors import UserError
from proxemic.locks import exclusive_lock
from proxemic.recipes.flags import as_flags
from proxemic.studies.comparison.directory import Comparison
from proxemic.studies.comparison.run import compare, finish_comparison, plan_comparison
from proxemic.studies.jobs import Job, Workers, run_job

OVERRIDES = {"training.epochs": 1, "evaluation.untrained": False, "training.loggers": []}
FLAGS = as_flags(OVERRIDES)


def values(path: Path) -> dict[tuple[str, ...], str]:
    """All results to the last digit, but for the time that they took."""
    with (path / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    found = {tuple(row[key] for key in ("recipe", "seed", "split", "metric", "epoch")): row["value"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_an_interrupted_comparison_goes_on_where_it_was(
    recipes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "killed"
    # Neither the workers nor what the machine computes with otherwise change a digit.
    process = start_with_workers("compare", *recipes, "--seeds", "2", "--workers", "2", "--out", out, *FLAGS, threads=2)
    while not list(out.glob("runs/*/*/metrics.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    # As a terminal does: to the whole group.
    os.killpg(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 2
    assert f"continue with proxemic compare --resume {out}" in error.splitlines()[-1]
    assert "Traceback" not in error
    begun = Comparison.read(out)
    finished = [cell for cell in begun.cells() if cell.state == "finished"]
    assert 1 <= len(finished) < 4
    assert f"**{4 - len(finished)} of 4 cells" in (out / "table.md").read_text()
    kept = {cell: (cell.path / "metrics.json").stat().st_mtime_ns for cell in finished}

    monkeypatch.setattr(Workers, "run", run_here)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        lines: list[str] = []
        again = compare(recipes, seeds=(0, 1), out=out, overrides=OVERRIDES, report=lines.append)
        assert torch.get_num_threads() == 3
        whole = {cell: replace(cell.job, out=tmp_path / cell.path.relative_to(out)) for cell in again.cells()}
        for job in whole.values():
            run_job(job, report=str)
    finally:
        torch.set_num_threads(threads)
    environments = [json.loads((cell.path / "environment.json").read_text()) for cell in again.cells()]
    assert [environment["threads"] for environment in environments] == [1] * 4
    found = values(out)
    for cell, job in whole.items():
        assert (cell.path / "model.safetensors").read_bytes() == (job.out / "model.safetensors").read_bytes()
        for metric, value in json.loads((job.out / "metrics.json").read_text())["test"].items():
            assert float(found[cell.entry.title, str(cell.seed), "test", metric, "1"]) == value
    assert lines[0].endswith(f"2 recipes × 2 seeds, 4 cells, {len(finished)} finished before")
    assert re.match(r"\[1/\d\] (first|second)\.yaml, seed \d: recall@1 \d+\.\d\d, epoch 1, ", lines[1])
    assert {cell: (cell.path / "metrics.json").stat().st_mtime_ns for cell in finished} == kept
    assert len({value for key, value in found.items() if key[2:4] == ("test", "map@r")}) == 4
    for name in ("points.png", "points.svg", "curves.png", "summary.csv", "differences.csv", "comparison.json"):
        assert (out / name).stat().st_size > 0
    assert "not finished" not in (out / "table.md").read_text()

    monkeypatch.setattr(Workers, "run", lambda _, jobs, **__: pytest.fail("nothing is left") if jobs else None)
    before = time.time_ns()
    compare(resume=out, report=str)
    assert all((cell.path / "metrics.json").stat().st_mtime_ns < before for cell in again.cells())


def test_a_run_that_fails_is_told_and_the_others_go_on(
    recipes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[Job] = []

    def run_some(workers, jobs, *, on_result, on_failure):
        tries.extend(jobs)
        for job in jobs:
            on_failure(job, UserError("The loss is nan at step 3, with the learning rate 1."))

    monkeypatch.setattr(Workers, "run", run_some)
    lines: list[str] = []
    made = compare(recipes, seeds=[7], out=tmp_path, report=lines.append)
    assert lines[1] == (
        "[1/2] first.yaml, seed 7 FAILED: The loss is nan at step 3, with the learning rate 1.; 1 left, about 0 s"
    )
    text = (tmp_path / "table.md").read_text()
    assert "0 of 1, 1 failed" in text
    assert "- second.yaml, seed 7: The loss is nan at step 3, with the learning rate 1." in text
    assert [cell.state for cell in made.cells()] == ["failed", "failed"]
    assert [job.flags for job in tries] == [("--seed", "7"), ("--seed", "7")]
    compare(recipes[:1], seeds=[7], out=tmp_path, report=lines.append)
    assert len(tries) == 4


def test_more_recipes_and_seeds_are_added(recipes: list[str], tmp_path: Path) -> None:
    first = plan_comparison(recipes[:1], [3], tmp_path, ("--batches.size", "4"), metrics=["map@r"])
    assert first.entries[0].recipe["batches"]["size"] == 4
    first.write()
    more = plan_comparison(recipes[::-1], [1, 3], tmp_path, ("--batches.size", "4"), baseline=recipes[1])
    assert [entry.slug for entry in more.entries] == ["first", "second"]
    assert more.seeds == (3, 1)
    assert more.metrics == ("map@r",)
    assert more.baseline_of(more.entries).slug == "second"
    assert plan_comparison(recipes[:1], None, tmp_path, ("--batches.size", "4")).seeds == (3,)
    assert plan_comparison(recipes[:1], None, tmp_path / "new").seeds == (0, 1, 2, 3, 4)
    changed = tmp_path / "mine.yaml"
    changed.write_text(Path(recipes[0]).read_text())
    plan_comparison([str(changed)], [0], tmp_path / "out").write()
    changed.write_text(changed.read_text().replace("lr: 0.002", "lr: 0.003"))
    with pytest.raises(UserError, match=r"mine\.yaml is no longer the one that .* was begun with"):
        plan_comparison([str(changed)], [0], tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"overrides": {"seed": 1}}, "--seed is set for each run by --seeds"),
        ({"baseline": "glyphs"}, "--baseline is glyphs, but must be one of .*: glyphs-small"),
        ({"metrics": ["recall@3"]}, "--metrics has recall@3, but these are computed: recall@1"),
    ],
)
def test_what_is_refused(given: dict[str, object], words: str, tmp_path: Path) -> None:
    arguments = {"recipes": ["glyphs-small"], "seeds": [0], "out": tmp_path / "out", **given}
    with pytest.raises((UserError, ValueError), match=words):
        compare(**arguments)
    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_refused(recipes: list[str], tmp_path: Path) -> None:
    made = plan_comparison(["glyphs-small"], [0], tmp_path / "made", ("--training.epochs", "3"))
    made.write()
    with pytest.raises(UserError, match=r"begun with other flags \(--training.epochs 3\)"):
        plan_comparison(["glyphs-small"], [0], tmp_path / "made")
    # What a call leaves that was killed at once.
    (tmp_path / "made" / "comparison.json").unlink()
    assert plan_comparison(["glyphs-small"], [0], tmp_path / "made").flags == ()


def test_what_another_process_added_is_not_forgotten(recipes: list[str], tmp_path: Path) -> None:
    """Two are begun in one folder: the one that read it before the other wrote is refused, and changes nothing."""
    out = tmp_path / "both"
    slow = plan_comparison(recipes[:1], [0], out, FLAGS)
    plan_comparison(recipes[1:], [0], out, FLAGS).write()
    before = (out / "comparison.json").read_bytes()
    with pytest.raises(UserError, match=r"Another process has added to .*both"):
        finish_comparison(slow)
    assert (out / "comparison.json").read_bytes() == before
    joined = plan_comparison(recipes[:1], [0], out, FLAGS)
    assert len(joined.entries) == 2
    with exclusive_lock(out), pytest.raises(UserError, match="Another process works in"):
        finish_comparison(joined)
    assert (out / "comparison.json").read_bytes() == before
