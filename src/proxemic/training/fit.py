"""Trains a run by Lightning's trainer, and chooses its precision, hardware and callbacks."""

import copy
import logging
import os
import time
import warnings
from dataclasses import replace
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.plugins.environments import LightningEnvironment
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from proxemic.data import ImageSet
from proxemic.errors import TrainingDiverged, UserError
from proxemic.files import write_text
from proxemic.losses import ProxyLoss
from proxemic.models import EmbeddingModel
from proxemic.runs.embed import evaluation_mode, pick_device
from proxemic.runs.processes import Processes
from proxemic.training.callbacks.average import WeightAverage
from proxemic.training.callbacks.bar import TrainingBar
from proxemic.training.callbacks.history import History
from proxemic.training.callbacks.proxies import proxy_callbacks
from proxemic.training.callbacks.retrieval import RetrievalCallback
from proxemic.training.callbacks.saving import SaveRun
from proxemic.training.callbacks.start import KeepStart
from proxemic.training.callbacks.stopping import Signals
from proxemic.training.components import Components
from proxemic.training.config import TrainingPrecision
from proxemic.training.distributed.strategy import OneOfSeveral
from proxemic.training.recipe import Recipe
from proxemic.training.record import Session
from proxemic.training.storage import AtomicCheckpointIO, read_checkpoint, run_loggers

_FASTER = 0.9  # of the time in 32-true; a smaller difference is noise and not worth the lost digits
_REPAYS = 20_000  # steps: a compiled loss saves some milliseconds of each on a GPU, compiling takes about a minute
_MEANT = (
    ".*does not have many workers.*",
    ".*is smaller than the logging interval.*",
    ".*your dataloader is not resumable.*",  # ours is distributed: see `TrainingData`
    ".*Checkpoint directory .* exists and is not empty.*",
    ".*GPU available but not used.*",
    ".*module\\(s\\) in eval mode.*",  # frozen batch norm
    ".*`srun` command is available.*",  # without srun, a single process is intended
    ".*LeafSpec.* is deprecated.*",  # Lightning's own use of torch
    ".*Detected call of `lr_scheduler.step.*",  # half precision skips steps whose gradients overflow
)
"""Warnings of Lightning about what is meant here."""


