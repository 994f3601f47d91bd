"""Rows of embeddings: gathered from all processes, split into queries and gallery, and evaluated."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Int64
from torch import Tensor

from proxemic.errors import UserNote
from proxemic.metrics import RetrievalMetrics, retrieval_metrics
from proxemic.metrics.retrieval import NoMatches


def retrieval_metrics_or_nan(roles: Mapping[str, Any], settings: Mapping[str, Any]) -> RetrievalMetrics:
    """Evaluate `RetrievalResults.roles`, but warn and return NaN for each metric if no query has a match."""
    try:
        if not len(roles["queries"]) or not len(roles.get("gallery", roles["queries"])):
            raise NoMatches("there are no queries or there is no gallery")
        return retrieval_metrics(**roles, **settings)
    except NoMatches as error:
        if not dist.is_initialized() or dist.get_rank() == 0:
            warnings.warn(f"the retrieval metrics are NaN, as {error}", UserNote, stacklevel=3)
    names = retrieval_metrics(torch.eye(2)[[0, 0, 1, 1]], torch.tensor([0, 0, 1, 1]), **settings)
    labels = roles["query_labels"].cpu()
    unknown = dict.fromkeys(names.per_query, torch.full(labels.shape, math.nan, dtype=torch.float64))
    values = dict.fromkeys(names, math.nan)
    return RetrievalMetrics(
        values, per_query=unknown, labels=labels, average=names.average, chance=values, expected=unknown
    )


def gather_uneven(rows: Tensor, group: Any | None = None) -> list[Tensor]:
    """Gather the rows of all processes, in the order of their ranks, leaving out processes that have none.

    torchmetrics' ``gather_all_tensors`` needs the shape and type of a row also on a process that has seen none.
    """
    layouts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(layouts, (tuple(rows.shape), rows.dtype), group=group)
    if len({(shape[1:], dtype) for shape, dtype in layouts if shape[0]}) > 1:
        raise ValueError(
            f"the processes hold rows of different shapes, {', '.join(str(shape) for shape, _ in layouts)}"
        )
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else "cpu"
    pieces = []
    for rank, (shape, dtype) in enumerate(layouts):
        if shape[0]:
            is_local = rank == dist.get_rank(group)
            piece = rows.to(device).contiguous() if is_local else torch.empty(shape, dtype=dtype, device=device)
            dist.broadcast(piece, group_src=rank, group=group)
            pieces.append(piece.to(rows.device))
    return pieces or [rows]


def as_integers(name: str, values: Tensor, rows: int) -> Int64[Tensor, " rows"]:
    """The values as int64; `ValueError` unless they are integers, one per row."""
    if values.shape != (rows,) or values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name} has {values.dtype} and shape {list(values.shape)}, but must be integers [{rows}]")
    return values.to(torch.int64)
