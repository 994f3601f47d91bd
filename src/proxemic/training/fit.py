"""The training of a run by Lightning's trainer."""

import logging
import os
import warnings
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from proxemic.data import ImageSet
from proxemic.errors import TrainingDiverged, UserError
from proxemic.files import write_text
from proxemic.training.checkpoint_io import AtomicCheckpointIO, read_checkpoint
from proxemic.training.checkpointing import Display, RunCheckpointer
from proxemic.training.components import Components
from proxemic.training.data_module import EpochOrder
from proxemic.training.embed import pick_device
from proxemic.training.logs import run_loggers
from proxemic.training.multiprocess.lightning_processes import ProcessesOfLightning, keep_sigterm
from proxemic.training.multiprocess.processes import Processes
from proxemic.training.multiprocess.sync_batch_norm import JoinedBatchNorm
from proxemic.training.progress import TrainingBar
from proxemic.training.proxy_callbacks import proxy_callbacks
from proxemic.training.recipe import Recipe
from proxemic.training.retrieval_callback import RetrievalCallback
from proxemic.training.run_directory import RunDirectory
from proxemic.training.weight_average import WeightAverage


def fit(
    recipe: Recipe,
    components: Components,
    held_out: ImageSet | None,
    run: RunDirectory,
    display: Display,
    processes: Processes,
) -> RunCheckpointer:
    """Train all epochs, from the run's checkpoint where there is one; the checkpointer knows the best epoch."""
    evaluation = None
    if held_out is not None:
        evaluation = RetrievalCallback(held_out, recipe.images, recipe.evaluation, workers=recipe.batches.workers)
    averaging = recipe.training.average
    average = None if averaging is None else WeightAverage(averaging, components.task.model, evaluation)
    checkpointer = RunCheckpointer(run, recipe, evaluation, display, processes, average)
    checkpoint = run.checkpoint if run.checkpoint.exists() else None
    step = read_checkpoint(checkpoint)["global_step"] if checkpoint else 0
    loggers = run_loggers(run.path / "logs", step) if recipe.training.loggers is None else recipe.training.loggers
    on_gpu, together = pick_device(recipe.training.accelerator).type == "cuda", processes.world > 1
    precision = recipe.training.precision
    assert precision != "auto", "settled before"
    frozen_at_first = recipe.training.warmup_epochs > 0  # the backbone, which then has no gradients
    with warnings.catch_warnings():
        _quiet_lightning()
        trainer = Trainer(
            accelerator=recipe.training.accelerator,
            devices=[_gpu(processes)] if together and on_gpu else 1,
            num_nodes=processes.world,  # as `ProcessesOfLightning` has it
            strategy=DDPStrategy(find_unused_parameters=frozen_at_first) if together else "auto",
            precision=None if _scales_apart(recipe, processes) else precision,
            max_epochs=recipe.training.epochs,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            callbacks=[
                *([evaluation] if evaluation else []),
                *([average] if average else []),
                *proxy_callbacks(recipe, components.data.images, components.task.loss),
                *(recipe.training.callbacks or []),
                checkpointer,
                EpochOrder(components.data),
                *([TrainingBar(checkpointer)] if display.bars else []),
            ],
            enable_progress_bar=display.bars,
            enable_model_summary=False,
            logger=loggers,
            plugins=_plugins(recipe, processes),
            use_distributed_sampler=False,
            default_root_dir=run.path,
        )
        if together:
            keep_sigterm(trainer)
        if processes.is_first:
            run.diverged.unlink(missing_ok=True)
        try:
            with checkpointer.heeding_signals():
                trainer.fit(components.task, components.data, ckpt_path=checkpoint, weights_only=True)
        except TrainingDiverged as error:
            kept = (
                f"the last good checkpoint, of step {checkpointer.step}, is kept in {run.path}"
                if run.checkpoint.exists()
                else "there is no checkpoint yet"
            )
            if processes.is_first:
                write_text(run.diverged, f"{error}\n")
            raise TrainingDiverged(f"{error}; {kept}.") from None
    return checkpointer


def _gpu(processes: Processes) -> int:
    """The number of this process's GPU among those that it sees; srun may have shown it that one alone."""
    seen = torch.cuda.device_count()
    number = 0 if seen == 1 and "TORCHELASTIC_RUN_ID" not in os.environ else processes.local_rank
    if number >= seen:
        raise UserError(
            f"More than {seen} processes were started on a machine where they see {seen} GPUs: start one a GPU, or set "
            "training.accelerator to cpu."
        )
    return number


def _plugins(recipe: Recipe, processes: Processes) -> list[Any]:
    plugins: list[Any] = [AtomicCheckpointIO(), ProcessesOfLightning(processes)]
    if processes.world > 1 and recipe.training.sync_batch_norm:
        plugins.append(JoinedBatchNorm(pick_device(recipe.training.accelerator).type))
    if _scales_apart(recipe, processes):
        # An overflow in one process's proxies makes all of them leave the step out.
        plugins.append(MixedPrecision("16-mixed", "cuda", ShardedGradScaler()))  # type: ignore[arg-type]
    return plugins


def _scales_apart(recipe: Recipe, processes: Processes) -> bool:
    """Whether float16's scale is found by processes that hold different gradients."""
    return processes.world > 1 and recipe.proxies == "sharded" and recipe.training.precision == "16-mixed"


def _quiet_lightning() -> None:
    """Silence Lightning's device listings, and its warnings of what is meant here."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*is smaller than the logging interval.*",
        ".*your dataloader is not resumable.*",  # ours is: see `TrainingData`
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*GPU available but not used.*",
        ".*module\\(s\\) in eval mode.*",  # frozen batch norm
        ".*`srun` command is available.*",  # without it, one process is meant
        ".*LeafSpec.* is deprecated.*",  # Lightning's own use of torch
        ".*Detected call of `lr_scheduler.step.*",  # half precision leaves the step out whose gradients overflow
    ):
        warnings.filterwarnings("ignore", message)
