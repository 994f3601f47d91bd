"""The float32 shortlist: it agrees with the exact search, and its errors stay within their bound."""

import pytest
import torch
from torch import Tensor

from metrics.points import DISTANCES, sample
from proxemic.metrics import nearest_neighbours
from proxemic.metrics.exact import Distance, ExactRows
from proxemic.metrics.neighbours import NeighbourSearch
from proxemic.metrics.relevance import ranked_relevance
from proxemic.metrics.shortlist import ShortlistSearch


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


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", KINDS)
def test_quick_and_exact_search_agree(kind: str, distance: Distance) -> None:
    points, k = awkward(kind, 1200, 24), 40
    own, here = torch.arange(1200), torch.arange(1200).cpu()
    exact = NeighbourSearch(points.cpu(), points.cpu(), distance, here)
    keys = torch.cat([exact.compare_with_all(rows, k) for rows in here.split(500)])
    distances, indices = nearest_neighbours(points, points, k=k, distance=distance, exclude=own)
    assert torch.equal(indices.cpu(), keys & (2**31 - 1))
    assert torch.equal(distances.cpu().view(torch.int32).long(), keys >> 32)

    labels = torch.randint(60, (1200,), generator=torch.Generator().manual_seed(1))
    exact = NeighbourSearch(points.cpu(), points.cpu(), distance, here, labels=(labels.cpu(), labels.cpu()))
    keys = torch.cat([exact.compare_with_all(rows, k) for rows in here.split(500)])
    search = NeighbourSearch(points, points, distance, own, labels=(labels, labels))
    relevance, certain = ranked_relevance(search, own, k)
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
    uncertainty = listed.uncertainty[:, None]
    pairs = torch.arange(300)[:, None].expand_as(listed.indices).flatten()
    exact = search.distances(pairs, listed.indices.flatten()).double().view_as(found)
    low, high = (search.near.distances((listed.values + side * uncertainty / 2).clamp(min=0)) for side in (-1, 1))
    assert (exact >= low * (1 - 1e-6)).all()
    assert (exact <= high * (1 + 1e-6)).all()
    if kind == "random":
        assert ((high - low) / found)[:, 1:].max() < 1e-3, "a bound that is of use"


def test_the_bound_by_hand() -> None:
    rows = ExactRows(torch.tensor([[3.0, 0.0], [-3.0, 0.0]]), "rows")
    search = ShortlistSearch(rows, rows, "euclidean")
    # Scaled by 2⁻², both rows have the length 3/4 and half the square 9/32; products have two terms, sums two more.
    unit, reach, height = 2.0**-24, 3 / 4, 9 / 32
    products = 2 * 4 * unit / (1 - 4 * unit) * (reach**2 + height)
    rounding = 5 * unit * reach**2 + 2 * unit * height
    tiny = 4 * 2 * 2.0**-126 * (1 + 2 * reach)
    expected = 2 * (products + rounding + tiny) + 2.0**-20 * (2 * reach) ** 2
    assert search.nearest(torch.arange(2), 1, None).uncertainty.tolist() == pytest.approx([expected] * 2, rel=1e-12)
    rows = ExactRows(torch.zeros(2, 2), "rows")
    search = ShortlistSearch(rows, rows, "euclidean")
    assert search.nearest(torch.arange(2), 1, None).uncertainty.tolist() == [2 * 4 * 2 * 2.0**-126] * 2, (
        "what may be lost"
    )


def test_the_size_of_tiles_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    points = sample(200, 16)
    expected = nearest_neighbours(points, points, k=30)
    monkeypatch.setattr("proxemic.metrics.shortlist._TILE", 1000)
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
