"""The network and its loss as Lightning trains them."""

import torch
from jaxtyping import Float, Int
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

from proxemic.data.samplers import derive_seed
from proxemic.errors import UserError
from proxemic.losses import PairwiseLoss, ProxyLoss
from proxemic.models import EmbeddingModel
from proxemic.training.optim import Optimization

__all__ = ["EmbeddingTask", "TrainingDiverged"]


class TrainingDiverged(UserError):
    """The loss or the weights are no longer finite."""


class EmbeddingTask(LightningModule):
    """One step: embed the batch, compute the loss.

    What is random inside the network (dropout, stochastic depth) depends on the seed and the number of the step
    alone, so that a resumed run draws what an uninterrupted one would have drawn.

    Args:
        model: From images ``[B, C, H, W]`` to embeddings ``[B, D]``.
        loss: From embeddings and labels to a scalar.
        optim: Optimiser, learning rates and schedule.
        seed: Of the randomness inside the network.
    """

    def __init__(self, model: EmbeddingModel, loss: ProxyLoss | PairwiseLoss, optim: Optimization, seed: int) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.optim = optim
        self.seed = seed

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim"]:
        return self.model(images)

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        torch.manual_seed(derive_seed(self.seed, self.global_step))

    def training_step(
        self, batch: tuple[Float[Tensor, "batch channels height width"], Int[Tensor, " batch"]], batch_idx: int
    ) -> Float[Tensor, ""]:
        images, labels = batch
        loss = self.loss(self.model(images), labels)
        # On a GPU, asking each step would make the processor wait for it; there the weights are checked once an epoch.
        if not loss.is_cuda and not loss.isfinite():
            self.fail(f"The loss became {loss.item()} at step {self.global_step} (epoch {self.current_epoch})")
        self.log("loss", loss, prog_bar=True, batch_size=len(labels))
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer, schedule = self.optim.build(self.model, self.loss)
        return {"optimizer": optimizer, "lr_scheduler": schedule} if schedule else optimizer  # type: ignore[return-value]

    def check_weights(self) -> None:
        """Raise `TrainingDiverged` if a weight is no longer finite, before it reaches a checkpoint."""
        for name, value in self.state_dict().items():  # with batch norm's statistics
            if not value.isfinite().all():
                self.fail(f"The weights {name} are no longer finite at step {self.global_step}")

    def fail(self, what: str) -> None:
        """Stop the run with what happened and what usually causes it."""
        raise TrainingDiverged(
            f"{what}; likely causes are a learning rate that is too high (optim.lr is {self.optim.lr:g}, optim.loss_lr "
            f"is {self.optim.loss_lr:g}: try a tenth), a scale or temperature of the loss that is too large, or images "
            "that hold NaN"
        )
