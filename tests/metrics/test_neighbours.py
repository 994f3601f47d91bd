"""Nearest neighbours against a float64 oracle, and their independence of chunks and row order."""

import pytest
import torch

from metrics.points import DISTANCES, oracle, sample
from proxemic.metrics import nearest_neighbours
from proxemic.metrics.exact import Distance


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dim", [1, 2, 3, 48, 700])
def test_equal_the_oracle(distance: Distance, dim: int) -> None:
    queries, gallery = sample(17, dim), sample(90, dim, seed=1)
    distances, indices = nearest_neighbours(queries, gallery, k=9, distance=distance)
    expected = oracle(queries, gallery, distance)
    torch.testing.assert_close(distances.double(), expected.gather(1, indices), rtol=1e-6, atol=2e-7)
    torch.testing.assert_close(distances.double(), expected.sort(1).values[:, :9], rtol=1e-6, atol=2e-7)
    assert all(row.unique().numel() == 9 for row in indices)


@pytest.mark.parametrize("shift", [0.0, 1000.0])
def test_near_rows_far_from_the_origin_keep_their_distance(shift: float) -> None:
    gallery = shift + torch.tensor([[0.0, 0.0], [0.03125, 0.0], [0.0, 0.0625]])
    distances, _ = nearest_neighbours(gallery[:1], gallery, k=3, distance="euclidean")
    assert distances.tolist() == [[0.0, 0.03125, 0.0625]]


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("dim", [5, 64, 513])
def test_the_same_bits_for_any_chunk_size_and_row_order(distance: Distance, dim: int) -> None:
    queries, gallery = sample(23, dim) * 10, sample(67, dim, seed=1)
    distances, indices = nearest_neighbours(queries, gallery, k=67, distance=distance)
    for chunk_size in (1, 2, 7, 22, 23, 24):
        others = nearest_neighbours(queries, gallery, k=67, distance=distance, chunk_size=chunk_size)
        assert torch.equal(others[0], distances)
        assert torch.equal(others[1], indices)
    order = torch.randperm(67, generator=torch.Generator().manual_seed(0))
    assert torch.equal(nearest_neighbours(queries, gallery[order], k=67, distance=distance)[0], distances)


@pytest.mark.parametrize("distance", DISTANCES)
def test_equal_rows_are_at_distance_zero(distance: Distance) -> None:
    points = sample(500, 33) * torch.logspace(-30, 30, 500)[:, None]
    assert nearest_neighbours(points, points, k=1, distance=distance)[0].max() == 0


def test_exclude_leaves_out_by_index_only() -> None:
    points = torch.ones(4, 2)
    distances, indices = nearest_neighbours(points, points, k=3, exclude=torch.tensor([0, 1, -1, 3]))
    assert indices.tolist() == [[1, 2, 3], [0, 2, 3], [0, 1, 2], [0, 1, 2]]
    assert distances.max() < 1e-12


def test_zero_vectors_are_at_distance_one() -> None:
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    assert nearest_neighbours(points, points, k=2)[0].tolist() == [[1.0, 1.0], [0.0, 1.0]]


def test_half_precision_is_read_as_float32() -> None:
    points = sample(9, 16).bfloat16()
    assert torch.equal(nearest_neighbours(points, points, k=4)[1], nearest_neighbours(points.float(), points, k=4)[1])


def test_no_queries_find_nothing() -> None:
    distances, indices = nearest_neighbours(sample(0, 3), sample(5, 3), k=2)
    assert distances.shape == indices.shape == (0, 2)


@pytest.mark.usefixtures("unchecked")
def test_refuses() -> None:
    points = sample(5, 3)
    own = torch.arange(5)
    for k, exclude in ((0, None), (6, None), (5, own)):
        with pytest.raises(ValueError, match=f"k is {k} but must be a whole number from 1 to"):
            nearest_neighbours(points, points, k=k, exclude=exclude)
    with pytest.raises(ValueError, match=r"k is 1\.5 but must be a whole number from 1 to 5"):
        nearest_neighbours(points, points, k=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="distance is 'dot' but must be 'cosine' or 'euclidean'"):
        nearest_neighbours(points, points, k=1, distance="dot")  # type: ignore[arg-type]
    wrong = ((own[:3], "one per query"), (own + 1, "outside -1 to 4"), (own - 2, "outside"))
    for bad, words in wrong:
        with pytest.raises(ValueError, match=words):
            nearest_neighbours(points, points, k=1, exclude=bad)
    with pytest.raises(ValueError, match="2 dimensions but queries 3"):
        nearest_neighbours(points, points[:, :2], k=1)
    with pytest.raises(ValueError, match="queries has shape"):
        nearest_neighbours(points[0], points, k=1)
    with pytest.raises(ValueError, match="chunk_size is 0"):
        nearest_neighbours(points, points, k=1, chunk_size=0)
    with pytest.raises(ValueError, match="at least one dimension"):
        nearest_neighbours(points[:, :0], points[:, :0], k=1)


@pytest.mark.parametrize("distance", DISTANCES)
def test_rows_of_a_querys_sequence_are_not_listed(distance: Distance) -> None:
    points = sample(40, 3).repeat(2, 1).round(decimals=1)  # with ties that the shortlist cannot settle
    sequences = torch.arange(80) % 7 - 1
    sequences[:30] = 9
    expected = oracle(points, points, distance).masked_fill(
        (sequences[:, None] == sequences) & (sequences >= 0), torch.inf
    )
    expected.fill_diagonal_(torch.inf)
    for k in (5, 60):
        distances, indices = nearest_neighbours(
            points, points, k=k, distance=distance, exclude=torch.arange(80),
            query_sequences=sequences, gallery_sequences=sequences,
        )  # fmt: skip
        torch.testing.assert_close(distances.double(), expected.sort(1).values[:, :k], rtol=1e-6, atol=2e-7)
        assert torch.equal(indices == -1, distances.isinf())
    assert bool((indices[:30] == -1).any())
