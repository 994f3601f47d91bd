"""The processes of a run as Lightning sees them."""

from lightning import Trainer
from lightning.fabric.plugins.environments import LightningEnvironment

from proxemic.training.multiprocess.processes import Processes


class ProcessesOfLightning(LightningEnvironment):
    """The processes as Lightning sees them: each on a machine of its own, with one device.

    So Lightning starts no processes, and does not handle SLURM's signals by saving in the middle of a step.
    """

    def __init__(self, processes: Processes) -> None:
        super().__init__()
        self.processes = processes

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def local_rank(self) -> int:
        return 0

    def node_rank(self) -> int:
        return self.processes.rank


def keep_sigterm(trainer: Trainer) -> None:
    """Keep Lightning from announcing a SIGTERM to all processes; ours agree on it themselves.

    Its collective in a signal handler may interrupt another collective, and its collective before each step waits for a
    GPU and takes an exception of a signal handler for an error of its own.
    """
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    trainer._signal_connector._sigterm_notifier_fn = lambda *_: None  # type: ignore[method-assign]
