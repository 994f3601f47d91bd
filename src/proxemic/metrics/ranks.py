"""Where every relevant item stands in the whole gallery, found by counting what lies before it."""

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from proxemic.metrics.neighbours import EXACT_COLUMNS, EXACT_ROWS, NeighbourSearch

_DISTANCES = 2**24  # of some queries to the whole gallery, held at once: 64 MB


def queries_at_once(gallery: int) -> int:
    """How many queries `relevant_ranks` is best called with, for a gallery of so many rows.

    >>> queries_at_once(60_502), queries_at_once(100)
    (277, 512)
    """
    return max(1, min(EXACT_ROWS, _DISTANCES // gallery))


def relevant_ranks(
    search: NeighbourSearch,
    rows: Int64[Tensor, "queries"],
    most: int,
    query_labels: Int64[Tensor, "all"],
    gallery_labels: Int64[Tensor, "gallery"],
) -> Float64[Tensor, "queries most"]:
    """Rank the relevant items of some queries among all that they see, by exact distances.

    Of items at the same distance the irrelevant ones come first.

    Args:
        search: Of the queries and the gallery.
        rows: Which queries.
        most: Relevant items of a query at most.
        query_labels: Of all queries.
        gallery_labels: Of the gallery.

    Returns:
        Ranks from 1 in ascending order; infinite where there are no more relevant items.
    """
    distances = torch.empty(len(rows), len(gallery_labels), device=search.device)
    bounds = torch.full((len(rows), most), torch.inf, device=search.device)
    listed = torch.zeros_like(rows)
    for part, tile in search.exact_tiles(rows):
        relevant = (query_labels[rows, None] == gallery_labels[part]) & tile.isfinite()
        query, column = relevant.nonzero(as_tuple=True)
        bounds[query, listed[query] + relevant.cumsum(1)[query, column] - 1] = tile[query, column]
        listed += relevant.sum(1)
        distances[:, part] = tile.masked_fill_(relevant, torch.inf)
    bounds = bounds.sort(1).values
    # An irrelevant item lies before all relevant ones that are as far away or farther: counted at the first of them.
    counts = torch.zeros(len(rows), most + 1, dtype=torch.int64, device=search.device)
    one = torch.ones((), dtype=torch.int64, device=search.device)
    for part in distances.split(EXACT_COLUMNS, 1):
        places = torch.searchsorted(bounds, part.contiguous())
        counts.scatter_add_(1, places, one.expand_as(places))
    ranks = counts[:, :-1].cumsum(1) + torch.arange(1, most + 1, device=search.device)
    return ranks.double().masked_fill_(bounds.isinf(), torch.inf)
