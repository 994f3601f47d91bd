"""The training of a run by Lightning's trainer."""

import logging
import os
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from proxemic.data import ImageSet
from proxemic.errors import TrainingDiverged, UserError
from proxemic.files import write_text
from proxemic.losses import ProxyLoss
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import pick_device
from proxemic.runs.processes import Processes
from proxemic.training.callbacks.average import WeightAverage
from proxemic.training.callbacks.bar import TrainingBar
from proxemic.training.callbacks.history import History
from proxemic.training.callbacks.proxies import proxy_callbacks
from proxemic.training.callbacks.retrieval import RetrievalCallback
from proxemic.training.callbacks.saving import SaveRun
from proxemic.training.callbacks.start import KeepStart
from proxemic.training.checkpoint_io import AtomicCheckpointIO, read_checkpoint
from proxemic.training.components import Components
from proxemic.training.data_module import EpochOrder
from proxemic.training.distributed.strategy import OneOfSeveral
from proxemic.training.logs import run_loggers
from proxemic.training.recipe import Recipe
from proxemic.training.record import Display, Record
from proxemic.training.signals import Signals


def fit(
    recipe: Recipe,
    components: Components,
    held_out: ImageSet | None,
    run: RunDirectory,
    display: Display,
    processes: Processes,
) -> Record:
    """Train all epochs, from the run's checkpoint if there is one, and return the history with the chosen epoch."""
    checkpoint = run.checkpoint if run.checkpoint.exists() else None
    step = read_checkpoint(checkpoint)["global_step"] if checkpoint else 0
    record, signals = Record(), Signals(run, processes)
    with warnings.catch_warnings():
        _quiet_lightning()
        trainer = Trainer(
            **_hardware(recipe, processes),
            max_epochs=recipe.training.epochs,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            callbacks=_callbacks(recipe, components, held_out, run, record, display, signals),
            enable_progress_bar=display.bars,
            enable_model_summary=False,
            logger=run_loggers(run.path / "logs", step) if recipe.training.loggers is None else recipe.training.loggers,
            use_distributed_sampler=False,
            default_root_dir=run.path,
        )
        if processes.is_first:
            run.diverged.unlink(missing_ok=True)
        if compiles(recipe, components, processes):
            for loss in components.task.losses:
                loss.compile()
        try:
            with signals.heeded():
                trainer.fit(components.task, components.data, ckpt_path=checkpoint, weights_only=True)
        except TrainingDiverged as error:
            kept = (
                f"the last good checkpoint, of step {record.step}, is kept in {run.path}"
                if run.checkpoint.exists()
                else "there is no checkpoint yet"
            )
            if processes.is_first:
                write_text(run.diverged, f"{error}\n")
            raise TrainingDiverged(f"{error}; {kept}.") from None
    return record


def _callbacks(
    recipe: Recipe,
    components: Components,
    held_out: ImageSet | None,
    run: RunDirectory,
    record: Record,
    display: Display,
    signals: Signals,
) -> list[Callback]:
    """Make the callbacks in the order in which Lightning calls them."""
    evaluator, average, averaging = None, None, recipe.training.average
    if held_out is not None:
        evaluator = RetrievalCallback(held_out, recipe.images, recipe.evaluation, workers=recipe.batches.workers)
    if averaging is not None:
        average = WeightAverage(averaging, components.task.model, evaluator)
    return [
        *([evaluator] if evaluator else []),
        *([average] if average else []),
        *proxy_callbacks(recipe, components.data.images, components.task.loss),
        *(recipe.training.callbacks or []),
        History(run, recipe, record, evaluator, average, display.times),
        KeepStart(run, recipe, record, evaluator, display),
        EpochOrder(components.data),
        *([TrainingBar(recipe, record)] if display.bars else []),
        SaveRun(run, recipe, record, average, display, signals),
    ]


_REPAYS = 20_000  # steps: a compiled loss saves some milliseconds of each on a GPU, compiling takes about a minute


def compiles(recipe: Recipe, components: Components, processes: Processes) -> bool:
    """Return whether the loss is compiled: as the recipe says, or where it pays."""
    chosen, task = recipe.training.compile, components.task
    if chosen != "auto":
        return chosen
    steps = recipe.training.epochs * len(components.data.batches)
    plain = all(isinstance(loss, ProxyLoss) and loss.sample_rate == 1 for loss in task.losses)
    on_gpu = pick_device(recipe.training.accelerator).type == "cuda"
    return plain and processes.world == 1 and on_gpu and steps >= _REPAYS


def _hardware(recipe: Recipe, processes: Processes) -> dict[str, Any]:
    """Choose the arguments of a `Trainer` that say where and in which precision it computes."""
    device, precision = pick_device(recipe.training.accelerator), recipe.training.precision
    assert precision != "auto", "settled before"
    plugins: list[Any] = [AtomicCheckpointIO(), LightningEnvironment()]  # not SLURM's, which handles signals
    if processes.world == 1:
        return {"accelerator": device.type, "devices": 1, "precision": precision, "plugins": plugins}
    if device.type == "cuda":
        device = torch.device("cuda", gpu_of(processes))
    if recipe.proxies == "sharded" and precision == "16-mixed":
        # An overflow in one process's proxies makes all of them leave the step out.
        plugins.append(MixedPrecision("16-mixed", "cuda", ShardedGradScaler()))  # type: ignore[arg-type]
    return {
        "accelerator": device.type,
        "devices": 1 if device.index is None else [device.index],
        "strategy": OneOfSeveral(device, processes),
        "precision": None if len(plugins) > 2 else precision,
        "plugins": plugins,
    }


def gpu_of(processes: Processes) -> int:
    """Return the number of this process's GPU among those that it sees; srun may have shown it that one alone."""
    seen = torch.cuda.device_count()
    number = 0 if seen == 1 and "TORCHELASTIC_RUN_ID" not in os.environ else processes.local_rank
    if number >= seen:
        raise UserError(
            f"More than {seen} processes were started on a machine where they see {seen} GPUs: start one a GPU, or set "
            "training.accelerator to cpu."
        )
    return number


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
