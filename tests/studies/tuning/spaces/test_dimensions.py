"""What one hyper-parameter may be."""

import pytest

from proxemic.errors import UserError
from proxemic.studies.tuning.spaces import Factor, Range


def test_rates_are_relative_to_the_recipe() -> None:
    assert Factor(0.1, 10, log=True).around("optim.lr", 0.002) == Range(0.0002, 0.02, log=True)
    with pytest.raises(
        UserError, match=r"varies optim.graph_lr by a factor of the recipe's own value, but that is None"
    ):
        Factor(0.1, 10).around("optim.graph_lr", None)


def test_what_a_grid_takes() -> None:
    assert Range(1, 8, step=2, integer=True, points=3).values() == (1, 5, 8)
    assert Range(0.1, 0.9, grid=(0.1, 0.7)).values() == (0.1, 0.7)
    low, high = Range(0.3, 0.3000000001, points=2).values()
    assert low == high == 0.3