def fit(session: Session, components: Components, held_out: ImageSet | None) -> None:
    """Train all epochs, from the run's checkpoint if there is one, and record the history and the chosen epoch."""
    recipe, run, processes = session.recipe, session.run, session.processes
    checkpoint = run.checkpoint if run.checkpoint.exists() else None
    step = read_checkpoint(checkpoint)["global_step"] if checkpoint else 0
    signals = Signals(run, processes)
    with warnings.catch_warnings():
        for name in ("lightning.pytorch", "lightning.fabric"):  # which list devices
            logging.getLogger(name).setLevel(logging.WARNING)
        for message in _MEANT:
            warnings.filterwarnings("ignore", message)
        trainer = Trainer(
            **_hardware(recipe, processes),
            max_epochs=recipe.training.epochs,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            callbacks=_callbacks(session, components, held_out, signals),
            enable_progress_bar=session.bars,
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
            kept = "there is no checkpoint yet"
            if run.checkpoint.exists():
                kept = f"the last good checkpoint, of step {session.record.step}, is kept in {run.path}"
            if processes.is_first:
                write_text(run.diverged, f"{error}\n")
            raise TrainingDiverged(f"{error}; {kept}.") from None


def _callbacks(session: Session, components: Components, held_out: ImageSet | None, signals: Signals) -> list[Callback]:
    """Return the callbacks in the order in which Lightning is to call them."""
    recipe, evaluator, average = session.recipe, None, None
    if held_out is not None:
        evaluator = RetrievalCallback(held_out, recipe.images, recipe.evaluation, workers=recipe.batches.workers)
    if recipe.training.average is not None:
        average = WeightAverage(recipe.training.average, components.task.model, evaluator)
    return [
        *([evaluator] if evaluator else []),
        *([average] if average else []),
        *proxy_callbacks(recipe, components.data.images, components.task.loss),
        *(recipe.training.callbacks or []),
        History(session, evaluator, average),
        KeepStart(session, evaluator),
        *([TrainingBar(session)] if session.bars else []),
        SaveRun(session, average, signals),
    ]


def compiles(recipe: Recipe, components: Components, processes: Processes) -> bool:
    """Return whether to compile the loss: as the recipe says, or for ``auto`` if that saves time."""
    chosen, task = recipe.training.compile, components.task
    if chosen != "auto":
        return chosen
    steps = recipe.training.epochs * len(components.data.batches)
    plain = all(isinstance(loss, ProxyLoss) and loss.sample_rate == 1 for loss in task.losses)
    on_gpu = pick_device(recipe.training.accelerator).type == "cuda"
    return plain and processes.world == 1 and on_gpu and steps >= _REPAYS


def settle_precision(session: Session, model: nn.Module, *, resume: bool) -> dict[str, str]:
    """Replace ``auto`` in the recipe by a precision; return a record of the choice for the run.

    The first process chooses. A resumed run keeps its precision.
    """
    recipe, processes = session.recipe, session.processes
    if recipe.training.precision != "auto":
        return {}
    precision: Any = session.run.read_environment().get("precision", {}).get("training") if resume else None
    if precision is None and processes.is_first:
        batches, side = recipe.batches, recipe.augment.size or recipe.images.size
        shape = (-(-batches.size // processes.world // batches.micro_batches), recipe.images.channels, side, side)
        precision, why = choose_precision(model, shape, pick_device(recipe.training.accelerator))
        session.report(f"training.precision is auto, which takes {precision}: {why}.")
    precision = processes.broadcast(precision or "")
    session.recipe = replace(recipe, training=replace(recipe.training, precision=precision))
    return {"training": precision}


def choose_precision(
    model: nn.Module, shape: tuple[int, int, int, int], device: torch.device
) -> tuple[TrainingPrecision, str]:
    """Return the fastest precision for a network on a device, and the reason; on a CPU, two steps of each are timed."""
    if isinstance(model, EmbeddingModel) and model.config.takes_vectors:
        return "32-true", "a head alone always computes in it"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", f"{torch.cuda.get_device_name(device)} computes in bfloat16"
        return "16-mixed", f"{torch.cuda.get_device_name(device)} does not compute in bfloat16"
    if device.type != "cpu":
        return "32-true", f"it is not measured on {device.type}"
    seconds = measure_steps(model, shape)
    full, half = seconds["32-true"], seconds["bf16-mixed"]
    rates = f"{shape[0] / half:.3g} images/s in bf16-mixed, {shape[0] / full:.3g} in 32-true"
    return ("bf16-mixed" if half < _FASTER * full else "32-true"), rates


def measure_steps(model: nn.Module, shape: tuple[int, int, int, int]) -> dict[str, float]:
    """Time a step, forward and backward, on the CPU in each precision, after a first one that fills caches."""
    seconds: dict[str, float] = {}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        model, images = copy.deepcopy(model).cpu(), torch.rand(shape)
        with evaluation_mode(model):
            model.train()
            for precision in ("32-true", "bf16-mixed") * 2:
                start = time.perf_counter()
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                    embeddings = model(images)
                if embeddings.requires_grad:  # unless all of the network is frozen
                    embeddings.sum().backward()
                seconds[precision] = time.perf_counter() - start
    return seconds


def _hardware(recipe: Recipe, processes: Processes) -> dict[str, Any]:
    """Return the arguments of a `Trainer` for its device and precision."""
    device, precision = pick_device(recipe.training.accelerator), recipe.training.precision
    assert precision != "auto", "settled before"
    plugins: list[Any] = [AtomicCheckpointIO(), LightningEnvironment()]  # not SLURM's, which handles signals
    if processes.world == 1:
        return {"accelerator": device.type, "devices": 1, "precision": precision, "plugins": plugins}
    if device.type == "cuda":
        device = torch.device("cuda", gpu_of(processes))
    if recipe.proxies == "sharded" and precision == "16-mixed":
        # After an overflow in one process's proxies, all processes skip the step.
        plugins.append(MixedPrecision("16-mixed", "cuda", ShardedGradScaler()))  # type: ignore[arg-type]
    return {
        "accelerator": device.type,
        "devices": 1 if device.index is None else [device.index],
        "strategy": OneOfSeveral(device, processes),
        "precision": None if len(plugins) > 2 else precision,
        "plugins": plugins,
    }


def gpu_of(processes: Processes) -> int:
    """Return the index of this process's GPU among those visible to it; with srun that may be only one."""
    seen = torch.cuda.device_count()
    number = 0 if seen == 1 and "TORCHELASTIC_RUN_ID" not in os.environ else processes.local_rank
    if number >= seen:
        raise UserError(
            f"More than {seen} processes were started on a machine where they see {seen} GPUs: start one a GPU, or set "
            "training.accelerator to cpu."
        )
    return number
