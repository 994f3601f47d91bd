"""Collectives with the gradients of a single process that holds the global batch.

Every process computes the same scalar from the global batch. The gradient of the scalar with respect to tensors that
are the same on all processes is complete on each process. The gradient of a process's embeddings is multiplied by the
number W of processes, as `torch.nn.parallel.DistributedDataParallel` averages the gradients of the W networks.
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
    """Return the batch size of each process, and whether any embeddings require a gradient; synchronises a GPU."""
    needs_grad = x.requires_grad and torch.is_grad_enabled()
    gathered = torch.empty(group.size(), dtype=torch.int64, device=x.device)
    dist.all_gather_into_tensor(gathered, torch.tensor([2 * len(x) + needs_grad], device=x.device), group)
    counts = gathered.tolist()
    return [count // 2 for count in counts], any(count % 2 for count in counts)


@torch.no_grad()
def share_first(tensors: Iterable[Tensor], group: Group) -> None:
    """Copy the values of the first process to all others."""
    for tensor in tensors:
        # NCCL cannot send tensors on the CPU.
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
        embeddings: Embeddings of this process.
        labels: Their labels.
        group: The processes.
        sizes: Batch size of each process.

    Returns:
        The global batch's embeddings twice, and its labels. Use the first for this process's *part* of the scalar, such
        as the scores of its shard of the classes: the gradients of all processes are summed. Use the second for the
        *whole* scalar, which every process computes: the local gradient is complete, and nothing is sent.
    """
    joined = gather_rows(labels, group, sizes)
    return *_Gather.apply(embeddings, group, tuple(sizes)), joined  # type: ignore[misc]


def sum_across(x: Float[Tensor, "*shape"], group: Group) -> Float[Tensor, "*shape"]:
    """Sum over the processes. Every process computes the whole scalar from the sum: the gradient passes unchanged."""
    return _Sum.apply(x, group)  # type: ignore[return-value]


def reduce_scores_across(
    positive: Float[Tensor, " batch"], negative: Float[Tensor, "*batch"], term: Float[Tensor, ""], group: Group
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Combine the scores of each process's shard of the classes.

    Positives, terms and the scalar negative of a class-wise loss are summed; each sample's log-sum-exps are combined
    into one over all classes. Data-wise losses need two all-reduces with three floats per sample in total, class-wise
    losses one with one float per sample.
    """
    return _Reduce.apply(positive, negative, term, group)  # type: ignore[return-value]


def local_part(rows: Float[Tensor, "rows *shape"], group: Group) -> Float[Tensor, "part *shape"]:
    """Select this process's part (`part_of`) of rows that every process holds; all processes get the whole gradient."""
    size = -(-len(rows) // group.size())
    sizes = [len(range(len(rows))[rank * size :][:size]) for rank in range(group.size())]
    return _LocalRows.apply(rows, group, sizes, 1)  # type: ignore[return-value]


def gather_rows(
    x: Shaped[Tensor, "rows *shape"], group: Group, sizes: Sequence[int]
) -> Shaped[Tensor, "joined *shape"]:
    """Gather the rows of all processes without a gradient; ``sizes`` counts the rows of each."""
    most = max(sizes)
    joined = x.new_empty(group.size() * most, *x.shape[1:])
    dist.all_gather_into_tensor(joined, _padded(x, most), group)
    if list(sizes) == sorted(sizes, reverse=True) and sum(size not in (0, most) for size in sizes) <= 1:
        return joined[: sum(sizes)]  # padded at the end only
    return torch.cat([part[:size] for part, size in zip(joined.split(most), sizes, strict=True)])


def gather_uneven(rows: Tensor, group: Any | None = None) -> list[Tensor]:
    """Gather the rows of all processes, in the order of their ranks; a process may have none.

    Unlike torchmetrics' ``gather_all_tensors``, a process without rows need not know their shape and type.
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


def local_rows(joined: Float[Tensor, " joined"], group: Group, sizes: Sequence[int]) -> Float[Tensor, " rows"]:
    """Select the rows of this process among values that are the same on every process.

    Each process computes a scalar from its rows. The gradient is that of the mean of these scalars, because
    `torch.nn.parallel.DistributedDataParallel` averages gradients.
    """
    return _LocalRows.apply(joined, group, sizes, group.size())  # type: ignore[return-value]


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
        most, rank = max(sizes), group.rank()
        grads = [] if whole is None else [whole.split(sizes)[rank]]
        if parts is not None:
            padded = parts if min(sizes) == most else torch.cat([_padded(part, most) for part in parts.split(sizes)])
            local = parts.new_empty(most, *parts.shape[1:])
            dist.reduce_scatter_tensor(local, padded.contiguous(), group=group)
            grads.append(local[: sizes[rank]])
        return (sum(grads[1:], grads[0]) * group.size() if grads else None), None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor, group: Group) -> Tensor:  # type: ignore[override]
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @once_differentiable
    def backward(_: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad, None


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
        # Where no process has a negative, the sum is empty: 0 instead of −∞ − −∞.
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


class _LocalRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group, sizes: Sequence[int], divisor: int) -> Tensor:  # type: ignore[override]
        ctx.group, ctx.sizes, ctx.divisor = group, sizes, divisor
        return rows[sum(sizes[: group.rank()]) :][: sizes[group.rank()]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        # Gathered, as the rows do not overlap: a sum would move twice as much.
        return gather_rows(grad, ctx.group, ctx.sizes).div_(ctx.divisor), None, None, None


def _padded(x: Tensor, rows: int) -> Tensor:
    return x.contiguous() if len(x) == rows else torch.cat([x, x.new_zeros(rows - len(x), *x.shape[1:])])
