"""Directories of results."""

from pathlib import Path

import pytest

from proxemic.errors import UserError
from proxemic.protocols.directories import is_begun


def test_new_begun_and_other_directories(tmp_path: Path) -> None:
    def begun(name: str) -> bool:
        return is_begun(tmp_path / name, "work.json", "a work", ["recipes"])

    assert not begun("new")
    for left in ("made/recipes", "made/.lock", "made/.work.json.12.tmp"):
        (tmp_path / left).mkdir(parents=True)
    assert not begun("made")
    (tmp_path / "made" / "work.json").touch()
    (tmp_path / "made" / "more").touch()
    assert begun("made")
    with pytest.raises(UserError, match="is a file, but --out needs a folder"):
        begun("made/more")
    (tmp_path / "made" / "work.json").unlink()
    with pytest.raises(UserError, match="made holds something else than a work"):
        begun("made")
