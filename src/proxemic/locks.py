"""Lock directories and files between processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from proxemic.errors import UserError
from proxemic.extras import optional_dependency

with optional_dependency("train"):
    from filelock import FileLock, Timeout

LOCK = ".lock"


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Lock a directory, which is created if need be, during the block; a killed process releases the lock."""
    path.mkdir(parents=True, exist_ok=True)
    lock = path / LOCK
    try:
        with FileLock(lock, timeout=0, is_singleton=False):
            yield
    except Timeout:
        # Some file systems, such as Lustre, have no locks: there the file itself is the lock, also after a kill.
        raise UserError(
            f"Another process works in {path}: wait for it, or choose another --out; if none does, delete {lock}."
        ) from None


@contextmanager
def lock_in_turn(path: Path) -> Iterator[None]:
    """Lock a file during the block, after waiting for other processes; the folder is created if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock"), is_singleton=False):
        yield
