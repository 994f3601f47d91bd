"""Training by the processes of torchrun or srun: joining them, sharded checkpoints, batch norm of the joined batch."""

from proxemic.training.multiprocess.processes import Processes, join_processes

__all__ = ["Processes", "join_processes"]
