"""Collectives that keep the gradient of one big batch.

Every process computes the same scalar from the joined batch. Its gradient with respect to tensors that are the same on
all processes is complete on each of them. The network is different: each process has embedded its local samples, and
`torch.nn.parallel.DistributedDataParallel` averages the gradients of the W networks. So each process passes its network
W times the gradient of its embeddings, and the average is the gradient of that one scalar.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

Group = dist.ProcessGroup


def exchange_sizes(x: Float[Tensor, "batch dim"], group: Group) -> tuple[list[int], bool]:
    """Say how many rows each process has, and whether those of any require a gradient; this waits for a GPU."""
    needs_grad = x.requires_grad and torch.is_grad_enabled()
    gathered = torch.empty(group.size(), dtype=torch.int64, device=x.device)
    dist.all_gather_into_tensor(gathered, torch.tensor([2 * len(x) + needs_grad], device=x.device), group)
    counts = gathered.tolist()
    return [count // 2 for count in counts], any(count % 2 for count in counts)


@torch.no_grad()
def share_first(tensors: Iterable[Tensor], group: Group) -> None:
    """Copy the values of the first process to all others."""
    for tensor in tensors:
        # Tensors on the CPU are sent by the GPU where the processes communicate through GPUs alone.
        sent = tensor.detach().contiguous()
        sent = sent.cuda() if dist.get_backend(group) == "nccl" else sent
        dist.broadcast(sent, group=group, group_src=0)
        tensor.copy_(sent)


def gather_batch(
    embeddings: Float[Tensor, "batch dim"],
    labels: Int[Tensor, " batch"],
    group: Group,
    sizes: Sequence[int],
) -> tuple[Float[Tensor, "joined dim"], Float[Tensor, "joined dim"], Int[Tensor, " joined"]]:
    """Gather the embeddings and labels of all processes, in the order of their ranks.

    Args:
        embeddings: The local ones.
        labels: The labels of the local embeddings.
        group: The processes.
        sizes: How many rows each process has.

    Returns:
        The joined embeddings twice, and the labels. From the first, each process derives a *part* of the scalar, such
        as the scores of its shard of the classes: the gradients of all processes are summed. From the second, each
        derives the *whole* scalar, so that the local gradient is complete, and nothing is sent.
    """
    joined = gather_rows(labels, group, sizes)
    parts, whole = _Gather.apply(embeddings, group, tuple(sizes))  # type: ignore[misc]
    return parts, whole, joined


def sum_across(x: Float[Tensor, "*shape"], group: Group) -> Float[Tensor, "*shape"]:
    """Sum over the processes, each of which derives the whole scalar from the sum: the gradient passes unchanged."""
    return _Sum.apply(x, group)  # type: ignore[return-value]


def pool_across(x: Float[Tensor, "*shape"], group: Group) -> Float[Tensor, "*shape"]:
    """Sum over the processes, each of which derives a part of the scalar from the sum: the gradients are summed."""
    return _Pool.apply(x, group)  # type: ignore[return-value]


def reduce_scores_across(
    positive: Float[Tensor, " batch"], negative: Float[Tensor, "*batch"], term: Float[Tensor, ""], group: Group
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Join what `proxemic.losses.scores.streaming.streamed_scores` computed for each process's shard of the classes.

    The positives, a scalar negative (class-wise losses) and the terms are summed; the negatives per sample, which are
    log-sum-exps, become those over all classes. This takes two all-reduces of three floats per sample in all; for
    class-wise losses one, of one float per sample.
    """
    return _Reduce.apply(positive, negative, term, group)  # type: ignore[return-value]


def local_part(rows: Float[Tensor, "rows *shape"], part: slice, group: Group) -> Float[Tensor, "part *shape"]:
    """Select the rows that this process works on; each process gets the gradient of all rows.

    Args:
        rows: The same on every process.
        part: ``⌈rows/W⌉`` consecutive rows in the order of the ranks, fewer or none at the end.
        group: The processes.
    """
    return _LocalPart.apply(rows, part, group)  # type: ignore[return-value]


def gather_rows(
    x: Shaped[Tensor, "rows *shape"], group: Group, sizes: Sequence[int]
) -> Shaped[Tensor, "joined *shape"]:
    """Gather the rows of all processes, of which each has as many as ``sizes`` says, without a gradient."""
    most = max(sizes)
    joined = x.new_empty(group.size() * most, *x.shape[1:])
    dist.all_gather_into_tensor(joined, _padded(x, most), group)
    if min(sizes) == most:
        return joined
    return torch.cat([part[:size] for part, size in zip(joined.split(most), sizes, strict=True)])


