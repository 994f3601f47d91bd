"""Relevance of the nearest items in their exact order, counts of relevant items, and ranks of all relevant items."""

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from proxemic.metrics.neighbours import EXACT_COLUMNS, NeighbourSearch


def ranked_relevance(
    search: NeighbourSearch, rows: Int64[Tensor, "queries"], k: int
) -> tuple[Bool[Tensor, "queries k"], Bool[Tensor, "queries"]]:
    """Return the relevance of the k nearest items, irrelevant ones first on ties, and which queries are certain.

    Distances are computed exactly only where rounding might exchange a relevant item and an irrelevant one. Queries
    that are not certain must be compared with the whole gallery.
    """
    listed = search.shortlist(rows, k)
    # The query itself and its sequence, which come last, do not count.
    relevant = search.relevant(rows, listed.indices) & listed.values.isfinite()
    certain = listed.certain(k, len(search.gallery))
    gaps = listed.values.diff(dim=1) <= listed.uncertainty[:, None]
    mixed = (gaps & (relevant[:, 1:] != relevant[:, :-1])).any(1) & certain
    if bool(mixed.any()):
        values, uncertainty, ours = listed.values[mixed], listed.uncertainty[mixed, None], relevant[mixed]
        unsure = (
            torch.where(ours, _near(values, ~ours, uncertainty), _near(values, ours, uncertainty)) & values.isfinite()
        )
        query = rows[mixed, None].expand_as(unsure)[unsure]
        distances = search.near.distances(values)
        distances[unsure] = search.distances(query, listed.indices[mixed][unsure]).double()
        # The bits of floats >= 0 sort as the floats do; relevance as the last bit puts irrelevant items first on ties.
        keys = distances.float().view(torch.int32).long().mul_(2).add_(ours)
        relevant[mixed] = keys.sort(1).values.bitwise_and_(1).bool()
    return relevant[:, :k], certain


def _near(
    values: Float64[Tensor, "queries listed"],
    among: Bool[Tensor, "queries listed"],
    uncertainty: Float64[Tensor, "queries 1"],
) -> Bool[Tensor, "queries listed"]:
    """Return for each of ascending values whether one of `among` is within `uncertainty` of it."""
    before = values.masked_fill(~among, -torch.inf).cummax(1).values
    after = values.masked_fill(~among, torch.inf).flip(1).cummin(1).values.flip(1)
    return (values - before <= uncertainty) | (after - values <= uncertainty)


def relevant_ranks(
    search: NeighbourSearch, rows: Int64[Tensor, "queries"], most: int
) -> Float64[Tensor, "queries most"]:
    """Rank the relevant items of some queries, from 1, by exact distances to all items; ascending.

    Irrelevant items come first among items at the same distance. `most` is the largest number of relevant items; the
    ranks of a query with fewer end in infinity.
    """
    distances = torch.cat([tile for _, tile in search.exact_tiles(rows)], 1)
    relevant = search.relevant(rows, slice(None))
    bounds = distances.masked_fill(~relevant, torch.inf).topk(most, largest=False).values
    distances.masked_fill_(relevant, torch.inf)
    # An irrelevant item precedes all relevant items that are at least as far away: count it at the first of them.
    counts = torch.zeros(len(rows), most + 1, dtype=torch.int64, device=search.device)
    one = torch.ones((), dtype=torch.int64, device=search.device)
    for part in distances.split(EXACT_COLUMNS, 1):
        places = torch.searchsorted(bounds, part.contiguous())
        counts.scatter_add_(1, places, one.expand_as(places))
    ranks = counts[:, :-1].cumsum(1) + torch.arange(1, most + 1, device=search.device)
    return ranks.double().masked_fill_(bounds.isinf(), torch.inf)


def relevant_counts(search: NeighbourSearch) -> tuple[Int64[Tensor, "queries"], Int64[Tensor, "queries"]]:
    """Count the relevant items and all items that each query searches, without itself and its sequence."""
    assert search.labels is not None
    query_labels, gallery_labels = search.labels
    counts = _count(query_labels, gallery_labels)
    sizes = torch.full_like(counts, len(gallery_labels))
    itself, sequences = search.exclude, search.sequences
    if itself is not None:
        known = itself >= 0
        if bool((gallery_labels[itself[known]] != query_labels[known]).any()):
            raise ValueError("exclude names gallery items whose label is not the query's; they cannot be the query")
        if sequences is not None:  # do not count the query twice if its sequence excludes it already
            known &= sequences[1][itself] != sequences[0]
        counts, sizes = counts - known.long(), sizes - known.long()
    if sequences is not None:
        # Number the pairs of a sequence and a label.
        sequence = torch.cat(sequences).unique(return_inverse=True)[1]
        known, label = torch.cat([query_labels, gallery_labels]).unique(return_inverse=True)
        pairs = (sequence * len(known) + label).split([len(query_labels), len(gallery_labels)])
        counts, sizes = counts - _count(*pairs), sizes - _count(*sequences)
    return counts, sizes


def _count(wanted: Int64[Tensor, "queries"], labels: Int64[Tensor, "gallery"]) -> Int64[Tensor, "queries"]:
    known, counts = labels.unique(return_counts=True)
    place = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return counts[place] * (known[place] == wanted)
