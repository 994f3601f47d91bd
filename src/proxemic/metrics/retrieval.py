"""Every retrieval metric of a set of embeddings in one pass over exact nearest neighbours."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple, get_args

import torch
from jaxtyping import Bool, Float, Float64, Int64, Shaped
from torch import Tensor

from proxemic.metrics import chance, ranking
from proxemic.metrics.arrays import as_integers, take_arrays
from proxemic.metrics.clustering import ClusteringMetrics, clustering_metrics, unit_rows
from proxemic.metrics.confidence import AveragedOver
from proxemic.metrics.contingency import expected_nmi
from proxemic.metrics.exact import Distance
from proxemic.metrics.neighbours import EXACT_ROWS, NeighbourSearch, check_exclude, check_sequences, relevance_of
from proxemic.metrics.ranking import Divisor
from proxemic.metrics.ranks import queries_at_once, relevant_ranks
from proxemic.metrics.relevance import ranked_relevance
from proxemic.metrics.results import RetrievalMetrics, averages


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
    chunk_size: int | None = None,
) -> RetrievalMetrics:
    """Judge embeddings by how well each query finds the gallery items of its class.

    The formulas are those of `proxemic.metrics.ranking`. Without a gallery each query searches all other queries; it
    is left out of its own search by index, so duplicates of it still count. Of items at the same distance, as float32
    and the precision of `nearest_neighbours` have it, the irrelevant ones come first: a pessimistic rule, which makes
    the values independent of the order of the rows, of `chunk_size` and of the device.

    A query without relevant items in the gallery has no defined value: it is left out and counted.

    Rows of one sequence, a burst or a video, are no hits of each other, nor in the way: those of a query's sequence are
    taken out of its ranking, whatever their labels, as the query itself is.

    Embeddings and what goes with them may also be NumPy arrays or lists.

    Args:
        queries: Finite embeddings, read as float32.
        query_labels: One integer per query.
        gallery: Finite embeddings to search, or None for the queries themselves.
        gallery_labels: One integer per row of the gallery.
        distance: Which distance ranks the gallery.
        recall_at: Each K of Recall@K, at least 1; it may exceed the gallery, as in the next three.
        precision_at: Each k of Precision@k.
        map_at: Each k of MAP@k.
        map_divisors: What each MAP@k is divided by, as in `map_at_k`: `min` gives `map@k`, and `k`, `hits` and `R`
            give `map_over_k@k`, `map_over_hits@k` and `map_over_r@k`.
        ndcg_at: Each k of nDCG@k.
        map: Also the mean average precision over the whole list.
        mrr: Also the mean reciprocal rank. Where the list of neighbours does not reach the relevant items that these
            two need, those of the whole gallery before each are counted by exact distances: some times the work.
        nmi: Also cluster the gallery by k-means (unit rows for the cosine distance) with as many clusters as classes;
            needs scikit-learn.
        exclude: For a gallery that overlaps the queries: index of the gallery row that is the query itself, or -1
            where there is none.
        query_sequences: Number of the sequence of each query, below 0 for none; without a gallery alone.
        gallery_sequences: Likewise of each row of the gallery.
        average: Over all queries alike, or over classes: the mean of the means of each class's queries, in which
            small classes count as much as large ones.
        chunk_size: Queries compared with the gallery at once; None takes 1,024. Memory: as `nearest_neighbours`.

    Returns:
        A dict with the keys `recall@K`, `precision@k`, `map@k`, `ndcg@k`, `map`, `mrr` as asked, and `map@r` and
        `r_precision` always; with `nmi` also `nmi`, `nmi_geometric` and `ami`. It knows more: see `RetrievalMetrics`.

    Raises:
        ValueError: If an argument is out of its range, or no query has a relevant item.
        ModuleNotFoundError: For NMI without scikit-learn, of the extra `train`.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.4]])
    >>> found = retrieval_metrics(embeddings, torch.tensor([0, 0, 1, 1]), recall_at=(1, 2))
    >>> found
    {'recall@1': 0.75, 'recall@2': 0.75, 'map@r': 0.75, 'r_precision': 0.75}
    >>> found.queries, found.left_out, round(found.chance["recall@1"], 3)
    (4, 0, 0.333)
    """
    if average not in ("queries", "classes"):
        raise ValueError(f"average is {average!r} but must be 'queries' or 'classes'")
    metrics = _metrics(recall_at, precision_at, map_at, map_divisors, ndcg_at)
    metrics |= {name: each for name, each in _WHOLE.items() if {"map": map, "mrr": mrr}[name]}
    query_labels = _labels("query_labels", query_labels, "queries", queries)
    itself = exclude
    if gallery is None:
        if gallery_labels is not None or exclude is not None:
            raise ValueError("gallery_labels or exclude are given without a gallery; pass them with one, or neither")
        if gallery_sequences is not None:
            raise ValueError("gallery_sequences is given without a gallery; pass query_sequences alone")
        gallery, gallery_labels, gallery_sequences = queries, query_labels, query_sequences
        itself = torch.arange(len(queries), device=queries.device)
    elif gallery_labels is None:
        raise ValueError("gallery is given without gallery_labels; pass one integer per row of the gallery")
    else:
        gallery_labels = _labels("gallery_labels", gallery_labels, "gallery", gallery)
    if gallery.shape[1:] != queries.shape[1:]:
        raise ValueError(
            f"gallery has {gallery.shape[1]} dimensions per row but queries {queries.shape[1]}; they must agree"
        )
    if itself is not None:
        itself = check_exclude(itself, len(queries), len(gallery)).to(queries.device)
    sequences = check_sequences(query_sequences, gallery_sequences, len(queries), len(gallery))
    if sequences is not None:
        sequences = sequences[0].to(queries.device), sequences[1].to(queries.device)
    counts, sizes = _seen(query_labels, gallery_labels, itself, sequences)
    if not bool((counts > 0).any()):
        raise ValueError(f"none of the {len(queries)} queries has a gallery item with its label; check the labels")

    search = NeighbourSearch(queries, gallery, distance, itself, query_sequences, gallery_sequences)
    values = _values(search, metrics, query_labels, gallery_labels, counts, chunk_size)
    clustering = None
    if nmi:
        points = unit_rows(gallery) if distance == "cosine" else gallery
        clustering = clustering_metrics(points, gallery_labels)
    expected = {name: each.expected(counts.cpu(), sizes.cpu()) for name, each in metrics.items()}
    labels = query_labels.cpu()
    return RetrievalMetrics(
        averages(values, labels, average) | _agreement(clustering),
        per_query=values,
        labels=labels,
        average=average,
        clustering=clustering,
        chance=averages(expected, labels, average) | _expected_agreement(clustering),
        expected=expected,
    )


class _Metric(NamedTuple):
    """One metric, as functions of the number of relevant items.

    Args:
        value: From the relevance of the neighbours and that number.
        expected: Under a random ranking, from that number and the size of the gallery.
        places: How many neighbours it looks at; None for as many as are relevant.
        of_ranks: The value from the ranks of all relevant items, and R, for a metric of the whole list; its `value` is
            NaN where the neighbours do not tell.
    """

    value: Callable[[Tensor, Tensor], Tensor]
    expected: Callable[[Tensor, Tensor], Tensor]
    places: int | None
    of_ranks: Callable[[Tensor, Tensor], Tensor] | None = None


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
            allowed = ", ".join(repr(each) for each in get_args(Divisor))
            raise ValueError(f"map_divisors holds {divisor!r} but each must be one of {allowed}")
    maps = [
        (ranking.map_at_k_name(divisor), *(partial(each.map_at_k, divisor=divisor) for each in (ranking, chance)))
        for divisor in map_divisors
    ]
    for argument, at, kinds in (
        ("recall_at", recall_at, [("recall", ranking.recall_at_k, chance.recall_at_k)]),
        ("precision_at", precision_at, [("precision", ranking.precision_at_k, chance.precision_at_k)]),
        ("map_at", map_at, maps),
        ("ndcg_at", ndcg_at, [("ndcg", ranking.ndcg_at_k, chance.ndcg_at_k)]),
    ):
        for k, (name, value, expected) in product(at, kinds):
            if isinstance(k, bool) or not hasattr(k, "__index__") or k < 1:
                raise ValueError(f"{argument} holds {k!r} but each must be an integer of at least 1")
            metrics[f"{name}@{k}"] = _Metric(partial(value, k=int(k)), partial(expected, k=int(k)), int(k))
    return metrics | {
        "map@r": _Metric(ranking.map_at_r, chance.map_at_r, None),
        "r_precision": _Metric(ranking.r_precision, chance.r_precision, None),
    }


def _agreement(clustering: ClusteringMetrics | None) -> dict[str, float]:
    if clustering is None:
        return {}
    return {"nmi": clustering.nmi, "nmi_geometric": clustering.nmi_geometric, "ami": clustering.ami}


def _expected_agreement(clustering: ClusteringMetrics | None) -> dict[str, float]:
    """Of random clusters with the same sizes."""
    if clustering is None:
        return {}
    table = clustering.table
    return {"nmi": expected_nmi(table), "nmi_geometric": expected_nmi(table, average="geometric"), "ami": 0.0}


def _values(
    search: NeighbourSearch,
    metrics: Mapping[str, _Metric],
    query_labels: Int64[Tensor, "queries"],
    gallery_labels: Int64[Tensor, "gallery"],
    counts: Int64[Tensor, "queries"],
    chunk_size: int | None,
) -> dict[str, Float64[Tensor, "queries"]]:
    """Value of each query, on the CPU; NaN where there is nothing to find."""
    query_labels, gallery_labels, counts = (each.to(search.device) for each in (query_labels, gallery_labels, counts))
    values = {name: torch.full(counts.shape, torch.nan, dtype=torch.float64) for name in metrics}

    def places(rows: Int64[Tensor, "chunk"]) -> int:
        most = int(counts[rows].max())
        return min(len(gallery_labels), max(each.places or most for each in metrics.values()))

    def measure(rows: Int64[Tensor, "chunk"], relevance: Bool[Tensor, "chunk places"]) -> None:
        # Not on a GPU: its logarithms and quotients are not promised to be the same.
        wanted, relevance, rows = counts[rows].cpu(), relevance.cpu(), rows.cpu()
        if len(rows):
            most = int(wanted.max())
            for name, each in metrics.items():
                listed = relevance if each.of_ranks else relevance[:, : each.places or most]
                values[name][rows] = each.value(listed, wanted)

    # In the order of their numbers of relevant items, which a chunk must list as many of as any of its queries has.
    order = counts.argsort(stable=True)[int((counts == 0).sum()) :]
    uncertain = []
    for rows in search.chunks(order, chunk_size):
        relevance, certain = ranked_relevance(search, rows, places(rows), query_labels, gallery_labels)
        measure(rows[certain], relevance[certain])
        uncertain.append(rows[~certain])
    for rows in torch.cat(uncertain).split(EXACT_ROWS):
        if len(rows):
            keys = search.compare_with_all(rows, places(rows), (query_labels, gallery_labels))
            measure(rows, relevance_of(keys))

    whole = {name: each.of_ranks for name, each in metrics.items() if each.of_ranks}
    if whole:
        unknown = torch.stack([values[name].isnan() for name in whole]).any(0).to(search.device)
        for rows in order[unknown[order]].split(queries_at_once(len(gallery_labels))):
            if len(rows):
                ranks = relevant_ranks(search, rows, int(counts[rows].max()), query_labels, gallery_labels)
                for name, value in whole.items():
                    values[name][rows.cpu()] = value(ranks.cpu(), counts[rows].cpu())
    return values


def _seen(
    query_labels: Int64[Tensor, "queries"],
    gallery_labels: Int64[Tensor, "gallery"],
    itself: Int64[Tensor, "queries"] | None,
    sequences: tuple[Int64[Tensor, "queries"], Int64[Tensor, "gallery"]] | None,
) -> tuple[Int64[Tensor, "queries"], Int64[Tensor, "queries"]]:
    """How many relevant rows of the gallery each query sees, and how many in all."""
    counts = _count(query_labels, gallery_labels)
    sizes = torch.full_like(counts, len(gallery_labels))
    if itself is not None:
        alone = _excluded(itself, query_labels, gallery_labels)
        if sequences is not None:  # with its sequence it goes anyway
            alone = alone * (sequences[1][itself] != sequences[0])
        counts, sizes = counts - alone, sizes - alone
    if sequences is not None:
        # A number for each pair of a sequence and a label.
        sequence = torch.cat(sequences).unique(return_inverse=True)[1]
        known, label = torch.cat([query_labels, gallery_labels]).unique(return_inverse=True)
        pairs = (sequence * len(known) + label).split([len(query_labels), len(gallery_labels)])
        counts, sizes = counts - _count(*pairs), sizes - _count(*sequences)
    return counts, sizes


def _excluded(
    itself: Int64[Tensor, "queries"], query_labels: Int64[Tensor, "queries"], gallery_labels: Int64[Tensor, "gallery"]
) -> Int64[Tensor, "queries"]:
    """1 for each query that is itself in the gallery."""
    known = itself >= 0
    if bool((gallery_labels[itself[known]] != query_labels[known]).any()):
        raise ValueError("exclude names gallery rows whose label is not the query's; they cannot be the query")
    return known.long()


def _labels(name: str, labels: Shaped[Tensor, "..."], of: str, embeddings: Tensor) -> Int64[Tensor, "rows"]:
    if embeddings.ndim != 2 or len(embeddings) == 0:
        raise ValueError(f"{of} has shape {tuple(embeddings.shape)} but must be [rows, dim], with a row or more")
    return as_integers(name, labels, len(embeddings), f"row of {of}").to(embeddings.device)


def _count(wanted: Int64[Tensor, "queries"], labels: Int64[Tensor, "gallery"]) -> Int64[Tensor, "queries"]:
    known, counts = labels.unique(return_counts=True)
    place = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return counts[place] * (known[place] == wanted)