def local_rows(joined: Float[Tensor, " joined"], group: Group, sizes: Sequence[int]) -> Float[Tensor, " rows"]:
    """Select the rows of this process among values that are the same on every process.

    Each process derives a scalar from its rows; what is trained is the mean of these scalars, as
    `torch.nn.parallel.DistributedDataParallel` takes the mean of gradients.

    Args:
        joined: The same on every process, in the order of the ranks.
        group: The processes.
        sizes: How many rows each process has.
    """
    return _LocalRows.apply(joined, group, tuple(sizes))  # type: ignore[return-value]


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        ctx.group, ctx.sizes = group, sizes
        ctx.set_materialize_grads(False)
        joined = gather_rows(x, group, sizes)
        return joined, joined.view_as(joined)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, parts: Tensor | None, whole: Tensor | None) -> tuple[Tensor | None, None, None]:  # type: ignore[override]
        group, sizes = ctx.group, ctx.sizes
        grads = [] if parts is None else [_reduce_scatter_rows(parts, group, sizes)]
        if whole is not None:
            grads.append(whole.split(sizes)[group.rank()])
        return (sum(grads[1:], grads[0]) * group.size() if grads else None), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor, group: Group) -> Tensor:  # type: ignore[override]
        return _summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(_: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:  # type: ignore[override]
        ctx.group = group
        return _summed(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return _summed(grad, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, positive: Tensor, negative: Tensor, term: Tensor, group: Group) -> tuple[Tensor, ...]:  # type: ignore[override]
        if negative.ndim == 0:
            sums = torch.cat([positive, torch.stack([negative, term])])
            dist.all_reduce(sums, group=group)
            ctx.save_for_backward(None)
            return sums[:-2].clone(), sums[-2].clone(), sums[-1].clone()
        highest = negative.clone()
        dist.all_reduce(highest, dist.ReduceOp.MAX, group)
        # Where no process has a negative, the sum is empty: 0 in place of −∞ − −∞.
        highest.clamp_(min=torch.finfo(highest.dtype).min)
        sums = torch.cat([positive, (negative - highest).exp_(), term.unsqueeze(0)])
        dist.all_reduce(sums, group=group)
        total = sums[len(positive) : -1].log() + highest
        ctx.save_for_backward((negative - total).exp_().masked_fill_(negative == -torch.inf, 0))
        return sums[: len(positive)].clone(), total, sums[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, positive: Tensor, negative: Tensor, term: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (share,) = ctx.saved_tensors
        return positive, negative if share is None else negative * share, term, None


class _LocalPart(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, part: slice, group: Group) -> Tensor:  # type: ignore[override]
        ctx.rows, ctx.group = len(rows), group
        return rows[part]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        # Gathered, as the parts do not overlap: a sum would move twice as much.
        size = -(-ctx.rows // ctx.group.size())
        whole = grad.new_empty(ctx.group.size() * size, *grad.shape[1:])
        dist.all_gather_into_tensor(whole, _padded(grad, size), ctx.group)
        return whole[: ctx.rows], None, None


class _LocalRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joined: Tensor, group: Group, sizes: tuple[int, ...]) -> Tensor:  # type: ignore[override]
        ctx.group, ctx.sizes = group, sizes
        return joined.split(sizes)[group.rank()].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return gather_rows(grad, ctx.group, ctx.sizes) / ctx.group.size(), None, None


def _summed(x: Tensor, group: Group) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


def _reduce_scatter_rows(x: Tensor, group: Group, sizes: Sequence[int]) -> Tensor:
    most, rank = max(sizes), group.rank()
    if min(sizes) < most:
        x = torch.cat([_padded(part, most) for part in x.split(list(sizes))])
    local = x.new_empty(most, *x.shape[1:])
    dist.reduce_scatter_tensor(local, x.contiguous(), group=group)
    return local[: sizes[rank]]


def _padded(x: Tensor, rows: int) -> Tensor:
    if len(x) == rows:
        return x.contiguous()
    whole = x.new_zeros(rows, *x.shape[1:])
    whole[: len(x)] = x
    return whole
