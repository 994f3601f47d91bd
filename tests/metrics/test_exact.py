"""Exact distances have the same bits for the same pair in any computation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metrics.points import DISTANCES, sample
from proxemic.metrics import nearest_neighbours
from proxemic.metrics.exact import Distance, ExactRows, distance_block, row_distances


@pytest.mark.parametrize("distance", DISTANCES)
def test_equal_rows_have_the_very_same_distance(distance: Distance) -> None:
    gallery = sample(7, 37).repeat(31, 1)
    left, right, every = ExactRows(sample(5, 37, seed=1), "left"), ExactRows(gallery, "right"), torch.arange(5)
    distances = distance_block(left, right, every, slice(0, 217), distance)
    assert (distances.view(5, 31, 7) == distances.view(5, 31, 7)[:, :1]).all()
    pairs = torch.cartesian_prod(every, torch.arange(217))
    assert torch.equal(row_distances(left, right, pairs[:, 0], pairs[:, 1], distance), distances.flatten())
    _, indices = nearest_neighbours(sample(5, 37, seed=1), gallery, k=31, distance=distance)
    assert (indices.diff(dim=1) == 7).all(), "equal distances come in the order of the rows"


@given(st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_products_of_rounded_rows_are_exact(dim: int, seed: int) -> None:
    # The sum in Python integers is exact; the least favourable rows have all coordinates near the largest.
    rows = ExactRows(1 - sample(2, dim, seed).abs() * 1e-3, "rows")
    integers = rows.integers(slice(None))
    exact = sum(int(a) * int(b) for a, b in zip(*integers.tolist(), strict=True))
    assert int((integers[0] * integers[1]).sum()) == exact
    assert int(rows.squares[0] / rows.steps[0] ** 2) == sum(int(a) ** 2 for a in integers[0].tolist())


def test_rounding_is_as_fine_as_promised() -> None:
    points = sample(100, 512) * torch.logspace(-30, 30, 100)[:, None]
    rows = ExactRows(points, "rows")
    error = (rows.integers(slice(None)) * rows.steps[:, None] - points).abs().amax(1) / points.abs().amax(1)
    assert error.max() <= 2.0**-22
