"""The Lightning strategy of a run with several processes."""

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy

from proxemic.runs.processes import Processes


class OneOfSeveral(SingleDeviceStrategy):
    """Trains on the device of this process; only the first process writes logs and checkpoints.

    `EmbeddingTask` exchanges gradients and `Processes` everything else, so Lightning neither starts processes nor
    handles signals by collectives of its own.
    """

    def __init__(self, device: torch.device, processes: Processes) -> None:
        super().__init__(device)
        self.global_rank = processes.rank

    @property
    def is_global_zero(self) -> bool:
        return self.global_rank == 0
