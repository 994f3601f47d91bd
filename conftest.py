"""What every test and docstring example may use."""

import atexit
import gc
import os
from collections.abc import Generator

import pytest
import torch
from jaxtyping import install_import_hook

from slow import is_slow

pytest_plugins = ["forked"]

# Modules whose annotations are checked when they are called.
CHECKED = [
    "losses.adaptive_margins",
    "losses.class_weights",
    "losses.clusters",
    "losses.hist",
    "losses.initialization",
    "losses.margin_softmax",
    "losses.margins",
    "losses.objectives",
    "losses.pairwise",
    "losses.proxy_anchor",
    "losses.proxy_loss",
    "losses.scores",
    "losses.softmax",
    "losses.user_defined",
    "losses.warped_softmax",
    "analysis",
    "metrics",
    "models",
    "data",
    "distributed",
    "runs.embed",
    "runs.evaluate",
    "runs.faces",
    "training.callbacks.measures",
    "training.gradient_cache",
    "training.loop",
    "training.state",
    "training.plots",
    "training.beginning",
]

# The tests check the shapes and types of annotations in CI alone: that takes a fifth of the time of the losses' tests.
if "CI" in os.environ:
    install_import_hook([f"proxemic.{module}" for module in CHECKED], "typecheck.check")

# The files whose tests take longest come first, that of Ray above all, which mostly waits, so that the workers end at
# about the same time.
LONGEST = (
    "tests/retrieval/vectors/test_ray_stage.py",
    "tests/runs/test_library_preprocessing.py",
    "tests/report/test_pictured_map.py",
    "tests/retrieval/exporting",
    "tests/studies/tuning/test_search.py",
    "tests/test_imports.py",
    "tests/training/distributed/test_distributed.py",
    "tests/test_readme.py",
    "tests/test_docs.py",
    "tests/test_distributions.py",
    "tests/test_benchmarks.py",
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what starts processes or a browser as slow. All but the longest files stay in their order."""
    for item in items:
        if isinstance(item, pytest.Function) and is_slow(item):
            item.add_marker("slow")
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(autouse=True)
def _examples(doctest_namespace: dict[str, object]) -> None:
    """Docstring examples name torch without importing it, as the code around them does."""
    doctest_namespace["torch"] = torch
