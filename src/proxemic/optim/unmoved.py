"""A warning for proxies that no optimiser updates.

The most common mistake with a loss that has parameters is to give the optimiser only those of the model: training then
runs but learns little.
"""

import warnings
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn

CLEARED = 10
"""Number of gradients, each computed after the previous one was cleared, after which proxies should have moved."""
ADDED = 100
"""Number of gradients, added up without being cleared, after which proxies should have moved."""
_ROWS = 100


def watch_proxies(loss: nn.Module) -> None:
    """Warn once if ``loss.proxies`` get gradients but never move."""
    proxies = loss.proxies
    assert isinstance(proxies, nn.Parameter)
    watch = _Watch(type(loss).__name__)
    watch.handle = proxies.register_post_accumulate_grad_hook(watch)


class _Watch:
    """Hook that counts the gradients of the proxies and finally checks whether some rows with a gradient have moved."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.handle: Any = None
        self.rows: Tensor | None = None
        self.before: Tensor | None = None
        self.any_given: Tensor | None = None
        self.grad: ReferenceType[Tensor] | None = None
        self.cleared = self.added = 0

    def __call__(self, proxies: Tensor) -> None:
        grad = proxies.grad
        assert grad is not None
        if self.rows is None or self.before is None or self.before.device != proxies.device:
            # The rows with the largest gradients: to select all rows with a gradient would wait for the GPU.
            sizes = grad._values() if grad.is_sparse else grad
            size, rows = sizes.detach().flatten(1).abs().amax(1).topk(min(_ROWS, len(sizes)))
            self.rows, self.any_given = grad._indices()[0][rows] if grad.is_sparse else rows, size.any()
            self.before = proxies.detach()[self.rows].clone()
            self.cleared = self.added = 0
        # An optimiser without the proxies does not clear their gradient either: it adds up.
        is_new = self.grad is None or self.grad() is not grad
        self.cleared, self.added, self.grad = self.cleared + is_new, self.added + 1, ref(grad)
        if self.cleared < CLEARED and self.added < ADDED:
            return
        if not bool(self.any_given):  # the next gradient chooses anew
            self.rows = None
            return
        self.handle.remove()
        if torch.equal(self.before, proxies.detach()[self.rows]):
            warnings.warn(
                f"The proxies of {self.name} have had {self.added} gradients but did not move: they are trained, so "
                "give loss.parameters() to the optimiser too, usually with a larger rate, for example "
                "torch.optim.AdamW([{'params': model.parameters()}, {'params': loss.parameters(), 'lr': 1e-2}], "
                "lr=1e-4).",
                UserWarning,
                stacklevel=2,
            )
