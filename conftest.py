"""What every test and docstring example may use."""

import atexit
import gc
import os
from collections.abc import Generator
from importlib.util import find_spec

import pytest
import torch

# A run waits for its workers, whose interpreters take seconds to be taken apart; what is registered later comes before.
if "PYTEST_XDIST_WORKER" in os.environ:
    atexit.register(os._exit, 0)

# Of Linux alone, as Triton is.
collect_ignore = [] if find_spec("triton") else ["src/proxemic/losses/scores/triton_kernels.py"]

# The files whose tests take longest come first. With --no-loadscope-reorder, several workers then end at about the same
# time; otherwise the files of a single test come last, however long it takes.
LONGEST = (
    "tests/distributed/test_equality.py",
    "tests/training/distributed/test_distributed.py",
    "tests/cli/test_tune.py",
    "tests/test_readme.py",
    "tests/test_docs.py",
    "tests/test_distributions.py",
    "tests/test_benchmarks.py",
    "tests/cli/test_reality_check.py",
    "tests/test_imports.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: looking for garbage in it takes a sixth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        atexit.register(gc.unfreeze)  # libraries in C++ report what is not freed at the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All others stay in their order."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(autouse=True)
def _examples(doctest_namespace: dict[str, object]) -> None:
    """Docstring examples name torch without importing it, as the code around them does."""
    doctest_namespace["torch"] = torch
