"""A training in progress, as its callbacks see it."""

from collections.abc import Sequence
from typing import NoReturn

from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from proxemic.errors import TrainingDiverged
from proxemic.losses import ProxyLoss
from proxemic.losses.user_defined import Loss
from proxemic.models import EmbeddingModel
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import pick_device
from proxemic.runs.processes import Processes
from proxemic.training.data import TrainingData
from proxemic.training.parameter_groups import Optimization
from proxemic.training.phases import Phase
from proxemic.training.recipe import Recipe


class TrainingState:
    """A training in progress.

    Attributes:
        recipe: The recipe.
        run: The run directory.
        data: The training images and their batches.
        rank: The rank of this process, from 0; only the first process writes files.
        device: The device of the model and the loss.
        model: The network.
        loss: The loss of the present phase.
        optimizer: The optimiser of the present phase.
        phase: The index of the phase, from 0.
        epoch: The index of the epoch, from 0.
        step: The number of steps taken since the beginning of the run.
    """

    optimizer: Optimizer

    def __init__(
        self,
        recipe: Recipe,
        run: RunDirectory,
        processes: Processes,
        model: EmbeddingModel,
        phases: Sequence[Phase],
        data: TrainingData,
    ) -> None:
        self.recipe, self.run, self.processes, self.data = recipe, run, processes, data
        self.rank, self.device = processes.rank, pick_device(recipe.training.accelerator)
        self.model, self.phases = model, phases
        self.epoch = self.step = 0
        self.enter_phase(0)

    def enter_phase(self, number: int) -> None:
        """Take the loss and the optimisation of a phase."""
        self.phase = number
        self.loss: Loss = self.phases[number].loss
        self.optim: Optimization = self.phases[number].optim

    @property
    def proxies(self) -> nn.Parameter:
        """The proxies of the loss, which must be a proxy loss."""
        assert isinstance(self.loss, ProxyLoss)
        return self.loss.proxies

    def check_weights(self) -> None:
        """Raise `TrainingDiverged` on all processes if a weight or statistic is not finite on any of them."""
        parts = {"model": self.model, "loss": self.loss}
        state = {f"{part}.{name}": value for part in parts for name, value in parts[part].state_dict().items()}
        wrong = next((name for name, value in state.items() if not value.isfinite().all()), "")
        if name := next(filter(None, self.processes.all_gather(wrong)), None):
            self.fail(f"The weights {name} are no longer finite at step {self.step}")

    def check_embeddings(self, embeddings: Float[Tensor, "images dim"], kind: str) -> None:
        """Raise `TrainingDiverged` unless the embeddings, which must be the same on all processes, are finite."""
        if not embeddings.isfinite().all():
            self.check_weights()  # an error closer to the cause
            self.fail(f"The embeddings of {kind} images are no longer finite in epoch {self.epoch + 1}")

    def fail(self, what: str) -> NoReturn:
        """Raise `TrainingDiverged` with this event and its usual causes."""
        raise TrainingDiverged(
            f"{what}; likely causes are a learning rate that is too high (optim.lr is {self.optim.lr:g}, optim.loss_lr "
            f"is {self.optim.loss_lr:g}: try a tenth), a scale or temperature of the loss that is too large, or images "
            "that hold NaN"
        )
