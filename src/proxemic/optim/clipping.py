"""Clipping of gradients that are sparse, or of sharded parameters, for which torch's functions do not work."""

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from proxemic.optim.sparse_rows import coalesced


def clip_value(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """Clamp every entry of the gradients to ±``limit``."""
    for grad in _entries(parameters):
        grad.clamp_(-limit, limit)


def clip_norm(
    parameters: Iterable[nn.Parameter],
    limit: float,
    *,
    local: Iterable[nn.Parameter] = (),
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Scale the gradients down if their joint norm exceeds ``limit``, and return that norm before the scaling.

    Args:
        parameters: Parameters with the same gradients on every process; any that are also in ``local`` are skipped.
        limit: Largest norm, above 0.
        local: Sharded parameters: each process holds its shard and calls this function.
        group: The processes; ``None`` for a single process.
    """
    local = list(local)
    ids = {id(parameter) for parameter in local}
    grads, local_grads = _entries(parameter for parameter in parameters if id(parameter) not in ids), _entries(local)
    total = get_total_norm(grads if group is not None and local else [*grads, *local_grads])
    if group is not None and local:
        squared = get_total_norm(local_grads).to(local[0].device, local[0].dtype).square()
        dist.all_reduce(squared, group=group)
        total = (total.to(squared.device).square() + squared).sqrt()
    factor = (limit / (total + 1e-6)).clamp(max=1.0)
    for grad in (*grads, *local_grads):
        grad.mul_(factor.to(grad.device))
    return total


def _entries(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the gradients as dense tensors: the values of a sparse gradient."""
    entries = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = coalesced(parameter)  # duplicate rows are added up
            entries.append(parameter.grad.values())
        else:
            entries.append(parameter.grad)
    return entries
