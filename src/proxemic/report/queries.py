"""The section of queries with their neighbours: the worst, the median and random ones, or chosen ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int64
from markupsafe import Markup
from torch import Tensor

from proxemic.metrics import nearest_neighbours
from proxemic.pages import Section
from proxemic.report.judged import Judged
from proxemic.report.pictured import name_of, render, shown

EACH, _NEIGHBOURS = 6, 6  # queries of each kind, and neighbours of each
_RANKED = 512  # queries whose first right neighbour is looked for wherever it is


@dataclass(frozen=True)
class _Neighbour:
    picture: Markup
    label: str | None
    right: bool | None
    distance: float
    name: str
    rank: int


@dataclass(frozen=True)
class _Query:
    picture: Markup
    label: str | None
    name: str
    said: str
    neighbours: tuple[_Neighbour, ...]
    first_right: _Neighbour | None


def queries(judged: Judged, *, count: int = EACH, seed: int = 0) -> Section | None:
    """The queries of the lowest average precision, of the median one, and random ones, each with its neighbours."""
    asked = len(judged.found.queries)
    if not asked or not judged.found.neighbours.shape[1]:
        return None
    order = hardest_first(judged)
    if order is None:
        random = torch.randperm(asked, generator=torch.Generator().manual_seed(seed))[:count].sort().values
        return Section("Queries", _groups(judged, {"Random queries": random}))
    middle = max(0, len(order) // 2 - count // 2)
    drawn = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))[:count].sort().values
    chosen = {
        "The worst queries": order[:count],
        "Queries about the median": order[middle : middle + count],
        "Random queries": order.sort().values[drawn],
    }
    note = Markup(
        "<p>A query is the worse the lower its average precision over the first R neighbours (MAP@R is the mean), R "
        "being the number of other pictures of its class; of equal ones, the later its first right neighbour comes. "
        "Random ones are drawn by the seed {}.</p>"
    ).format(seed)
    return Section("Queries", note + _groups(judged, chosen))


def worst_queries(judged: Judged, count: int) -> Section:
    """The worst queries alone; `ValueError` where rows have no labels."""
    order = hardest_first(judged)
    if order is None:
        raise ValueError("the worst queries are those that find the fewest of their class, but there are no labels")
    return Section("The worst queries", _groups(judged, {"": order[:count]}))


def chosen_queries(judged: Judged, rows: Sequence[int]) -> Section:
    """Some queries by their rows, in this order; `ValueError` where a row is no query."""
    place = {row: number for number, row in enumerate(judged.found.queries.tolist())}
    missing = [name_of(judged, row) for row in rows if row not in place]
    if missing:
        raise ValueError(f"{missing[0]} is in the gallery, but no query.")
    return Section("Chosen queries", _groups(judged, {"": torch.tensor([place[row] for row in rows])}))


def hardest_first(judged: Judged) -> Int64[Tensor, " evaluated"] | None:
    """Places of the queries that have something to find, by rising average precision at R; None without labels.

    Of the first 512, those of the same come by the rank of their first right neighbour, the latest first.
    """
    if not has_labels(judged):
        return None
    metrics = judged.metrics
    places = metrics.evaluated.nonzero().squeeze(1)
    # Sums of the same fractions in another order are the same.
    precision = (1e9 * metrics.per_query["map@r"][places]).round()
    order = precision.argsort(stable=True)
    first = order[:_RANKED]
    ranks = first_right_ranks(judged, places[first])
    # The least significant first, as each sort is stable.
    first = first[ranks.argsort(descending=True, stable=True)]
    first = first[precision[first].argsort(stable=True)]
    return places[torch.cat([first, order[_RANKED:]])]


def first_right_ranks(judged: Judged, places: Int64[Tensor, " some"]) -> Int64[Tensor, " some"]:
    """The rank, from 1, of the first neighbour of the right class of some queries that have one."""
    labels, rows = judged.rows.labels, judged.found.queries[places]
    assert labels is not None
    is_query = torch.zeros(len(labels), dtype=torch.bool).index_fill(0, rows, True)
    is_gallery = torch.zeros(len(labels), dtype=torch.bool).index_fill(0, judged.found.gallery, True)
    found = replace(judged.found, is_query=is_query, is_gallery=is_gallery).metrics(recall_at=(1,), mrr=True)
    return (1 / found.per_query["mrr"]).round().long()[rows.argsort().argsort()]  # by rows, ascending


def has_labels(judged: Judged) -> bool:
    """Whether a query has another picture of its class to find."""
    labels, rows = judged.rows.labels, judged.found.queries
    if labels is None or not bool((labels[rows] >= 0).any()):
        return False
    try:
        return bool(judged.metrics.queries)
    except ValueError:  # no two pictures have the same label
        return False


def _groups(judged: Judged, chosen: dict[str, Int64[Tensor, " places"]]) -> Markup:
    groups = {title: [_query(judged, place) for place in places.tolist()] for title, places in chosen.items()}
    return render("queries.html", groups=groups)


def _query(judged: Judged, place: int) -> _Query:
    near = judged.found
    row = int(near.queries[place])
    label = judged.label(row)
    listed = [
        _neighbour(judged, each, label, distance, rank)
        for rank, (each, distance) in enumerate(
            zip(near.neighbours[place].tolist()[:_NEIGHBOURS], near.distances[place].tolist(), strict=False), start=1
        )
        if each >= 0
    ]
    said, late = "", None
    if has_labels(judged) and bool(judged.metrics.evaluated[place]):
        rank = int(first_right_ranks(judged, torch.tensor([place]))[0])
        said = f"average precision {judged.metrics.per_query['map@r'][place]:.2f}"
        late = _first_right(judged, place, rank) if rank > len(listed) else None
    elif label is not None:
        said = "nothing else of its class"
    return _Query(shown(judged, row, "the query"), label, name_of(judged, row), said, tuple(listed), late)


def _neighbour(judged: Judged, row: int, wanted: str | None, distance: float, rank: int) -> _Neighbour:
    label = judged.label(row)
    right = None if wanted is None or label is None else label == wanted
    return _Neighbour(shown(judged, row, f"neighbour {rank}"), label, right, distance, name_of(judged, row), rank)


def _first_right(judged: Judged, place: int, rank: int) -> _Neighbour:
    """The nearest row of the class of a query, which may be far down the list."""
    labels, row = judged.rows.labels, int(judged.found.queries[place])
    assert labels is not None
    same = judged.found.gallery
    same = same[(labels[same] == labels[row]) & (same != row)]
    if judged.rows.sequences is not None and (own := int(judged.rows.sequences.numbers[row])) >= 0:
        same = same[judged.rows.sequences.numbers[same] != own]
    distances, found = nearest_neighbours(
        judged.embeddings[[row]], judged.embeddings[same], k=1, distance=judged.config.distance
    )
    return _neighbour(judged, int(same[found[0, 0]]), judged.label(row), float(distances[0, 0]), rank)
