"""Every retrieval metric of a set of embeddings in one pass over exact nearest neighbours."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int64, Shaped
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.metrics.clustering import normalized_mutual_information
from proxemic.metrics.neighbours import Distance, distance_chunks
from proxemic.metrics.ranking import map_at_k, map_at_r, ndcg_at_k, precision_at_k, r_precision, recall_at_k


class RetrievalMetrics(dict[str, float]):
    """Metric values in [0, 1] by name, with the number of queries that were judged and that were left out."""

    def __init__(self, values: dict[str, float], *, queries: int, left_out: int) -> None:
        super().__init__(values)
        self.queries = queries
        self.left_out = left_out


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
    ndcg_at: Sequence[int] = (),
    nmi: bool = False,
    exclude: Shaped[Tensor, "..."] | None = None,
    chunk_size: int | None = None,
) -> RetrievalMetrics:
    """Judge embeddings by how well each query finds the gallery items of its class.

    The formulas are those of `proxemic.metrics.ranking`, averaged over the queries. Without a gallery each query
    searches all other queries; it is left out of its own search by index, so duplicates of it still count. Of items
    at the same distance (to a relative 1.2e-7) the irrelevant ones come first: a pessimistic rule, which makes the
    values independent of the order of the rows, of `chunk_size` and of the device.

    A query without relevant items in the gallery has no defined value: it is left out and counted.

    Args:
        queries: finite embeddings, read as float32.
        query_labels: one integer a query.
        gallery: finite embeddings to search, or None for the queries themselves.
        gallery_labels: one integer a row of the gallery.
        distance: which distance ranks the gallery.
        recall_at: each K of Recall@K, at least 1; it may exceed the gallery, as in the next three.
        precision_at: each k of Precision@k.
        map_at: each k of MAP@k.
        ndcg_at: each k of nDCG@k.
        nmi: also cluster the gallery by k-means (unit rows for the cosine distance); needs scikit-learn, and
            alone depends on the order of the rows, through the seeded initialisation.
        exclude: for a gallery that overlaps the queries: index of the gallery row that is the query itself, or -1
            where there is none.
        chunk_size: queries compared with the gallery at once; None keeps a chunk's working memory near 64 MB.

    Returns:
        a dict with the keys `recall@K`, `precision@k`, `map@k`, `ndcg@k`, `nmi` as asked, and `map@r` and
        `r_precision` always; its attributes `queries` and `left_out` are counts.

    Raises:
        ValueError: where an argument is out of its range, or no query has a relevant item.
        ImportError: for NMI without scikit-learn.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.6, 0.4]])
    >>> found = retrieval_metrics(embeddings, torch.tensor([0, 0, 1, 1]), recall_at=(1, 2))
    >>> found
    {'recall@1': 0.75, 'recall@2': 0.75, 'map@r': 0.75, 'r_precision': 0.75}
    >>> found.queries, found.left_out
    (4, 0)
    """
    query_labels = _labels("query_labels", query_labels, "queries", queries)
    itself = exclude
    if gallery is None:
        if gallery_labels is not None or exclude is not None:
            raise ValueError("gallery_labels or exclude are given without a gallery; pass them with one, or neither")
        gallery, gallery_labels = queries, query_labels
        itself = torch.arange(len(queries), device=queries.device)
    elif gallery_labels is None:
        raise ValueError("gallery is given without gallery_labels; pass one integer a row of the gallery")
    else:
        gallery_labels = _labels("gallery_labels", gallery_labels, "gallery", gallery)
    if gallery.shape[1:] != queries.shape[1:]:
        raise ValueError(
            f"gallery has {gallery.shape[1]} dimensions a row but queries {queries.shape[1]}; they must agree"
        )

    counts = _count(query_labels, gallery_labels)
    if itself is not None:
        itself = _labels("exclude", itself, "queries", queries)
        if bool((itself < -1).any()) or bool((itself >= len(gallery)).any()):
            raise ValueError(f"exclude holds an index outside -1 to {len(gallery) - 1}, the rows of the gallery")
        known = itself >= 0
        if bool((gallery_labels[itself[known]] != query_labels[known]).any()):
            raise ValueError("exclude names gallery rows whose label is not the query's; they cannot be the query")
        counts = counts - known.long()
    kept = counts > 0
    if not bool(kept.any()):
        raise ValueError(f"none of the {len(queries)} queries has a gallery item with its label; check the labels")
    if not bool(kept.all()):
        query_labels, counts = query_labels[kept], counts[kept]
        itself = None if itself is None else itself[kept]
    judged = queries if bool(kept.all()) else queries[kept]

    metrics = _metrics(recall_at, precision_at, map_at, ndcg_at)
    ranks = max(int(counts.max()), *recall_at, *precision_at, *map_at, *ndcg_at, 1)
    values: dict[str, list[float]] = {name: [] for name in metrics}
    for rows, distances in distance_chunks(judged, gallery, distance, itself, chunk_size):
        relevant = query_labels[rows, None] == gallery_labels
        if itself is not None:
            own = itself[rows, None]
            place = own.clamp(min=0)
            relevant.scatter_(1, place, relevant.gather(1, place) & (own < 0))
        # The bits of a float >= 0 sort as it does; relevance as the lowest puts the irrelevant first among equals.
        keys = distances.view(torch.int32).bitwise_and_(-2).bitwise_or_(relevant.int())
        ranking = keys.topk(min(ranks, len(gallery)), largest=False).values & 1
        for name, metric in metrics.items():
            values[name] += metric(ranking, counts[rows]).tolist()
    # fsum rounds once, so the mean does not depend on the order of the queries.
    result = {name: math.fsum(each) / len(each) for name, each in values.items()}
    if nmi:
        points = normalize(gallery.float(), dim=1) if distance == "cosine" else gallery
        result["nmi"] = normalized_mutual_information(points, gallery_labels)
    return RetrievalMetrics(result, queries=len(judged), left_out=len(queries) - len(judged))


def _metrics(
    recall_at: Sequence[int], precision_at: Sequence[int], map_at: Sequence[int], ndcg_at: Sequence[int]
) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    metrics: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
    for name, at, metric in (
        ("recall", recall_at, recall_at_k),
        ("precision", precision_at, precision_at_k),
        ("map", map_at, map_at_k),
        ("ndcg", ndcg_at, ndcg_at_k),
    ):
        for k in at:
            if isinstance(k, bool) or not isinstance(k, int) or k < 1:
                raise ValueError(f"{name}_at holds {k!r} but each must be an integer of at least 1")
            metrics[f"{name}@{k}"] = partial(metric, k=k)
    return metrics | {"map@r": map_at_r, "r_precision": r_precision}


def _labels(name: str, labels: Shaped[Tensor, "..."], of: str, embeddings: Tensor) -> Int64[Tensor, "rows"]:
    if embeddings.ndim != 2 or len(embeddings) == 0:
        raise ValueError(f"{of} has shape {tuple(embeddings.shape)} but must be [rows, dim], with a row or more")
    if labels.shape != embeddings.shape[:1]:
        raise ValueError(f"{name} has shape {tuple(labels.shape)} but must be [{len(embeddings)}], one a row of {of}")
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        raise ValueError(f"{name} has {labels.dtype} but must be int64; floats would merge large ids")
    return labels.to(embeddings.device, torch.int64)


def _count(wanted: Int64[Tensor, "queries"], labels: Int64[Tensor, "gallery"]) -> Int64[Tensor, "queries"]:
    known, counts = labels.unique(return_counts=True)
    place = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return counts[place] * (known[place] == wanted)
