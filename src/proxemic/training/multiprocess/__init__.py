"""Training by several processes: joining them, sharded proxies in checkpoints, batch norm over the joined batch.

torchrun or srun starts the processes and ends them when one is lost; `join_processes` says who they are, and which of
them reports why a run ends.
"""

from proxemic.training.multiprocess.processes import Processes, join_processes

__all__ = ["Processes", "join_processes"]
