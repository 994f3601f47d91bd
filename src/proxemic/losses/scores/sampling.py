"""Sampling of classes: a step uses all classes, or those of the batch and a random fraction of the others."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from proxemic.distributed.class_sharding import ClassSharding, part_of
from proxemic.distributed.gather import local_part
from proxemic.optim.sparse_rows import note_sampled_rows, steps_rows


@dataclass(frozen=True)
class SamplingWeights:
    """The number of classes that each row of the proxies stands for.

    Args:
        total: Number of all classes.
        weights: Number of classes that each row stands for; ``None`` if each row stands for its own class.
        group: The processes that hold the other rows; ``None`` if there are no others.
        bias: Added to the scaled score of each row as a negative, for margins per class; ``None`` adds nothing.
    """

    total: int
    weights: Float[Tensor, " classes"] | None = None
    group: dist.ProcessGroup | None = None
    bias: Float[Tensor, " classes"] | None = None

    def part(self, rows: slice) -> "SamplingWeights":
        """Return the sampling weights of some of the rows."""
        if self.weights is self.bias is None:
            return self
        weights, bias = (None if values is None else values[rows] for values in (self.weights, self.bias))
        return replace(self, weights=weights, bias=bias)

    def sum(self, values: Float[Tensor, " classes"]) -> Float[Tensor, ""]:
        """Sum one value per row over all classes that these rows stand for."""
        return values.sum() if self.weights is None else values.dot(self.weights)


@dataclass(frozen=True)
class SampledClasses:
    """The classes of a step, as rows of the parameters that have one row per class.

    Args:
        labels: Row of each sample's target class among the sampled rows; out of range if another process holds it.
        sampling: How many classes the rows stand for.
        index: Sampled rows of the parameters, ascending; ``None`` for all.
        part: The sampled rows that this process computes, if every process holds all of them; ``None`` for all.
    """

    labels: Int[Tensor, " batch"]
    sampling: SamplingWeights
    index: Int[Tensor, " rows"] | None = None
    part: slice | None = None

    @classmethod
    def of(
        cls, labels: Int[Tensor, " batch"], rows: int, rate: float, sharding: ClassSharding | None, dtype: torch.dtype
    ) -> "SampledClasses":
        """Sample the classes for a (global) batch: its own classes and a fraction ``rate`` of the others.

        ``rows`` is the number of classes that this process holds; the weights have the type ``dtype``.
        """
        total = rows if sharding is None else sharding.num_classes
        if sharding is not None and sharding.sharded:
            labels = labels - sharding.local.start
        index, weights, part = choose_classes(labels, rows, rate) if rate < 1 else None, None, None
        group = None if sharding is None else sharding.group
        replicas = None if sharding is None or sharding.sharded else sharding.group
        if index is not None:
            if replicas is not None:
                dist.broadcast(index, group=replicas, group_src=0)
            labels, weights = _placed(labels, index, rows, dtype)
        if replicas is not None:
            part = part_of(rows if index is None else len(index), replicas.rank(), replicas.size())
        return cls(labels, SamplingWeights(total, weights, group), index, part)

    def rows(self, parameter: Float[Tensor, "classes *shape"]) -> Float[Tensor, "rows *shape"]:
        """Select the sampled rows; their gradient is sparse if an optimiser was passed to `step_rows`."""
        if self.index is None:
            return parameter
        return _Rows.apply(parameter, self.index)  # type: ignore[return-value]

    def local_rows(self, parameter: Float[Tensor, "classes *shape"]) -> Float[Tensor, "part *shape"]:
        """Select the sampled rows that this process computes."""
        rows = self.rows(parameter)
        if self.part is None:
            return rows
        assert self.sampling.group is not None
        return local_part(rows, self.sampling.group)

    def local_values(self, values: Float[Tensor, " classes"]) -> Float[Tensor, " part"]:
        """Select the values of `local_rows` from one number per class that this process holds."""
        values = values if self.index is None else values[self.index]
        return values if self.part is None else values[self.part]

    @property
    def local(self) -> "SampledClasses":
        """The classes that this process computes, as rows of `local_rows`."""
        if self.part is None:
            return self
        return SampledClasses(self.labels - self.part.start, self.sampling.part(self.part))


def num_sampled(classes: int, batch: int, rate: float) -> int:
    """Count the classes of a step: at most one per sample, and the fraction ``rate`` of the others.

    The count depends only on sizes, so that no step waits for the GPU.

    >>> num_sampled(200_000, 128, 0.1), num_sampled(100, 128, 0.1), num_sampled(100, 10, 1.0)
    (20116, 100, 100)
    """
    present = min(batch, classes)
    return present + math.ceil(rate * (classes - present))


def choose_classes(labels: Int[Tensor, " batch"], classes: int, rate: float) -> Int[Tensor, " rows"] | None:
    """Choose the classes of the batch and others, drawn uniformly without replacement: `num_sampled` in total.

    Returns ascending indices, or ``None`` if all classes are chosen. Labels outside ``[0, classes)`` are ignored. The
    draw uses torch's global generator of the labels' device.
    """
    count = num_sampled(classes, len(labels), rate)
    if count >= classes:
        return None
    draw = torch.rand(classes, device=labels.device)
    inside = (labels >= 0) & (labels < classes)
    draw.scatter_reduce_(0, labels.clamp(0, classes - 1), torch.where(inside, 2.0, 0.0), "amax")
    return draw.topk(count, sorted=False).indices.sort().values


def _placed(labels: Tensor, index: Tensor, classes: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Find each label's index among the sampled rows (−1 for none) and the number of classes each row stands for."""
    inside = (labels >= 0) & (labels < classes)
    place = torch.searchsorted(index, labels).clamp_(max=len(index) - 1)
    present = torch.zeros_like(index, dtype=torch.bool).index_put_((place,), inside, accumulate=True)
    others = len(index) - present.sum()
    weight = (classes - present.sum()).to(dtype) / others.clamp(min=1)
    return torch.where(inside, place, -1), torch.where(present, 1, weight)


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parameter: Tensor, index: Tensor) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(index)
        ctx.shape, ctx.sparse, ctx.parameter = parameter.shape, steps_rows(parameter), parameter
        return parameter.index_select(0, index)  # indexing is several times as slow on a CPU

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        (index,) = ctx.saved_tensors
        if not ctx.sparse:
            return grad.new_zeros(ctx.shape).index_copy_(0, index, grad), None
        note_sampled_rows(ctx.parameter, len(index))
        rows = torch.sparse_coo_tensor(index.unsqueeze(0), grad, ctx.shape, is_coalesced=True, check_invariants=False)
        return rows, None
