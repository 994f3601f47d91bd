"""Which of the nearest rows are relevant, in their exact order, how many are, and the ranks of all of them."""

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from proxemic.metrics.neighbours import EXACT_COLUMNS, NeighbourSearch


def ranked_relevance(
    search: NeighbourSearch, rows: Int64[Tensor, "queries"], k: int
) -> tuple[Bool[Tensor, "queries k"], Bool[Tensor, "queries"]]:
    """Compute the relevance of the k nearest rows, irrelevant ones first on ties, and which queries are certain.

    Distances are computed exactly only where rounding might exchange a relevant row and an irrelevant one. Queries for
    which the relevance is not certain need the whole gallery.
    """
    listed = search.shortlist(rows, k)
    # Not the query itself or its sequence, which come last.
    relevant = search.relevant(rows, listed.indices) & listed.values.isfinite()
    certain = listed.certain(k, len(search.gallery))
    gaps = listed.values.diff(dim=1) <= listed.doubt[:, None]
    mixed = (gaps & (relevant[:, 1:] != relevant[:, :-1])).any(1) & certain
    if bool(mixed.any()):
        values, doubt, ours = listed.values[mixed], listed.doubt[mixed, None], relevant[mixed]
        unsure = torch.where(ours, _near(values, ~ours, doubt), _near(values, ours, doubt)) & values.isfinite()
        query = rows[mixed, None].expand_as(unsure)[unsure]
        distances = search.near.distances(values)
        distances[unsure] = search.distances(query, listed.indices[mixed][unsure]).double()
        # The bits of a float >= 0 sort as it does; relevance below them puts the irrelevant first among equals.
        keys = distances.float().view(torch.int32).long().mul_(2).add_(ours)
        relevant[mixed] = keys.sort(1).values.bitwise_and_(1).bool()
    return relevant[:, :k], certain


def _near(
    values: Float64[Tensor, "queries listed"],
    among: Bool[Tensor, "queries listed"],
    doubt: Float64[Tensor, "queries 1"],
) -> Bool[Tensor, "queries listed"]:
    """Return whether any value of `among`, in ascending values, is within `doubt` of a value."""
    before = values.masked_fill(~among, -torch.inf).cummax(1).values
    after = values.masked_fill(~among, torch.inf).flip(1).cummin(1).values.flip(1)
    return (values - before <= doubt) | (after - values <= doubt)


def relevant_ranks(
    search: NeighbourSearch, rows: Int64[Tensor, "queries"], most: int
) -> Float64[Tensor, "queries most"]:
    """Rank, from 1 and by exact distances, the relevant rows among all that some queries search, ascending.

    Of rows at the same distance the irrelevant ones come first. A query with fewer than `most` relevant rows, the
    largest number, ends in infinite ranks.
    """
    distances = torch.cat([tile for _, tile in search.exact_tiles(rows)], 1)
    relevant = search.relevant(rows, slice(None))
    bounds = distances.masked_fill(~relevant, torch.inf).topk(most, largest=False).values
    distances.masked_fill_(relevant, torch.inf)
    # An irrelevant row precedes all relevant ones that are as far away or farther: it is counted at the first of them.
    counts = torch.zeros(len(rows), most + 1, dtype=torch.int64, device=search.device)
    one = torch.ones((), dtype=torch.int64, device=search.device)
    for part in distances.split(EXACT_COLUMNS, 1):
        places = torch.searchsorted(bounds, part.contiguous())
        counts.scatter_add_(1, places, one.expand_as(places))
    ranks = counts[:, :-1].cumsum(1) + torch.arange(1, most + 1, device=search.device)
    return ranks.double().masked_fill_(bounds.isinf(), torch.inf)


def relevant_counts(search: NeighbourSearch) -> tuple[Int64[Tensor, "queries"], Int64[Tensor, "queries"]]:
    """Count the relevant rows that each query searches, and all of them, without itself and its sequence."""
    assert search.labels is not None
    query_labels, gallery_labels = search.labels
    counts = _count(query_labels, gallery_labels)
    sizes = torch.full_like(counts, len(gallery_labels))
    itself, sequences = search.exclude, search.sequences
    if itself is not None:
        known = itself >= 0
        if bool((gallery_labels[itself[known]] != query_labels[known]).any()):
            raise ValueError("exclude names gallery rows whose label is not the query's; they cannot be the query")
        if sequences is not None:  # the query itself is excluded with its sequence
            known &= sequences[1][itself] != sequences[0]
        counts, sizes = counts - known.long(), sizes - known.long()
    if sequences is not None:
        # A number for each pair of a sequence and a label.
        sequence = torch.cat(sequences).unique(return_inverse=True)[1]
        known, label = torch.cat([query_labels, gallery_labels]).unique(return_inverse=True)
        pairs = (sequence * len(known) + label).split([len(query_labels), len(gallery_labels)])
        counts, sizes = counts - _count(*pairs), sizes - _count(*sequences)
    return counts, sizes


def _count(wanted: Int64[Tensor, "queries"], labels: Int64[Tensor, "gallery"]) -> Int64[Tensor, "queries"]:
    known, counts = labels.unique(return_counts=True)
    place = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return counts[place] * (known[place] == wanted)
