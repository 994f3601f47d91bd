"""Trains a batch in micro-batches, with the memory of one of them and the loss of the whole batch."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint


class InMicroBatches(nn.Module):
    """Embeds a batch in ``count`` micro-batches of equal size, one after the other.

    Activations of the network are not kept; the backward pass starts from the loss of the whole batch and embeds each
    micro-batch again (Gao et al., "Scaling Deep Contrastive Learning Batch Size under Memory Limited
    Setup", 2021). The gradient is exactly that of the whole batch, except that batch norm sees the micro-batches.
    """

    def __init__(self, network: nn.Module, count: int) -> None:
        super().__init__()
        self.network, self.count = network, count

    def forward(self, images: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch dim"]:
        network = self.network
        if self.count == 1 or not torch.is_grad_enabled():
            return network(images)
        embeddings = [
            checkpoint(
                network, piece, use_reentrant=False, context_fn=lambda: (nullcontext(), _statistics_kept(network))
            )
            for piece in images.tensor_split(self.count)
            if len(piece)
        ]
        return torch.cat(embeddings)  # type: ignore[arg-type]


@contextmanager
def _statistics_kept(network: nn.Module) -> Iterator[None]:
    """Leave the running statistics of batch norm unchanged: the first pass has already added the micro-batch."""
    norms = [part for part in network.modules() if isinstance(part, _BatchNorm) and part.track_running_stats]
    kept = [(norm.momentum, norm.get_buffer("num_batches_tracked").clone()) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, kept, strict=True):
            norm.momentum = momentum
            norm.get_buffer("num_batches_tracked").copy_(count)
