"""Protect the module search path of the Python processes that we start."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "PYTHONSAFEPATH"


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep the current directory off the module path of Python processes that start in the block.

    multiprocessing starts processes by ``python -c``, which otherwise imports from the current directory first, even
    ``struct``.
    """
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
