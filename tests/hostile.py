"""Files that would run code if they were unpickled."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch


class Trap:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, (self.path, "w")


def assert_code_is_not_run(load: Callable[[Path], Any], tensor: str, folder: Path) -> None:
    """Weights with a trap in place of a tensor, as ``torch.save`` and as ``pickle`` write them, are refused."""
    weights = {tensor: Trap(folder / "ran")}
    for name, write in (("a.pth", torch.save), ("b.pt", lambda value, path: path.write_bytes(pickle.dumps(value)))):
        write(weights, folder / name)
        with pytest.raises(ValueError, match="not readable as a file of tensors"):
            load(folder / name)
    assert not (folder / "ran").exists()
