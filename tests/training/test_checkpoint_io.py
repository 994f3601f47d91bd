"""Failures of reading a checkpoint that are not about what is in it stay what they are."""

from pathlib import Path

import pytest
import torch

from proxemic.training.checkpoint_io import read_checkpoint


def test_a_file_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Is a directory"):
        read_checkpoint(tmp_path)


def test_too_little_memory_is_not_called_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(MemoryError):
        read_checkpoint(tmp_path / "last.ckpt")
