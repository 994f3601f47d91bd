"""How a metric varies over seeds, beside how far recipes are apart."""

import math

import numpy as np
import pytest

from proxemic.studies.comparison.directory import Result
from proxemic.studies.comparison.statistics import seed_variation


def test_the_interval_of_a_ratio_is_that_of_its_logarithm() -> None:
    values = [[0.1, 0.2], [0.1, 0.3], [0.1, 0.2]]
    results = [
        {
            seed: Result({"test": {"recall@1": each[seed] * factor, "map@r": each[seed]}}, 1, "validation", 1.0)
            for seed in range(2)
        }
        for each, factor in zip(values, (0.5, 0.25, 1.0), strict=True)
    ]
    found = seed_variation(results, "map@r", "recall@1")
    assert found is not None
    assert found.ratio is not None
    # 4.303: Student's t, 0.975, of two degrees of freedom.
    logarithms = np.log([2, 4, 1])
    half = 4.303 * np.std(logarithms, ddof=1) / 3**0.5
    expected = np.exp([logarithms.mean(), logarithms.mean() - half, logarithms.mean() + half])
    assert found.ratio == pytest.approx(expected, rel=1e-3)
    assert found.separability == pytest.approx(np.std([0.15, 0.2, 0.15], ddof=1) / math.sqrt(0.03 / 3))
    assert seed_variation(results[:1], "map@r", "recall@1") is None
