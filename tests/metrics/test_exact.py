"""Exact distances have the same bits for the same pair in any computation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from metrics.points import DISTANCES, oracle, sample
from proxemic.metrics import k_reciprocal_distances, nearest_neighbours, pair_distances
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


@pytest.mark.parametrize("offset", [2e3, 2e4])
def test_euclidean_distances_are_as_exact_far_from_the_origin(offset: float) -> None:
    queries, gallery = sample(50, 64, seed=1) + offset, sample(500, 64, seed=2) + offset
    expected = oracle(queries, gallery, "euclidean")
    distances, indices = nearest_neighbours(queries, gallery, k=5, distance="euclidean")
    assert torch.equal(indices, expected.argsort(1)[:, :5])
    torch.testing.assert_close(distances.double(), expected.gather(1, indices), atol=1e-6, rtol=0)
    torch.testing.assert_close(
        pair_distances(queries, gallery[:50], distance="euclidean"), expected[:, :50].diagonal(), atol=2e-6, rtol=0
    )
    # In float32, these rows minus the offset are exact.
    near = k_reciprocal_distances(queries - offset, gallery - offset, distance="euclidean")
    far = k_reciprocal_distances(queries, gallery, distance="euclidean")
    torch.testing.assert_close(far, near, atol=1e-5, rtol=0)
    assert torch.equal(far.argmin(1), near.argmin(1))


def test_the_subtracted_mean_depends_neither_on_chunks_nor_on_the_order_of_the_rows() -> None:
    queries, gallery = sample(40, 16, seed=1) * 3 + 700, sample(3000, 16, seed=2) * 3 + 700
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    whole, _ = nearest_neighbours(queries, gallery, k=9, distance="euclidean")
    for chunk_size in (1, 7):
        found, _ = nearest_neighbours(queries, gallery[order], k=9, distance="euclidean", chunk_size=chunk_size)
        assert torch.equal(found, whole)
    alone = [nearest_neighbours(query[None], gallery, k=9, distance="euclidean")[0] for query in queries]
    assert torch.equal(torch.cat(alone), whole)


def test_rows_around_the_origin_and_whole_numbers_keep_their_distances() -> None:
    points = sample(300, 8)
    assert ExactRows(points, "rows", "mean").origin.abs().max() == 0  # type: ignore[union-attr]
    whole = torch.randint(90, 100, (500, 3), generator=torch.Generator().manual_seed(0)).float()
    distances, _ = nearest_neighbours(whole, whole, k=500, distance="euclidean")
    assert torch.equal(distances, oracle(whole, whole, "euclidean").sort(1).values.float())
