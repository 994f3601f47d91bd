"""Queries with their neighbours: the worst, the median and random ones, or chosen ones."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Int64
from markupsafe import Markup
from torch import Tensor

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.metrics import nearest_neighbours
from proxemic.pages import Section, render_page
from proxemic.pages.page import check_page
from proxemic.report.judged import Judged, name_of, picture_at, picture_of, render, shown
from proxemic.studies.evaluation import Evaluation

EACH, _NEIGHBOURS = 6, 6  # queries of each kind, and their neighbours
_RANKED = 512  # queries that are sorted by the rank of their first right neighbour, too


def queries(judged: Judged, *, count: int = EACH, seed: int = 0) -> Section | None:
    """Show the worst, the median and random queries by average precision, each with its neighbours."""
    asked = len(judged.found.queries)
    if not asked or not judged.found.neighbours.shape[1]:
        return None
    order = hardest_first(judged)
    if order is None:
        random = torch.randperm(asked, generator=torch.Generator().manual_seed(seed))[:count].sort().values
        return Section("Queries", _groups(judged, {"Random queries": random}))
    drawn = torch.randperm(len(order), generator=torch.Generator().manual_seed(seed))
    chosen = {
        "The worst queries": _one_per_class(judged, order, count),
        "Queries near the median": _one_per_class(judged, order[max(0, len(order) // 2 - count // 2) :], count),
        "Random queries": _one_per_class(judged, order.sort().values[drawn], count),
    }
    note = Markup(
        "<p>Worst first, by average precision over the first R neighbours (MAP@R is the mean), where R is the number "
        "of other images of the class; one query per class.</p>"
    )
    return Section("Queries", note + _groups(judged, chosen))


def _one_per_class(judged: Judged, order: Int64[Tensor, " places"], count: int) -> Int64[Tensor, " count"]:
    """Take the first query of each class, and further queries if there are fewer classes than that."""
    labels = judged.metrics.labels[order].tolist()
    first = {label: place for place, label in reversed([*enumerate(labels)])}
    places = sorted(first.values()) + sorted({*range(len(labels))} - {*first.values()})
    return order[sorted(places[:count])]


def worst_queries(judged: Judged, count: int) -> Section:
    """Show only the worst queries; raise `ValueError` without labels."""
    order = hardest_first(judged)
    if order is None:
        raise ValueError("the worst queries find the fewest of their class, but there are no labels")
    return Section("The worst queries", _groups(judged, {"": order[:count]}))


def chosen_queries(judged: Judged, rows: Sequence[int]) -> Section:
    """Show the queries of the given rows, in this order; raise `ValueError` if a row is not a query."""
    place = {row: number for number, row in enumerate(judged.found.queries.tolist())}
    missing = [name_of(judged, row) for row in rows if row not in place]
    if missing:
        raise ValueError(f"{missing[0]} is in the gallery, but is not a query.")
    return Section("Chosen queries", _groups(judged, {"": torch.tensor([place[row] for row in rows])}))


def hardest_first(judged: Judged) -> Int64[Tensor, " evaluated"] | None:
    """Sort queries that have something to find by rising average precision; return their places, None without labels.

    Among the first 512, queries with the same precision are sorted by the rank of their first right neighbour, the
    latest first.
    """
    if not has_labels(judged):
        return None
    metrics = judged.metrics
    places = metrics.evaluated.nonzero().squeeze(1)
    # Rounded, so that the order of a sum makes no difference.
    precision = (1e9 * metrics.per_query["map@r"][places]).round()
    order = precision.argsort(stable=True)
    first = order[:_RANKED]
    ranks = first_right_ranks(judged, places[first])
    # The least significant first, as each sort is stable.
    first = first[ranks.argsort(descending=True, stable=True)]
    first = first[precision[first].argsort(stable=True)]
    return places[torch.cat([first, order[_RANKED:]])]


def first_right_ranks(judged: Judged, places: Int64[Tensor, " some"]) -> Int64[Tensor, " some"]:
    """Return the rank of each query's first neighbour of the right class, from 1; each query must have one."""
    labels, rows = judged.images.labels, judged.found.queries[places]
    is_query = torch.zeros(len(labels), dtype=torch.bool).index_fill(0, rows, True)
    is_gallery = torch.zeros(len(labels), dtype=torch.bool).index_fill(0, judged.found.gallery, True)
    found = replace(judged.found, is_query=is_query, is_gallery=is_gallery).metrics(recall_at=(1,), mrr=True)
    return (1 / found.per_query["mrr"]).round().long()[rows.argsort().argsort()]  # by rows, ascending


def has_labels(judged: Judged) -> bool:
    """Return whether any query has another image of its class to find."""
    labels, rows = judged.images.labels, judged.found.queries
    if not bool((labels[rows] >= 0).any()):
        return False
    try:
        return bool(judged.metrics.queries)
    except ValueError:  # no two images have the same label
        return False


def _groups(judged: Judged, chosen: dict[str, Int64[Tensor, " places"]]) -> Markup:
    groups = {title: [_query(judged, place) for place in places.tolist()] for title, places in chosen.items()}
    return render("queries.html", groups=groups)


