"""The programs of docs/experiments for their tests, and runs that they keep."""

import importlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "experiments"
KEPT = FOLDER / "kept"
sys.path += [str(DOCS), str(FOLDER)]


def script(name: str) -> Any:
    """Import a program by its name."""
    return importlib.import_module(name)


def keep(kept: Path, dataset: str, loss: str, values: Iterable[float], condition: str = "") -> None:
    """Keep runs with these values of all metrics, by seed."""
    by_seed = dict(enumerate(values))
    metrics = {"recall@1": by_seed, "map@r": by_seed, "ndcg@8": by_seed}
    script("_experiments").Kept(kept, dataset).keep_runs(loss, metrics, condition)
