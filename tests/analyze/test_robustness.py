"""Means and paired differences of `proxemic.analyze.robustness`; the rest as a user runs it: tests/cli."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from comparisons import interval
from proxemic.analysis.robustness import Robustness
from proxemic.analyze._robustness import _difference_tables, _differences
from proxemic.protocols.statistics import Estimate


def test_differences_are_paired_by_seed() -> None:
    groups: Any = {name: [SimpleNamespace(seed=seed) for seed in (0, 1)] for name in ("one", "other")}

    def group(*clean: float) -> Robustness:
        start = torch.tensor(clean, dtype=torch.float64)
        return Robustness(start, torch.stack([start / 2, start / 4], 1).unsqueeze(1))

    differences = _differences(groups, {"one": group(0.8, 0.4), "other": group(0.84, 0.52)}, ["shear"])
    ((title, estimates),) = differences.items()
    assert title.startswith("other less one, paired by 2 seeds")
    mean, half = interval(0.04, 0.12)
    assert (estimates["none"].mean, estimates["none"].half_width) == pytest.approx((mean, half))
    (table,) = _difference_tables(differences)
    cells = {label: str(cell) for label, cell in table.rows}
    assert cells["none"] == f"{100 * mean:+.1f} ± {100 * half:.1f}"
    assert cells["shear"] == f"{37.5 * mean:+.1f} ± {37.5 * half:.1f}"
    assert cells["relative drop"].startswith(("+0.0", "-0.0"))
    (table,) = _difference_tables({"a title": {"none": Estimate(float("nan"), None, 1)}})
    assert list(table.rows) == [["none", "n/a"]], "nothing is lost of a clean value of 0"