def _query(judged: Judged, place: int) -> dict[str, object]:
    near = judged.found
    row = int(near.queries[place])
    label = judged.label(row)
    pairs = zip(near.neighbours[place].tolist()[:_NEIGHBOURS], near.distances[place].tolist(), strict=False)
    listed = [
        _neighbour(judged, other, label, distance, rank)
        for rank, (other, distance) in enumerate(pairs, start=1)
        if other >= 0
    ]
    said, late = "", None
    if has_labels(judged) and bool(judged.metrics.evaluated[place]):
        rank = int(first_right_ranks(judged, torch.tensor([place]))[0])
        said = f"average precision {100 * judged.metrics.per_query['map@r'][place]:.1f}\N{NO-BREAK SPACE}%"
        late = _first_right(judged, place, rank) if rank > len(listed) else None
    elif label is not None:
        said = "nothing else of its class"
    facts = {"label": label, "name": name_of(judged, row), "said": said}
    return {"picture": shown(judged, row, "the query"), **facts, "neighbours": listed, "first_right": late}


def _neighbour(judged: Judged, row: int, wanted: str | None, distance: float, rank: int) -> dict[str, object]:
    label = judged.label(row)
    right = None if wanted is None or label is None else label == wanted
    facts = {"label": label, "right": right, "distance": distance, "name": name_of(judged, row), "rank": rank}
    return {"picture": shown(judged, row, f"neighbour {rank}"), **facts}


def _first_right(judged: Judged, place: int, rank: int) -> dict[str, object]:
    """Describe the nearest image of a query's class, which may be far down the list."""
    labels, row = judged.images.labels, int(judged.found.queries[place])
    same = judged.found.gallery
    same = same[(labels[same] == labels[row]) & (same != row)]
    if judged.images.sequences is not None and (own := int(judged.images.sequences[row])) >= 0:
        same = same[judged.images.sequences[same] != own]
    distances, found = nearest_neighbours(
        judged.embeddings[[row]], judged.embeddings[same], k=1, distance=judged.config.distance
    )
    return _neighbour(judged, int(same[found[0, 0]]), judged.label(row), float(distances[0, 0]), rank)


_MOST = 100  # queries, some 5 MB where images are noise
_LOCAL = ("/",)  # a file of embeddings from elsewhere may name URLs, which are not opened


def draw_queries(evaluation: Evaluation, out: str | Path, *, worst: int = 0, chosen: Sequence[str] = ()) -> Path:
    """Draw queries of an evaluation, each with its nearest neighbours and the first right one.

    If the embeddings were made elsewhere, images are read on this machine by the paths of the rows.

    Args:
        evaluation: The evaluation of one model by `proxemic.evaluate`.
        out: The page, ``.html``, which works offline.
        worst: How many of the worst queries to draw, at most 100: those with the lowest average precision over the
            first R neighbours and, if these are equal, the latest first right neighbour.
        chosen: Paths of queries, or the ends of paths.

    Returns:
        The page.

    Raises:
        UserError: If there is no such query, or several, or the page cannot be written.

    Example::

        evaluation = proxemic.evaluate("runs/photos")
        proxemic.report.draw_queries(evaluation, "worst.html", worst=20)
    """
    path, target = Path(out), evaluation.targets[0]
    check_drawing(path, worst, chosen)
    images = target.images
    read = partial(picture_at, images.names, _LOCAL) if images.rows.pixels is None else partial(picture_of, images)
    judged = Judged(target.name, target.split, target.embeddings, images, target.config, read)
    sections = []
    if chosen:
        try:
            sections.append(chosen_queries(judged, [_row(judged, item) for item in chosen]))
        except ValueError as error:
            raise UserError(str(error)) from error
    if worst:
        sections.append(worst_queries(judged, worst))
    write_text(path, render_page(f"Queries of {target.name}", sections))
    return path


def check_drawing(out: Path, worst: int, chosen: Sequence[str]) -> None:
    """Raise `UserError` if `draw_queries` refuses these arguments; call it before an evaluation takes minutes."""
    check_page(out, "The page")
    if not 0 <= worst <= _MOST or len(chosen) > _MOST or not (worst or chosen):
        raise UserError(
            f"There are {worst:,} worst and {len(chosen):,} chosen queries to draw (--worst, --chosen), but there must "
            f"be some, and at most {_MOST} of each."
        )


def _row(judged: Judged, wanted: str) -> int:
    names = [name_of(judged, row) for row in range(len(judged.embeddings))]
    end = "/" + wanted.lstrip("/")
    found = [row for row, name in enumerate(names) if name == wanted] or [
        row for row, name in enumerate(names) if ("/" + name).endswith(end)
    ]
    if len(found) != 1:
        said = f"{len(found):,} images end in it" if found else "no image has this path"
        example = names[found[0] if found else 0]
        raise UserError(f"--chosen is {wanted}, but {said}: give one of them, such as {example}.")
    return found[0]
