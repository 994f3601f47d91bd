"""Chooses the precision, the GPU and the compilation of a run."""

import copy
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.models import EmbeddingModel
from proxemic.runs.embed import evaluation_mode, pick_device
from proxemic.runs.processes import Processes
from proxemic.training.config import TrainingPrecision
from proxemic.training.recipe import Recipe
from proxemic.training.record import Session

_FASTER = 0.9  # of the time in 32-true; a smaller difference is noise and not worth the lost digits
_REPAYS = 20_000  # steps: a compiled loss saves some milliseconds of each on a GPU, compiling takes about a minute


def compiles(recipe: Recipe, losses: Sequence[nn.Module], batches: int, processes: Processes) -> bool:
    """Return whether to compile the losses: as the recipe says, or for ``auto`` if that saves time."""
    chosen = recipe.training.compile
    if chosen != "auto":
        return chosen
    steps = recipe.training.epochs * batches
    plain = all(isinstance(loss, ProxyLoss) and loss.sample_rate == 1 for loss in losses)
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


def make_scaler(device: torch.device, precision: TrainingPrecision, *, sharded: bool) -> torch.amp.GradScaler:
    """Return the scaler of 16-mixed, which does nothing in other precisions.

    If an overflow happens in the proxies of one process, sharded over several, all processes skip the step.
    """
    enabled = precision == "16-mixed"
    if not (enabled and sharded):
        return torch.amp.GradScaler(device.type, enabled=enabled)
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # takes a second

    return ShardedGradScaler(device.type)


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
