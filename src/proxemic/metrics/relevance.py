"""Which of the nearest rows are relevant, in their exact order."""

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from proxemic.metrics.neighbours import NeighbourSearch
from proxemic.metrics.shortlist import Shortlist


def ranked_relevance(
    search: NeighbourSearch,
    rows: Int64[Tensor, "queries"],
    k: int,
    query_labels: Int64[Tensor, "all"],
    gallery_labels: Int64[Tensor, "gallery"],
) -> tuple[Bool[Tensor, "queries k"], Bool[Tensor, "queries"]]:
    """Tell whether each of the k nearest rows has the label of its query, the irrelevant first among equally near ones.

    Only where a relevant and an irrelevant row are closer to each other than rounding can tell apart are their
    distances computed exactly: the order among the relevant ones does not matter.

    Returns:
        Relevance, and for which queries it is certain; the others need the whole gallery.
    """
    listed = search.shortlist(rows, k)
    relevant = query_labels[rows, None] == gallery_labels[listed.indices]
    relevant &= listed.values.isfinite()  # what the query does not see, at the end
    certain = listed.certain(k, len(gallery_labels))
    gaps = listed.values.diff(dim=1) <= listed.doubt[:, None]
    mixed = (gaps & (relevant[:, 1:] != relevant[:, :-1])).any(1) & certain
    if bool(mixed.any()):
        part = Shortlist(listed.values[mixed], listed.indices[mixed], listed.doubt[mixed])
        relevant[mixed] = _reordered(search, rows[mixed], part, relevant[mixed])
    return relevant[:, :k], certain


def _reordered(
    search: NeighbourSearch,
    rows: Int64[Tensor, "queries"],
    listed: Shortlist,
    relevant: Bool[Tensor, "queries listed"],
) -> Bool[Tensor, "queries listed"]:
    values, doubt = listed.values, listed.doubt[:, None]
    unsure = torch.where(relevant, _near(values, ~relevant, doubt), _near(values, relevant, doubt))
    unsure &= values.isfinite()
    distances = search.near.distances(values)
    query, place = unsure.nonzero(as_tuple=True)
    distances[query, place] = search.distances(rows[query], listed.indices[query, place]).double()
    # The bits of a float >= 0 sort as it does; relevance below them puts the irrelevant first among equals.
    keys = distances.float().view(torch.int32).long().mul_(2).add_(relevant)
    return keys.sort(1).values.bitwise_and_(1).bool()


def _near(
    values: Float64[Tensor, "queries listed"],
    among: Bool[Tensor, "queries listed"],
    doubt: Float64[Tensor, "queries 1"],
) -> Bool[Tensor, "queries listed"]:
    """Whether a value, of ascending ones, has one of `among` within `doubt` of it."""
    before = values.masked_fill(~among, -torch.inf).cummax(1).values
    after = values.masked_fill(~among, torch.inf).flip(1).cummin(1).values.flip(1)
    return (values - before <= doubt) | (after - values <= doubt)
