"""All retrieval metrics of a set of embeddings in one pass over exact nearest neighbours."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.metrics import chance, ranking
from proxemic.metrics.arrays import as_integers, check_shape, take_arrays
from proxemic.metrics.clustering import clustering_metrics
from proxemic.metrics.confidence import AveragedOver
from proxemic.metrics.contingency import expected_nmi
from proxemic.metrics.exact import Distance
from proxemic.metrics.neighbours import EXACT_ROWS, NeighbourSearch, distances_of, indices_of, relevance_of
from proxemic.metrics.ranking import Divisor
from proxemic.metrics.relevance import ranked_relevance, relevant_counts, relevant_ranks
from proxemic.metrics.reranking import k_reciprocal_distances
from proxemic.metrics.results import RetrievalMetrics, averages

RERANKED = 100
"""Number of neighbours that re-ranking ranks again."""

_DISTANCES = 2**24  # number of distances to the whole gallery held at once: 64 MB


class NoMatches(ValueError):
    """No query has a gallery item with its label."""


@take_arrays("queries", "query_labels", "gallery", "gallery_labels", "exclude", "query_sequences", "gallery_sequences")
@torch.no_grad()
def retrieval_metrics(
    queries: Float[Tensor, "queries dim"],
    query_labels: Shaped[Tensor, "..."],
    gallery: Float[Tensor, "gallery ..."] | None = None,
    gallery_labels: Shaped[Tensor, "..."] | None = None,
    *,
    distance: Distance = "cosine",
    recall_at: Sequence[int] = (1, 2, 4, 8),
    precision_at: Sequence[int] = (),
    map_at: Sequence[int] = (),
    map_divisors: Sequence[Divisor] = ("min",),
    ndcg_at: Sequence[int] = (),
    map: bool = False,  # noqa: A002
    mrr: bool = False,
    nmi: bool = False,
    exclude: Shaped[Tensor, "..."] | None = None,
    query_sequences: Shaped[Tensor, "..."] | None = None,
    gallery_sequences: Shaped[Tensor, "..."] | None = None,
    average: AveragedOver = "queries",
    rerank: bool = False,
    chunk_size: int | None = None,
) -> RetrievalMetrics:
    """Compute how well each query retrieves the gallery items of its class.

    `proxemic.metrics.ranking` has the formulas. Without a gallery, each query searches all other queries; it is
    excluded by index, so its duplicates still count. Irrelevant items come first among items at the same distance
    (within the precision of `nearest_neighbours`): a pessimistic rule that makes the values independent of the order of
    the items, `chunk_size` and device. A query without relevant items in the gallery has no value: the averages leave
    it out, and `RetrievalMetrics.left_out` counts it.

    Args:
        queries: `[queries, dim]`, finite embeddings, read as float32. All arrays may be tensors, NumPy arrays or lists.
        query_labels: `[queries]`, integers or texts.
        gallery: `[gallery, dim]`, finite embeddings to search, or None for the queries themselves.
        gallery_labels: `[gallery]`, integers or texts.
        distance: Distance that ranks the gallery.
        recall_at: Each K of Recall@K, at least 1; it may exceed the gallery, as may the next three.
        precision_at: Each k of Precision@k.
        map_at: Each k of MAP@k.
        map_divisors: Divisors of each MAP@k, as in `map_at_k`: `min` gives `map@k`, and `k`, `hits` and `R` give
            `map_over_k@k`, `map_over_hits@k` and `map_over_r@k`.
        ndcg_at: Each k of nDCG@k.
        map: Also compute the mean average precision over the whole ranking.
        mrr: Also compute the mean reciprocal rank. If the list of neighbours of a query lacks relevant items that these
            two need, the whole gallery is compared exactly, which takes several times as long.
        nmi: Also cluster the gallery by k-means with as many clusters as classes, as `clustering_metrics` does with
            this distance; needs scikit-learn.
        exclude: As in `nearest_neighbours`, for a gallery that overlaps the queries.
        query_sequences: As in `nearest_neighbours`: items of the query's sequence are not ranked, whatever their
            labels.
        gallery_sequences: `[gallery]`, number of each item's sequence.
        average: ``"queries"``, or ``"classes"`` for the mean over classes of the mean over each class's queries, so
            that small classes count as much as large ones.
        rerank: Rank the first hundred neighbours of each query again by `k_reciprocal_distances` (Zhong et al., 2017).
        chunk_size: As in `nearest_neighbours`; it also bounds the memory.

    Returns:
        A dict with the keys `recall@K`, `precision@k`, `map@k`, `ndcg@k`, `map`, `mrr` as requested, and always `map@r`
        and `r_precision`; with `nmi` also `nmi`, `nmi_geometric` and `ami`.

    Raises:
        ValueError: If an argument is out of range, or no query has a relevant item.
        ModuleNotFoundError: For NMI without scikit-learn, of the extra `train`.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.4]])
    >>> metrics = retrieval_metrics(embeddings, torch.tensor([0, 0, 1, 1]), recall_at=(1, 2))
    >>> metrics
    {'recall@1': 0.75, 'recall@2': 0.75, 'map@r': 0.75, 'r_precision': 0.75}
    >>> metrics.queries, metrics.left_out, round(metrics.chance["recall@1"], 3)
    (4, 0, 0.333)
    """
    if average not in ("queries", "classes"):
        raise ValueError(f"average is {average!r} but must be 'queries' or 'classes'")
    metrics = _metrics(recall_at, precision_at, map_at, map_divisors, ndcg_at)
    metrics |= {name: item for name, item in _WHOLE.items() if {"map": map, "mrr": mrr}[name]}
    check_shape("queries", queries)
    query_labels = as_integers("query_labels", query_labels, len(queries), "query")
    if gallery is None:
        if gallery_labels is not None or exclude is not None:
            raise ValueError("gallery_labels or exclude are given without a gallery; pass them with one, or neither")
        if gallery_sequences is not None:
            raise ValueError("gallery_sequences is given without a gallery; pass query_sequences alone")
        gallery, gallery_labels, gallery_sequences = queries, query_labels, query_sequences
        exclude = torch.arange(len(queries), device=queries.device)
    elif gallery_labels is None:
        raise ValueError("gallery is given without gallery_labels; pass one integer per gallery item")
    else:
        check_shape("gallery", gallery)
        gallery_labels = as_integers("gallery_labels", gallery_labels, len(gallery), "gallery item")
    labels = query_labels, gallery_labels
    search = NeighbourSearch(queries, gallery, distance, exclude, query_sequences, gallery_sequences, labels)
    counts, sizes = relevant_counts(search)
    if not bool((counts > 0).any()):
        raise NoMatches(f"none of the {len(queries)} queries has a gallery item with its label; check the labels")

    per_query = _values(search, metrics, counts, chunk_size, rerank=rerank)
    expected = {name: metric.expected(counts.cpu(), sizes.cpu()) for name, metric in metrics.items()}
    query_labels, clustering = query_labels.cpu(), None
    values, levels = averages(per_query, query_labels, average), averages(expected, query_labels, average)
    if nmi:
        clustering = clustering_metrics(gallery, gallery_labels, distance=distance)
        table = clustering.table
        values |= {"nmi": clustering.nmi, "nmi_geometric": clustering.nmi_geometric, "ami": clustering.ami}
        levels |= {"nmi": expected_nmi(table), "nmi_geometric": expected_nmi(table, average="geometric"), "ami": 0.0}
    return RetrievalMetrics(
        values,
        per_query=per_query,
        labels=query_labels,
        average=average,
        clustering=clustering,
        chance=levels,
        expected=expected,
    )


class _Metric(NamedTuple):
    value: Callable[[Tensor, Tensor], Tensor]  # takes the relevance of the neighbours, and R
    expected: Callable[[Tensor, Tensor], Tensor]  # under a random ranking; takes R and the size of the gallery
    places: int | None  # number of neighbours that `value` needs; None for R
    of_ranks: Callable[[Tensor, Tensor], Tensor] | None = None  # if `value` is NaN; takes all R ranks, and R


def _map_if_all_are_listed(relevance: Tensor, wanted: Tensor) -> Tensor:
    value = ranking.map_at_k(relevance, wanted, relevance.shape[1], divisor="R")
    return value.where(relevance.sum(1) == wanted, torch.nan)


def _mrr_if_any_is_listed(relevance: Tensor, wanted: Tensor) -> Tensor:
    return ranking.mrr(relevance, wanted).where(relevance.any(1), torch.nan)


_WHOLE = {
    "map": _Metric(_map_if_all_are_listed, chance.average_precision, None, ranking.average_precision),
    "mrr": _Metric(_mrr_if_any_is_listed, chance.mrr, None, lambda ranks, _: 1.0 / ranks[:, 0]),
}


def _metrics(
    recall_at: Sequence[int],
    precision_at: Sequence[int],
    map_at: Sequence[int],
    map_divisors: Sequence[Divisor],
    ndcg_at: Sequence[int],
) -> dict[str, _Metric]:
    metrics: dict[str, _Metric] = {}
    for divisor in map_divisors:
        if divisor not in get_args(Divisor):
            allowed = ", ".join(map(repr, get_args(Divisor)))
            raise ValueError(f"map_divisors holds {divisor!r} but each must be one of {allowed}")
    maps = [
        (ranking.map_at_k_name(divisor), *(partial(value.map_at_k, divisor=divisor) for value in (ranking, chance)))
        for divisor in map_divisors
    ]
    for argument, at, kinds in (
        ("recall_at", recall_at, [("recall", ranking.recall_at_k, chance.recall_at_k)]),
        ("precision_at", precision_at, [("precision", ranking.precision_at_k, chance.precision_at_k)]),
        ("map_at", map_at, maps),
        ("ndcg_at", ndcg_at, [("ndcg", ranking.ndcg_at_k, chance.ndcg_at_k)]),
    ):
        if not isinstance(at, Iterable):
            raise ValueError(f"{argument} is {at!r} but must be a sequence of integers, such as ({at!r},)")
        for k, (name, value, expected) in product(at, kinds):
            if isinstance(k, bool) or not hasattr(k, "__index__") or k < 1:
                raise ValueError(f"{argument} holds {k!r} but each must be an integer of at least 1")
            metrics[f"{name}@{k}"] = _Metric(partial(value, k=int(k)), partial(expected, k=int(k)), int(k))
    return metrics | {
        "map@r": _Metric(ranking.map_at_r, chance.map_at_r, None),
        "r_precision": _Metric(ranking.r_precision, chance.r_precision, None),
    }


def _values(
    search: NeighbourSearch,
    metrics: Mapping[str, _Metric],
    counts: Int64[Tensor, "queries"],
    chunk_size: int | None,
    *,
    rerank: bool,
) -> dict[str, Float64[Tensor, "queries"]]:
    """Compute the value of each query, on the CPU; NaN if nothing is relevant."""
    values = {name: torch.full(counts.shape, torch.nan, dtype=torch.float64) for name in metrics}

    def places(rows: Int64[Tensor, "chunk"]) -> int:
        most = int(counts[rows].max())
        return min(len(search.gallery), max(metric.places or most for metric in metrics.values()))

    def measure(rows: Int64[Tensor, "chunk"], relevance: Bool[Tensor, "chunk ranks"]) -> None:
        # Not on a GPU, which does not guarantee the same logarithms and quotients.
        wanted, relevance, rows = counts[rows].cpu(), relevance.cpu(), rows.cpu()
        if len(rows):
            most = int(wanted.max())
            for name, metric in metrics.items():
                listed = relevance if metric.of_ranks else relevance[:, : metric.places or most]
                values[name][rows] = metric.value(listed, wanted)

    # Sorted by R, as a chunk lists as many neighbours as the largest R of its queries.
    order = counts.argsort(stable=True)[int((counts == 0).sum()) :]
    uncertain = [order[:0]]
    first = _reranked(search, max(RERANKED, places(order)), chunk_size) if rerank else None
    for rows in search.chunks(order, chunk_size):
        if first is not None:
            measure(rows, first[rows])
            continue
        relevance, certain = ranked_relevance(search, rows, places(rows))
        measure(rows[certain], relevance[certain])
        uncertain.append(rows[~certain])
    for rows in torch.cat(uncertain).split(EXACT_ROWS):
        if len(rows):
            measure(rows, relevance_of(search.compare_with_all(rows, places(rows))))

    whole = {name: metric.of_ranks for name, metric in metrics.items() if metric.of_ranks}
    if whole:
        unknown = torch.stack([values[name].isnan() for name in whole]).any(0).to(search.device)
        for rows in order[unknown[order]].split(max(1, min(EXACT_ROWS, _DISTANCES // len(search.gallery)))):
            if len(rows):
                ranks = relevant_ranks(search, rows, int(counts[rows].max()))
                if first is not None:
                    _replace_first(ranks, first[rows, :RERANKED])
                for name, value in whole.items():
                    values[name][rows.cpu()] = value(ranks.cpu(), counts[rows].cpu())
    return values


def _reranked(search: NeighbourSearch, k: int, chunk_size: int | None) -> Bool[Tensor, "queries k"]:
    """Return the relevance of each query's neighbours after the first `RERANKED` were ranked again."""
    keys = search.nearest_keys(min(k, len(search.gallery) - (search.exclude is not None)), chunk_size)
    found, relevance, is_there = indices_of(keys), relevance_of(keys), distances_of(keys).isfinite()
    for query, vector in enumerate(search.queries.rows):
        near = found[query, :RERANKED][is_there[query, :RERANKED]]
        distances = k_reciprocal_distances(vector[None], search.gallery.rows[near], distance=search.distance)[0]
        relevance[query, : len(near)] = relevance[query, : len(near)][distances.argsort(stable=True)]
    return relevance


def _replace_first(ranks: Float64[Tensor, "queries most"], relevance: Bool[Tensor, "queries first"]) -> None:
    """Replace the ranks of the relevant items among the first neighbours; other ranks stay the same."""
    for row, hits in enumerate(relevance):
        places = hits.nonzero().squeeze(1) + 1
        ranks[row, : len(places)] = places.double()
