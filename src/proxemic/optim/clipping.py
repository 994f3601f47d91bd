"""Clipping of gradients that may be sparse, or of parameters that other processes hold parts of."""

from collections.abc import Iterable

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

__all__ = ["clip_norm", "clip_value"]


def clip_value(parameters: Iterable[nn.Parameter], limit: float) -> None:
    """Clamp every entry of the gradients to ±``limit``."""
    for grad in _entries(parameters):
        grad.clamp_(-limit, limit)


def clip_norm(
    parameters: Iterable[nn.Parameter],
    limit: float,
    *,
    own: Iterable[nn.Parameter] = (),
    group: dist.ProcessGroup | None = None,
) -> None:
    """Scale the gradients down where the norm of all of them together is more than ``limit``.

    Args:
        parameters: With the same gradients on every process; those that are in ``own`` too count there alone.
        limit: The largest norm.
        own: Parameters of which each process of the group holds its part; every process calls this.
        group: The processes.
    """
    own = list(own)
    ids = {id(parameter) for parameter in own}
    grads, own_grads = _entries(each for each in parameters if id(each) not in ids), _entries(own)
    total = get_total_norm(grads if group is not None and own else [*grads, *own_grads])
    if group is not None and own:
        squared = get_total_norm(own_grads).to(own[0].device, own[0].dtype).square()
        dist.all_reduce(squared, group=group)
        total = (total.to(squared.device).square() + squared).sqrt()
    factor = (limit / (total + 1e-6)).clamp(max=1.0)
    for grad in (*grads, *own_grads):
        grad.mul_(factor.to(grad.device))


def _entries(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """The gradients, of sparse ones their rows."""
    entries = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()  # rows that come twice are added up first
            entries.append(parameter.grad.values())
        else:
            entries.append(parameter.grad)
    return entries
