"""Exact nearest neighbours, a chunk of queries at a time, the same however they are computed.

A floating-point matrix product gives slightly different bits for equal rows, according to their position and to
the shape of the product, so equal distances would be ranked by chance. Here each row is rounded once, to 20 bits or
more below its largest coordinate (about what float32 holds), and multiplied in float64. Then every partial sum is a
whole number of steps below 2^53: the products are exact, whatever the order, the chunk or the device.
"""

import math
from collections.abc import Iterator
from typing import Literal

import torch
from jaxtyping import Float, Float32, Float64, Int, Int64
from torch import Tensor

Distance = Literal["cosine", "euclidean"]


def nearest_neighbours(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    *,
    k: int,
    distance: Distance = "cosine",
    exclude: Int[Tensor, "queries"] | None = None,
    chunk_size: int | None = None,
) -> tuple[Float32[Tensor, "queries k"], Int64[Tensor, "queries k"]]:
    r"""Find the k rows of the gallery nearest to each query, nearest first.

    The cosine distance is $1 - \cos$, in [0, 2], and 1 to or from a zero vector. Of rows at the same distance the
    one with the smaller index comes first.

    Args:
        queries: finite.
        gallery: finite.
        k: from 1 to the number of gallery rows, less one where `exclude` is given.
        distance: which distance.
        exclude: index of the gallery row that is the query itself, or -1 where there is none.
        chunk_size: queries compared with the gallery at once; None keeps a chunk's working memory near 64 MB.
            The result is the same for every value.

    Returns:
        distances and indices.

    Raises:
        ValueError: where an argument is out of its range, or embeddings are NaN or infinite.

    >>> points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    >>> nearest_neighbours(points, points, k=2, distance="euclidean", exclude=torch.arange(3))
    (tensor([[1.0000, 5.0000],
            [4.4721, 5.0000],
            [1.0000, 4.4721]]), tensor([[2, 1],
            [2, 0],
            [0, 1]]))
    """
    limit = len(gallery) - (exclude is not None)
    if not 1 <= k <= limit:
        raise ValueError(f"k is {k} but must be from 1 to {limit}, the gallery rows that a query may have")
    index = torch.arange(len(gallery), device=queries.device)
    found = []
    for _, distances in distance_chunks(queries, gallery, distance, exclude, chunk_size):
        # The bits of a float >= 0 sort as it does, so one integer carries the distance and, below it, the index.
        keys = distances.view(torch.int32).long().bitwise_left_shift_(32).bitwise_or_(index)
        found.append(keys.topk(k, largest=False).values)
    keys = torch.cat(found)
    return (keys >> 32).int().view(torch.float32), keys & (2**32 - 1)


def distance_chunks(
    queries: Float[Tensor, "queries dim"],
    gallery: Float[Tensor, "gallery dim"],
    distance: Distance,
    exclude: Int[Tensor, "queries"] | None,
    chunk_size: int | None,
) -> Iterator[tuple[slice, Float32[Tensor, "chunk gallery"]]]:
    """Yield the distances of successive queries to the whole gallery, infinite where excluded.

    Arguments and errors: as `nearest_neighbours`. Each chunk may be overwritten by the caller.
    """
    if distance not in ("cosine", "euclidean"):
        raise ValueError(f"distance is {distance!r} but must be 'cosine' or 'euclidean'")
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size is {chunk_size} but must be at least 1, or None to have it chosen")
    chunk_size = chunk_size or max(1, 2**22 // max(1, len(gallery)))
    right = round_rows(gallery, "gallery").double()
    left = right if queries is gallery else round_rows(queries, "queries").double()
    left_squares, right_squares = left.square().sum(1, keepdim=True), right.square().sum(1)
    for start in range(0, len(left), chunk_size):
        rows = slice(start, min(start + chunk_size, len(left)))
        products = left[rows] @ right.T
        if distance == "cosine":
            # A zero vector has only zero products, so any positive norm serves it.
            norms = [torch.where(s > 0, s, 1.0).sqrt() for s in (left_squares[rows], right_squares)]
            result = products.div_(norms[0]).div_(norms[1]).neg_().add_(1.0).clamp_(min=0.0)
        else:
            result = products.mul_(-2.0).add_(left_squares[rows]).add_(right_squares).clamp_(min=0.0).sqrt_()
        result = result.float()
        if exclude is not None:
            own = exclude[rows, None].to(result.device)
            result.scatter_(1, own.clamp(min=0), result.gather(1, own.clamp(min=0)).where(own < 0, torch.inf))
        yield rows, result


def round_rows(embeddings: Float[Tensor, "rows dim"], name: str) -> Float32[Tensor, "rows dim"]:
    """Round each row to the finest fixed step for which products of such rows are exact in float64.

    With b bits below the largest coordinate a product is at most 2^2b steps, and a sum of `dim` of them must stay
    within 2^53; float32 holds b up to 24.

    Args:
        embeddings: read as float32.
        name: of the argument, for the message.

    Raises:
        ValueError: where the embeddings have no dimension, or are NaN or infinite in float32.

    >>> round_rows(torch.tensor([[0.5, 1.0 + 2**-23]]), "queries").tolist() == [[0.5, 1.0 + 2**-23]]
    True
    """
    embeddings = embeddings.detach().float()
    if embeddings.shape[1] == 0:
        raise ValueError(f"{name} has shape {tuple(embeddings.shape)} but needs at least one dimension a row")
    broken = int((~embeddings.isfinite()).any(1).sum())
    if broken:
        raise ValueError(f"{name} has NaN or infinite values in {broken} of {len(embeddings)} rows; fix or drop them")
    bits = min(24, (53 - math.ceil(math.log2(embeddings.shape[1]))) // 2)
    largest: Float64[Tensor, "rows 1"] = embeddings.abs().amax(1, keepdim=True).double()
    largest = torch.where(largest > 0, largest, 1.0)
    # Dividing by the mantissa leaves the power of two exactly, which pow() does not promise.
    step = largest / torch.frexp(largest).mantissa * 2.0**-bits
    return (embeddings.double() / step).round().mul_(step).float()
