"""Marks tests of what users and attackers found and is not yet cured; the mark goes with the cure."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def not_yet(point: int, why: str) -> pytest.MarkDecorator:
    """Expect a failure until the point of the list is cured."""
    return pytest.mark.xfail(strict=True, reason=f"issue 47.{point}: {why}")


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
