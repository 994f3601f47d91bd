"""Checkpoints are complete or absent."""

from pathlib import Path

import pytest

from proxemic.errors import UserError
from proxemic.training.parts.storage import read_checkpoint


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        read_checkpoint(tmp_path / "none")
    with pytest.raises(UserError, match="not a regular file"):
        read_checkpoint(tmp_path)
