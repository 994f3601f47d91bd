"""Choose the precision that ``training.precision: auto`` stands for: by measuring on a CPU, by a table elsewhere."""

import copy
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import get_args

import torch
from torch import nn

from proxemic.errors import UserError
from proxemic.files import read_json
from proxemic.models import EmbeddingModel
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import evaluation_mode, pick_device
from proxemic.runs.processes import Processes
from proxemic.training.recipe import Recipe, TrainingPrecision

_FASTER = 0.9  # of the time in 32-true; less of a difference is noise, and not worth the lost digits
_MEASURED: tuple[TrainingPrecision, ...] = ("32-true", "bf16-mixed")


def check_accelerator(recipe: Recipe) -> None:
    """Raise `UserError` where this machine lacks the accelerator of a recipe, or that which its precision needs."""
    accelerator = recipe.training.accelerator
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(accelerator, True):
        raise UserError(f"training.accelerator is {accelerator}, but this machine has none: take cpu, or auto.")
    if recipe.training.precision == "16-mixed" and pick_device(accelerator).type != "cuda":
        raise UserError("training.precision is 16-mixed, which needs a CUDA GPU: take bf16-mixed, or 32-true.")


def settle_precision(
    recipe: Recipe, model: nn.Module, begun: RunDirectory | None, processes: Processes, report: Callable[[str], object]
) -> tuple[Recipe, dict[str, str]]:
    """Return the recipe with the training precision that ``auto`` stands for, and a record of it for the run.

    The first process decides. A run that was ``begun`` goes on with what it took.
    """
    if recipe.training.precision != "auto":
        return recipe, {}
    taken = ""
    if processes.is_first:
        taken = "" if begun is None else (read_taken(begun) or "")
        if not taken:
            batches = recipe.batches
            side = recipe.augment.size or recipe.images.size
            shape = (-(-batches.size // processes.world // batches.micro_batches), recipe.images.channels, side, side)
            taken, why = choose_precision(model, shape, pick_device(recipe.training.accelerator))
            report(f"training.precision is auto, which takes {taken}: {why}.")
    taken = processes.broadcast(taken)
    precision = next(each for each in get_args(TrainingPrecision) if each == taken)
    return replace(recipe, training=replace(recipe.training, precision=precision)), {"training": taken}


def read_taken(run: RunDirectory) -> str | None:
    """Return the precision that ``auto`` stood for when a run was begun; None if it was named, or is not recorded."""
    recorded = read_json(run.environment).get("precision", {}) if run.environment.exists() else {}
    taken = recorded.get("training") if isinstance(recorded, Mapping) else recorded
    if taken not in (None, *get_args(TrainingPrecision)):
        raise UserError(f"{run.environment} is damaged (its precision is {recorded!r}): put the file back from a copy.")
    return taken


def choose_precision(
    model: nn.Module, shape: tuple[int, int, int, int], device: torch.device
) -> tuple[TrainingPrecision, str]:
    """Return the precision in which a network trains fastest on a device, and why; a CPU takes two steps of each."""
    if isinstance(model, EmbeddingModel) and model.config.takes_vectors:
        return "32-true", "a head alone always computes in it"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", f"{torch.cuda.get_device_name(device)} computes in bfloat16"
        return "16-mixed", f"{torch.cuda.get_device_name(device)} does not compute in bfloat16"
    if device.type != "cpu":
        return "32-true", f"it is not measured on {device.type}"
    seconds = measure_steps(model, shape)
    full, half = (seconds[precision] for precision in _MEASURED)
    rates = f"{shape[0] / half:.3g} images/s in bf16-mixed, {shape[0] / full:.3g} in 32-true"
    return ("bf16-mixed" if half < _FASTER * full else "32-true"), rates


def measure_steps(model: nn.Module, shape: tuple[int, int, int, int]) -> dict[str, float]:
    """Time the second step, forward and backward, on the CPU in each precision; the first one fills caches."""
    seconds: dict[str, float] = {}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        model, images = copy.deepcopy(model).cpu(), torch.rand(shape)
        with evaluation_mode(model):
            model.train()
            for _ in range(2):
                for precision in _MEASURED:
                    start = time.perf_counter()
                    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                        embeddings = model(images)
                    if embeddings.requires_grad:  # unless all of the network is frozen
                        embeddings.sum().backward()
                    seconds[precision] = time.perf_counter() - start
    return seconds
