"""Files that would run code if they were unpickled, or that may not be read."""

import ctypes
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


TRAP_MODULE = "trap"
"""The module that `write_trap_module` writes; also the name of the file that it leaves when it is imported."""


def write_trap_module(folder: Path) -> Path:
    """A module that would make a file when it is imported, and classes in it; the path of that file."""
    left = folder / "imported"
    lines = ["from pathlib import Path", "from torch.optim import SGD", f"Path({str(left)!r}).touch()"]
    lines += ["import proxemic.losses as losses", "class Loss(losses.ProxyAnchorLoss): pass", "class Steps(SGD): pass"]
    (folder / f"{TRAP_MODULE}.py").write_text("\n".join(lines) + "\n")
    return left


def hostile_recipes(left: Path) -> dict[str, str]:
    """Recipes that extend a recipe of the package, and would create the file if their names were called or imported."""
    command = f"{{class_path: os.system, init_args: {{command: touch {left}}}}}"
    popen = f"{{class_path: subprocess.Popen, init_args: {{args: [touch, {left}]}}}}"
    anchor = "class_path: proxemic.losses.ProxyAnchorLoss, init_args"
    warped = "class_path: proxemic.losses.WarpedSoftmaxLoss, init_args"
    pairs = "class_path: proxemic.losses.PairwiseLoss, init_args"
    pair = "class_path: pytorch_metric_learning.losses.ContrastiveLoss, init_args"
    dated = f"{{class_path: os.system, init_args: {{command: touch {left}, when: 2020-99-99}}}}"
    reached = "pytorch_metric_learning.utils.common_functions.os.system"
    snapshots = "class_path: proxemic.training.Snapshots, init_args"
    return {
        "loss": f"loss: {command}",
        "loss as a text": f"loss: '{command}'",
        "loss through an import": f"loss: {command.replace('os.', 'proxemic.data.images.os.')}",
        "loss of a module beside": f"loss: {TRAP_MODULE}.Loss",
        "loss of a package beside": f"loss: {TRAP_MODULE}s.inner.Loss",
        "loss by address": "loss: {class_path: 'https://localhost/trap.Loss'}",
        "loss of a module that runs": "loss: pip.__main__.main",
        "data": f"data: {popen}",
        "data in data": f"data: {{class_path: proxemic.data.Fold, init_args: {{source: {popen}}}}}",
        "optimiser": f"optim: {{optimizer: {command}}}",
        "optimiser of a module beside": f"optim: {{optimizer: {TRAP_MODULE}.Steps}}",
        "schedule": f"optim: {{schedule: {command}}}",
        "pooling": f"loss: {{{anchor}: {{pooling: {command}}}}}",
        "regulariser": f"loss: {{{anchor}: {{regularizers: [{command}]}}}}",
        "init": f"loss: {{{anchor}: {{init: {command}}}}}",
        "init by name": f"loss: {{{anchor}: {{init: torch.load}}}}",
        "f1": f"loss: {{{warped}: {{f1: {command}}}}}",
        "f2 by name": f"loss: {{{warped}: {{alpha: 1, k1: 1, k2: 1, f2: torch.hub.load}}}}",
        "distance in a pair loss": f"loss: {{{pairs}: {{loss: {{{pair}: {{distance: {command}}}}}}}}}",
        "distance through an import": f"loss: {{{pairs}: {{loss: {{{pair}: {{distance: {reached}}}}}}}}}",
        "distance as a text with no date": f"loss: {{{pairs}: {{loss: {{{pair}: {{distance: '{dated}'}}}}}}}}",
        "callback": f"training: {{callbacks: [{command}]}}",
        "logger": f"training: {{loggers: [{command}]}}",
        "argument of a callback": f"training: {{callbacks: [{{{snapshots}: {{every_n_epochs: {command}}}}}]}}",
        "a number": f"seed: {command}",
        "a text in a text": 'seed: "{\\"class\\\\x5fpath\\": os.system, init_args: {command: ls}}"',
        "a section in another file": "batches: other.yaml",
        "second phase": f"second_phase: {{epochs: 1, loss: {command}}}",
        "init of a second phase": f"second_phase: {{epochs: 1, loss: {{init: {command}}}}}",
        "optimiser of a second phase": f"second_phase: {{epochs: 1, optim: {{optimizer: {command}}}}}",
        "tag": f"loss: !!python/object/apply:os.system ['touch {left}']",
    }


@contextmanager
def unreadable(*files: Path) -> Iterator[None]:
    """Nobody may read these files, not even root."""
    modes = {file: file.stat().st_mode for file in files}
    for file in files:
        file.chmod(0)
    try:
        with _without_privileges():
            yield
    finally:
        for file, mode in modes.items():
            file.chmod(mode)


@contextmanager
def _without_privileges() -> Iterator[None]:
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # of this thread
    before, after = ((ctypes.c_uint32 * 6)() for _ in range(2))
    assert libc.capget(header, before) == 0
    after[:] = [*before]
    after[0] &= ~0b110  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    assert libc.capset(header, after) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
