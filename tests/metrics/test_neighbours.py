"""Nearest neighbours against a float64 oracle, and independence of how they are computed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxemic.metrics import nearest_neighbours
from proxemic.metrics.exact import Distance, ExactRows, distance_block, pair_distances
from proxemic.metrics.neighbours import NeighbourSearch
from proxemic.metrics.relevance import ranked_relevance
from proxemic.metrics.shortlist import largest

DISTANCES: tuple[Distance, ...] = ("cosine", "euclidean")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def oracle(queries: Tensor, gallery: Tensor, distance: str) -> Tensor:
    left, right = queries.double(), gallery.double()
    if distance == "euclidean":
        return (left[:, None] - right).square().sum(2).sqrt()
    norms = left.norm(dim=1)[:, None] * right.norm(dim=1)
    return 1 - left @ right.T / norms


def sample(rows: int, dim: int, seed: int = 0) -> Tensor:
    return torch.randn(rows, dim, generator=torch.Generator().manual_seed(seed))


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
def test_equal_rows_have_the_very_same_distance(distance: Distance) -> None:
    gallery = sample(7, 37).repeat(31, 1)
    left, right, every = ExactRows(sample(5, 37, seed=1), "left"), ExactRows(gallery, "right"), torch.arange(5)
    distances = distance_block(left, right, every, slice(0, 217), distance)
    assert (distances.view(5, 31, 7) == distances.view(5, 31, 7)[:, :1]).all()
    pairs = torch.cartesian_prod(every, torch.arange(217))
    assert torch.equal(pair_distances(left, right, pairs[:, 0], pairs[:, 1], distance), distances.flatten())
    _, indices = nearest_neighbours(sample(5, 37, seed=1), gallery, k=31, distance=distance)
    assert (indices.diff(dim=1) == 7).all(), "equal distances come in the order of the rows"


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


@pytest.mark.parametrize("distance", DISTANCES)
def test_equal_rows_are_at_distance_zero(distance: Distance) -> None:
    points = sample(500, 33) * torch.logspace(-30, 30, 500)[:, None]
    assert nearest_neighbours(points, points, k=1, distance=distance)[0].max() == 0


def awkward(kind: str, rows: int, dim: int) -> Tensor:
    """Embeddings that rounding could rank wrongly."""
    points = sample(rows, dim)
    return {
        "random": lambda: points,
        "collapsed": lambda: 1 + 1e-4 * points,
        "duplicated": lambda: points[: rows // 10].repeat(10, 1),
        "binary": points.sign,
        "some zero": lambda: points * (torch.arange(rows) % 7 > 0)[:, None],
        "one far away": lambda: points * torch.where(torch.arange(rows) == 3, 1e6, 1.0)[:, None],
        "huge": lambda: points * 1e30,
        "tiny": lambda: points * 1e-30,
        "all the same": lambda: points[:1].expand(rows, -1).contiguous(),
    }[kind]()


KINDS = ("random", "collapsed", "duplicated", "binary", "some zero", "one far away", "huge", "tiny", "all the same")


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", KINDS)
def test_quick_and_exact_search_agree(kind: str, distance: Distance, device: str) -> None:
    points, k = awkward(kind, 1200, 24).to(device), 40
    own = torch.arange(1200)
    exact = NeighbourSearch(points.cpu(), points.cpu(), distance, own)
    keys = torch.cat([exact.compare_with_all(rows, k) for rows in own.split(500)])
    distances, indices = nearest_neighbours(points, points, k=k, distance=distance, exclude=own.to(device))
    assert torch.equal(indices.cpu(), keys & (2**31 - 1))
    assert torch.equal(distances.cpu().view(torch.int32).long(), keys >> 32)

    labels = torch.randint(60, (1200,), generator=torch.Generator().manual_seed(1))
    keys = torch.cat([exact.compare_with_all(rows, k, (labels, labels)) for rows in own.split(500)])
    search = NeighbourSearch(points, points, distance, own)
    relevance, certain = ranked_relevance(search, own.to(device), k, labels.to(device), labels.to(device))
    assert torch.equal(relevance[certain].cpu(), (keys & 2**31 != 0)[certain.cpu()])
    if kind in ("random", "collapsed", "huge", "tiny"):
        assert certain.all(), "the quick way is taken where it can be"
    if kind == "all the same":
        assert not certain.any()


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", KINDS)
def test_rounding_is_within_its_bound(kind: str, distance: Distance) -> None:
    points = awkward(kind, 300, 200)
    search = NeighbourSearch(points, points, distance, None)
    listed = search.shortlist(torch.arange(300), 280)
    found = search.near.distances(listed.values)
    doubt = listed.doubt[:, None]
    pairs = torch.arange(300)[:, None].expand_as(listed.indices).flatten()
    exact = search.distances(pairs, listed.indices.flatten()).double().view_as(found)
    low, high = (search.near.distances((listed.values + side * doubt / 2).clamp(min=0)) for side in (-1, 1))
    assert (exact >= low * (1 - 1e-6)).all()
    assert (exact <= high * (1 + 1e-6)).all()
    if kind == "random":
        assert ((high - low) / found)[:, 1:].max() < 1e-3, "a bound that is of use"


def test_the_search_does_not_care_for_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    points = sample(500, 16)
    expected = nearest_neighbours(points, points, k=30)
    monkeypatch.setattr("proxemic.metrics.shortlist._TILE", 2000)
    monkeypatch.setattr("proxemic.metrics.neighbours.EXACT_COLUMNS", 70)
    for chunk_size in (None, 1, 37):
        found = nearest_neighbours(points, points, k=30, chunk_size=chunk_size)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("far", [1e18, 3e20, 1e30])
@pytest.mark.parametrize("distance", DISTANCES)
def test_one_query_far_away_does_not_blur_the_others(distance: Distance, far: float) -> None:
    gallery = sample(1000, 64)
    queries = torch.cat([sample(20, 64, seed=1), far * sample(1, 64, seed=2)])
    found = nearest_neighbours(queries, gallery, k=10, distance=distance)
    alone = nearest_neighbours(queries[:20], gallery, k=10, distance=distance)
    assert torch.equal(found[1][:20], alone[1])
    assert torch.equal(found[0][:20], alone[0])


@given(st.integers(1, 300), st.integers(1, 20), st.integers(0, 2**32 - 1), st.booleans())
def test_largest_are_the_largest(width: int, k: int, seed: int, floored: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-20, 20, (4, width), generator=generator)
    floor = torch.randint(-25, 25, (4,), generator=generator) if floored else None
    found, places = largest(values, k, floor)
    assert torch.equal(values.gather(1, places), found)
    for row, (mine, those) in enumerate(zip(found, places, strict=True)):
        assert those.unique().numel() == len(those)
        least = -100 if floor is None else int(floor[row])
        expected = [value for value in values[row].sort(descending=True).values[:k].tolist() if value > least]
        assert sorted(mine[mine > least].tolist(), reverse=True) == expected


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


def test_refuses() -> None:
    points = sample(5, 3)
    own = torch.arange(5)
    for k, exclude in ((0, None), (6, None), (5, own)):
        with pytest.raises(ValueError, match=f"k is {k} but must be from 1 to"):
            nearest_neighbours(points, points, k=k, exclude=exclude)
    wrong = ((own[:3], "one a query"), (own.float(), "int64"), (own + 1, "outside -1 to 4"), (own - 2, "outside"))
    for bad, words in wrong:
        with pytest.raises(ValueError, match=words):
            nearest_neighbours(points, points, k=1, exclude=bad)
    with pytest.raises(ValueError, match="dimensions a row"):
        nearest_neighbours(points, points[:, :2], k=1)
    with pytest.raises(ValueError, match="queries has shape"):
        nearest_neighbours(points[0], points, k=1)
    with pytest.raises(ValueError, match="chunk_size is 0"):
        nearest_neighbours(points, points, k=1, chunk_size=0)
    broken = points.clone()
    broken[1, 0], broken[3] = torch.nan, torch.inf
    with pytest.raises(ValueError, match="gallery has NaN or infinite values in 2 of 5 rows"):
        nearest_neighbours(points, broken, k=1)
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
