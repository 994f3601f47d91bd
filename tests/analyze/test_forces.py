"""``proxemic analyze forces`` as a user runs it; of runs: test_toy.py."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from command_line import Here, assert_refused, csv_rows
from proxemic.analysis.toy import Scene
from proxemic.analyze import forces
from proxemic.losses import EuclideanSoftmaxLoss


def test_figures_2_and_4_of_the_warping_paper(tmp_path: Path, here: Here) -> None:
    result = here("analyze", "forces", "--out", tmp_path / "f")
    assert result.returncode == 0, result.stderr
    names = [f"f-{name}.{kind}" for name in ("losses", "training") for kind in ("csv", "png", "svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    rows = csv_rows(tmp_path / "f-training.csv")
    (first, *_), (*_, last) = ([row for row in rows if row["training"].startswith("f1 = warp")] for _ in range(2))
    assert (first["step"], last["step"]) == ("0", "120")
    assert f"{float(first['mean_cosine']):+.3f}" in result.stdout
    assert float(first["mean_cosine"]) < 0 < 0.5 < float(last["mean_cosine"])


def test_a_run_without_snapshots(softmax: list[Path], here: Here) -> None:
    assert_refused(here("analyze", "forces", softmax[0]), ["kept no snapshots", "proxemic.training.Snapshots"])


def test_of_two_phases_it_says_whose_forces_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = SimpleNamespace(second_phase=SimpleNamespace())
    run = SimpleNamespace(path=tmp_path / "run", name="run", loss=EuclideanSoftmaxLoss(2, 3), recipe=recipe)
    scene = Scene(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]), torch.randn(2, 1, 3))
    monkeypatch.setattr("proxemic.studies.finished.find_runs", lambda _: [run])
    monkeypatch.setattr("proxemic.analyze._forces.read_snapshots", lambda _: {0: scene, 1: scene})
    found = forces([run.path], out=tmp_path / "f")
    assert str(found).startswith(f"{run.path}: all forces are computed with the loss of the selected epoch's phase.\n")
    assert list(found.figures["run"]) == [0, 1]
