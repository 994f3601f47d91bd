"""Losses have the gradient of one large batch on one and on four processes, one of them without classes.

Those that gather differently in each layout, the others in one.
"""

import json
import re
from pathlib import Path

import pytest

import warm
from proxemic import losses

pytest.importorskip("pytorch_metric_learning")
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
EQUALITY = Path(__file__).parents[2] / "benchmarks" / "equality.py"


def test_processes_give_the_value_and_the_gradients_of_one() -> None:
    done = warm.run(EQUALITY, "--processes", "1", "4", "--few", "--json", timeout=1200, environment=ONE_THREAD)
    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout.splitlines()[-1])
    assert list(table) == ["1", "4"]
    for found in table.values():
        wrong = {row: errors for row, errors in found.items() if not max(errors.values()) <= 1e-5}
        assert not wrong
        assert {row.split(" | ")[1] for row in found} == {"replicated", "sharded", "sampled"}
        shown = {re.match(r"\w+", row)[0] for row in found}  # type: ignore[index]
        assert shown == {name for name in losses.__all__ if name.endswith("Loss")} - {"ProxyLoss", "MatryoshkaLoss"}
