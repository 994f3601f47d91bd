"""``proxemic demo``: what it trains, and what it says to try next."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import Here
from proxemic.cli import runs


def test_it_trains_glyphs_and_says_what_comes_next(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []

    def train(recipe: str, out: Path, overrides: dict[str, str], **_: Any) -> SimpleNamespace:
        trained.append((recipe, out, dict(overrides)))
        out.mkdir()
        return SimpleNamespace(path=out)

    monkeypatch.setattr(runs, "_train", train)
    monkeypatch.setattr(runs, "_report_at_the_end", lambda _: None)
    result = here("demo", "--out", tmp_path / "run", "--training.epochs", "1")
    assert result.returncode == 0, result.stderr
    assert trained == [("glyphs", tmp_path / "run", {"training.epochs": "1"})]
    assert "proxemic train --recipe own-pretrained --data.root FOLDER" in result.stdout
    here("demo", cwd=tmp_path)
    assert trained[1][1].name.startswith("demo-")
