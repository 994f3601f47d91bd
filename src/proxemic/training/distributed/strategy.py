"""The processes of a run as Lightning sees them."""

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from proxemic.runs.processes import Processes


class OneOfSeveral(SingleDeviceStrategy):
    """Train on the device of this process; only the first process writes logs and checkpoints.

    `EmbeddingTask` exchanges gradients itself, and `Processes` agrees on all else, so that Lightning starts no
    processes and handles no signals by collectives of its own.
    """

    def __init__(self, device: torch.device, processes: Processes) -> None:
        super().__init__(device)
        self.global_rank = processes.rank

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0
