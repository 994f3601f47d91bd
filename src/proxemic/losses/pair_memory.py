"""Cross-batch memory of pytorch-metric-learning (PML) with complete state, corrected for batches of one sample."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from proxemic.extras import optional_dependency

with optional_dependency("pairs"):
    from pytorch_metric_learning.losses import CrossBatchMemory


class PairMemory(nn.Module):
    """PML's memory, whose ``state_dict`` also holds the position; PML stores only embeddings and labels."""

    def __init__(self, loss: nn.Module, miner: nn.Module | None, embedding_size: int, memory_size: int) -> None:
        super().__init__()
        if (name := type(loss).__name__) not in (known := CrossBatchMemory.supported_losses()):
            raise ValueError(
                f"memory_size is {memory_size}, but {name} compares a batch only with itself: set it to 0, or choose "
                f"one of {', '.join(known)}."
            )
        self.memory = _Memory(loss, embedding_size, memory_size, miner)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Add the batch to the memory, and compute the loss of the batch compared with the memory."""
        return self.memory(embeddings, labels)

    def get_extra_state(self) -> Int[Tensor, " 2"]:
        return torch.tensor([self.memory.queue_idx, int(self.memory.has_been_filled)])

    def set_extra_state(self, state: Int[Tensor, " 2"]) -> None:
        position, filled = state.tolist()
        self.memory.queue_idx, self.memory.has_been_filled = position, bool(filled)


class _Memory(CrossBatchMemory):
    def create_indices_tuple(self, embeddings: Any, *args: Any, **kwargs: Any) -> Any:
        indices: Any = super().create_indices_tuple(embeddings, *args, **kwargs)
        if len(embeddings) > 1:
            return indices
        # PML excludes pairs of a sample with itself only from larger batches.
        other = indices[1] != self.curr_batch_idx
        of_positives = indices if len(indices) == 3 else indices[:2]
        return *(positive[other] for positive in of_positives), *indices[len(of_positives) :]
