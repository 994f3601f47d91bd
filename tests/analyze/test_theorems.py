"""``proxemic analyze theorems`` as a user runs it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from command_line import Here, assert_refused, csv_rows
from proxemic.losses import NormalizedSoftmaxLoss


def rows(path: Path) -> dict[str, dict[str, str]]:
    return {row["statement"]: row for row in csv_rows(path)}


def test_bounds_and_what_is_observed(tmp_path: Path, here: Here) -> None:
    result = here("analyze", "theorems", "--draws", "2", "--out", tmp_path / "t")
    assert result.returncode == 0, result.stderr
    names = [f"t-{name}.{kind}" for name in ("lemma", "proposition") for kind in ("csv", "png", "svg")]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "t.csv"]
    found = rows(tmp_path / "t.csv")
    for name in ("Proposition 1, g = t", "Proposition 2"):
        (line,) = (line for line in result.stdout.splitlines() if line.startswith(f"│ {name} "))
        assert f"{float(found[name]['observed']):.4g}" in line
        assert f"{float(found[name]['bound']):.4g}" in line
        assert float(found[name]["observed"]) <= float(found[name]["bound"])


def test_a_run(run: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    result = here("analyze", "theorems", run)
    assert_refused(result, ["AllPairMultiProxyAnchorLoss", "cosines and one proxy per class"])
    labels = torch.arange(12) % 3
    trained = SimpleNamespace(
        path=tmp_path / "softmax",
        loss=NormalizedSoftmaxLoss(3, 4),
        train=SimpleNamespace(labels=labels),
        embed=lambda _: torch.randn(12, 4, generator=torch.Generator().manual_seed(0)),
    )
    monkeypatch.setattr("proxemic.studies.finished.find_runs", lambda _: [trained])
    result = here("analyze", "theorems", tmp_path / "softmax", "--out", tmp_path / "t")
    assert result.returncode == 0, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    assert rows(tmp_path / "t.csv")["Proposition 2, 4 embeddings per class, corrected"]["holds"] == "12"
