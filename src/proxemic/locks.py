"""One process at a time on a directory."""

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
    """Hold a directory, which is made if need be, while the block runs; a killed process lets go of it."""
    path.mkdir(parents=True, exist_ok=True)
    lock = path / LOCK
    try:
        with FileLock(lock, timeout=0, is_singleton=False):
            yield
    except Timeout:
        # Where the file system has no locks, as Lustre may, the file alone says so, also after a kill.
        raise UserError(
            f"Another process works in {path}: wait for it, or choose another --out; if none does, delete {lock}."
        ) from None


@contextmanager
def lock_in_turn(path: Path) -> Iterator[None]:
    """Hold a lock on a file while the block runs, after other processes; the folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f"{path.name}.lock"), is_singleton=False):
        yield
