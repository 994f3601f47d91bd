"""``proxemic analyze forces`` as a user runs it; of runs: test_toy.py."""

import csv
from pathlib import Path

from command_line import Here, assert_refused


def test_figures_2_and_4_of_the_warping_paper(tmp_path: Path, here: Here) -> None:
    result = here("analyze", "forces", "--out", tmp_path / "f")
    assert result.returncode == 0, result.stderr
    names = [f"f-{name}.{kind}" for name in ("losses", "training") for kind in ("csv", "png", "svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    with (tmp_path / "f-training.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (first, *_), (*_, last) = ([row for row in rows if row["training"].startswith("f1 = warp")] for _ in range(2))
    assert (first["step"], last["step"]) == ("0", "120")
    assert f"{float(first['mean_cosine']):+.3f}" in result.stdout
    assert float(first["mean_cosine"]) < 0 < 0.5 < float(last["mean_cosine"])


def test_a_run_without_snapshots(softmax: list[Path], here: Here) -> None:
    assert_refused(here("analyze", "forces", softmax[0]), ["kept no snapshots", "proxemic.training.Snapshots"])
