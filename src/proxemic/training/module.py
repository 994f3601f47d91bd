"""The Lightning module that trains a network with its loss."""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from timm.layers import convert_sync_batchnorm
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from proxemic.data.samplers import derive_seed
from proxemic.distributed.gather import share_first
from proxemic.errors import TrainingDiverged, UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.user_defined import Loss
from proxemic.models import EmbeddingModel
from proxemic.optim.schedules import PolynomialDecay
from proxemic.runs.processes import Processes
from proxemic.training.distributed.shards import ProxyShards
from proxemic.training.gradient_cache import InMicroBatches
from proxemic.training.parameter_groups import Optimization
from proxemic.training.phases import Phase, continue_optimizer, share_parameters


class EmbeddingTask(LightningModule):
    """Trains a network and its loss; each step embeds a batch and computes the loss.

    Dropout and stochastic depth depend only on the seed and the number of the step, so they are the same in a resumed
    run. Proxies without ``shards`` are replicated. With ``until_plateau`` the second phase may begin early.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        loss: Loss,
        optim: Optimization,
        seed: int,
        *,
        warmup_epochs: int = 0,
        second: Phase | None = None,
        until_plateau: bool = False,
        micro_batches: int = 1,
        sync_batch_norm: bool = True,
        processes: Processes = Processes(),
        shards: ProxyShards | None = None,
        even_batches: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.loss = loss
        self.optim = optim
        self.seed = seed
        self.warmup_epochs = warmup_epochs
        self.second = second
        self.second_begins = None if second is None else second.begins
        self.until_plateau = until_plateau
        self.sync_batch_norm = sync_batch_norm
        # In a list, so that it is not a submodule: it has the parameters of the model.
        self._network: list[nn.Module] = [InMicroBatches(model, micro_batches)]
        self.processes = processes
        self.shards = shards
        self.even_batches = even_batches
        self._trained = [parameter for parameter in model.backbone.parameters() if parameter.requires_grad]
        self.plateau: ReduceLROnPlateau | None = None
        self._kept_plateau: dict[str, Any] | None = None
        if second is not None:
            share_parameters(second.loss, loss)

    def forward(
        self, inputs: Float[Tensor, "batch channels height width"] | Float[Tensor, "batch features"]
    ) -> Float[Tensor, "batch dim"]:
        return self.model(inputs)

    @property
    def losses(self) -> list[Loss]:
        """The loss of each phase."""
        return [self.loss, *([self.second.loss] if self.second is not None else [])]

    def setup(self, stage: str) -> None:
        if self.processes.world == 1:
            return
        for loss in self.losses:
            if isinstance(loss, ProxyLoss):
                loss.distribute(sharded=self.shards is not None, even_batches=self.even_batches)
            else:
                loss.distribute(even_batches=self.even_batches)
        if self.second is not None:
            share_parameters(self.second.loss, self.loss)
        if self.sync_batch_norm and self.trainer.strategy.root_device.type == "cuda":
            convert_sync_batchnorm(self.model)

    def on_fit_start(self) -> None:
        if self.processes.world > 1 and any(parameter.requires_grad for parameter in self.model.parameters()):
            # Only of the network: the loss has the whole batch, so its gradients are complete on each process.
            self._network[0] = DistributedDataParallel(
                self._network[0],
                device_ids=None if self.device.type == "cpu" else [self.device],
                find_unused_parameters=self.warmup_epochs > 0,  # the backbone then has no gradients
            )

    def on_train_start(self) -> None:
        if self.plateau is not None and self._kept_plateau is not None:
            self.plateau.load_state_dict(self._kept_plateau)
        self._plan_decay()
        self._freeze_backbone_in_warmup()  # Lightning does not call this for an epoch that is resumed in its middle

    def on_train_epoch_start(self) -> None:
        begins = self.second_begins
        if begins is not None and not self.in_second_phase and self.current_epoch >= begins:
            (earlier,) = self.trainer.optimizers
            for (
                parameter
            ) in self._trained:  # the optimiser has all parameters that are trained, including those after the warm-up
                parameter.requires_grad_(True)
            self._begin_second_phase()
            self.trainer.strategy.setup_optimizers(self.trainer)
            continue_optimizer(self.trainer.optimizers[0], earlier)
            self._plan_decay()
        self._freeze_backbone_in_warmup()

    def on_train_batch_start(self, batch: object, batch_idx: int) -> None:
        rank = self.processes.rank
        self._seed_step(*([rank] if rank else []))

    def _seed_step(self, *parts: int) -> None:
        # Without a GPU, `torch.manual_seed` records a stack trace for each kind of GPU, which is slow.
        generator = torch.default_generator if self.device.type == "cpu" else torch
        generator.manual_seed(derive_seed(self.seed, self.global_step, *parts))

    def training_step(self, batch: Sequence[Tensor], batch_idx: int) -> Float[Tensor, ""]:
        images, labels = batch
        embeddings = self._network[0](images)
        if self.processes.world > 1 and self.shards is None:
            # Every process must draw the same random numbers in the loss if each computes all of it.
            self._seed_step()
        loss = self.loss(embeddings, labels)
        # On a GPU, a check in each step would wait for it; there the weights are checked once per epoch.
        if not loss.is_cuda and not loss.isfinite():
            self.fail(f"The loss became {loss.item()} at step {self.global_step} (epoch {self.current_epoch})")
        # Only what loggers will write, and the last of an epoch, for callbacks: Lightning's `log` costs as much as the
        # rest of the step of a small network.
        trainer: Any = self.trainer  # Lightning sets `log_every_n_steps` where no type checker sees it
        if trainer.is_last_batch or (self.global_step + 1) % max(1, trainer.log_every_n_steps) == 0:
            self.log("loss", loss, batch_size=len(labels))
        return loss

    def on_train_batch_end(self, outputs: Any, batch: object, batch_idx: int) -> None:
        if self.processes.world > 1 and self.trainer.is_last_batch:
            # On CPUs, batch norm has different statistics on each process; those of the first are evaluated.
            assert self.processes.group is not None
            share_first(self.model.buffers(), self.processes.group)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer, schedule = self.optim.build(self.model, self.loss, sharded=self.shards is not None)
        self.plateau = schedule if isinstance(schedule, ReduceLROnPlateau) else None
        if schedule is None or self.plateau is not None:
            return optimizer
        interval = "step" if isinstance(schedule, PolynomialDecay) else "epoch"
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": interval}}  # type: ignore[return-value]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: int | float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        if not self.optim.clips:
            return
        # Fused optimisers unscale 16-mixed's gradients in their step, so Lightning does not.
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None and getattr(optimizer, "_step_supports_amp_scaling", False):
            scaler.unscale_(optimizer)
        # Not by the trainer, whose clipping cannot change between phases.
        local = [] if self.shards is None else [self.proxies]
        self.optim.clip(optimizer, self.model, local, self.processes.group)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        plateau = None if self.plateau is None else self.plateau.state_dict()
        begun = self.second_begins if self.in_second_phase else None
        checkpoint["proxemic"] = {"second_phase_began": begun, "plateau": plateau}
        if self.shards is not None:
            self.shards.save(checkpoint, self.trainer.optimizers[0], self.proxies, self.global_step)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        kept = checkpoint["proxemic"]
        if (began := kept["second_phase_began"]) is not None:
            planned = None if self.second is None else self.second.begins
            sooner = planned is not None and self.until_plateau and began < planned
            if began != planned and not sooner:
                raise UserError(
                    f"The second phase of this run began after {began} epochs, but by its recipe it does so after "
                    f"{'none' if planned is None else planned}: put training.epochs and second_phase back to what they "
                    "were, or begin anew with another --out."
                )
            self.second_begins = began
            self._begin_second_phase()
        self._kept_plateau = kept["plateau"]
        if self.shards is not None:
            self.shards.load(checkpoint, self.proxies)

    @property
    def proxies(self) -> nn.Parameter:
        assert isinstance(self.loss, ProxyLoss)
        return self.loss.proxies

    @property
    def in_second_phase(self) -> bool:
        return self.second is not None and self.loss is self.second.loss

    def _plan_decay(self) -> None:
        # Only here, because the trainer knows the number of batches after loading the data.
        schedule = self.lr_schedulers()
        if isinstance(schedule, PolynomialDecay):
            begins = self.second_begins if self.in_second_phase else 0
            assert self.trainer.max_epochs is not None
            assert begins is not None
            schedule.plan(int(self.trainer.num_training_batches) * (self.trainer.max_epochs - begins))

    def _freeze_backbone_in_warmup(self) -> None:
        for parameter in self._trained:
            parameter.requires_grad_(self.current_epoch >= self.warmup_epochs)

    def _begin_second_phase(self) -> None:
        assert self.second is not None
        # Again, as moving the module to a GPU replaces buffers.
        share_parameters(self.second.loss, self.loss)
        self.loss, self.optim = self.second.loss, self.second.optim

    def check_weights(self) -> None:
        """Raise `TrainingDiverged` if a weight is not finite, so that none gets into a checkpoint."""
        state = self.state_dict().items()  # with batch norm's statistics
        wrong = next((name for name, value in state if not value.isfinite().all()), "")
        if name := next(filter(None, self.processes.all_gather(wrong)), None):
            self.fail(f"The weights {name} are no longer finite at step {self.global_step}")

    def fail(self, what: str) -> NoReturn:
        """Raise `TrainingDiverged` with this event and its usual causes."""
        raise TrainingDiverged(
            f"{what}; likely causes are a learning rate that is too high (optim.lr is {self.optim.lr:g}, optim.loss_lr "
            f"is {self.optim.loss_lr:g}: try a tenth), a scale or temperature of the loss that is too large, or images "
            "that hold NaN"
        )


def check_embeddings(embeddings: Float[Tensor, "images dim"], of: str, module: nn.Module, epoch: int) -> None:
    """Raise `TrainingDiverged` unless the embeddings, which must be the same on all processes, are finite."""
    if not embeddings.isfinite().all():
        what = f"The embeddings of {of} images are no longer finite in epoch {epoch + 1}"
        if isinstance(module, EmbeddingTask):
            module.check_weights()  # an error closer to the cause
            module.fail(what)
        raise TrainingDiverged(f"{what}.")
