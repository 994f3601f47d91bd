"""What `precision: auto` takes: measured on a CPU, by a table on other devices."""

import contextlib
import copy
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import nn

from proxemic.data import Preprocessing
from proxemic.errors import UserError
from proxemic.files import read_json
from proxemic.models import EmbeddingModel
from proxemic.models.folding import folded
from proxemic.training.embed import evaluation_mode, pick_device
from proxemic.training.multiprocess.processes import Processes
from proxemic.training.recipe import EvaluationPrecision, Recipe, TrainingPrecision
from proxemic.training.run_directory import RunDirectory

_FASTER = 0.9  # of the time in 32-true; less of a difference is noise, and not worth the lost digits
_MEASURED = ("32-true", "bf16-mixed")


def settle_precision(
    recipe: Recipe, model: nn.Module, begun: RunDirectory | None, processes: Processes, report: Callable[[str], object]
) -> tuple[Recipe, dict[str, str]]:
    """The recipe with the precisions that ``auto`` takes here, and these: what a run takes as long as it is resumed.

    The first process decides. A run that was ``begun`` goes on with what it took.
    """
    wanted = {"training": recipe.training.precision, "evaluation": recipe.evaluation.precision}
    if "auto" not in wanted.values():
        return recipe, {}
    taken: dict[str, str] = {}
    if processes.is_first:
        taken = read_taken(begun) if begun is not None else {}
        device = pick_device(recipe.training.accelerator)
        batches = recipe.batches
        sizes = {
            "training": -(-batches.size // processes.world // batches.micro_batches),
            "evaluation": recipe.evaluation.batch_size,
        }
        sides = {"training": recipe.augment.size or recipe.images.size, "evaluation": recipe.images.size}
        for part, precision in wanted.items():
            if precision == "auto" and part not in taken:
                shape = (sizes[part], recipe.images.channels, sides[part], sides[part])
                taken[part], why = choose_precision(model, shape, device, training=part == "training")
                report(f"{part}.precision is auto, which takes {taken[part]}: {why}.")
    taken = json.loads(processes.broadcast(json.dumps(taken)))
    training, evaluation = recipe.training, recipe.evaluation
    if training.precision == "auto":
        training = replace(training, precision=taken["training"])
    if evaluation.precision == "auto":
        evaluation = replace(evaluation, precision=taken["evaluation"])
    return replace(recipe, training=training, evaluation=evaluation), taken


def settle_evaluation(
    wanted: EvaluationPrecision,
    model: nn.Module,
    preprocessing: Preprocessing,
    run: RunDirectory,
    batch_size: int,
    report: Callable[[str], object],
) -> EvaluationPrecision:
    """The precision in which to embed images by a saved model; ``auto`` is what its run, if there is one, took."""
    if wanted != "auto":
        return wanted
    taken = read_taken(run).get("evaluation")
    if taken is None:
        shape = (batch_size, preprocessing.channels, preprocessing.size, preprocessing.size)
        taken, why = choose_precision(model, shape, pick_device("auto"), training=False)
        report(f"evaluation.precision is auto, which takes {taken}: {why}.")
    return "bf16-mixed" if taken == "bf16-mixed" else "32-true"


def read_taken(run: RunDirectory) -> dict[str, str]:
    """What ``auto`` took when a run was begun: of ``training`` and ``evaluation``, those for which it was asked."""
    taken = read_json(run.environment).get("precision", {}) if run.environment.exists() else {}
    allowed = {"training": get_args(TrainingPrecision), "evaluation": get_args(EvaluationPrecision)}
    if not isinstance(taken, Mapping) or not all(taken[part] in allowed.get(part, ()) for part in taken):
        raise UserError(f"{run.environment} is damaged (its precision is {taken!r}): put the file back from a copy.")
    return dict(taken)


def choose_precision(
    model: nn.Module, shape: tuple[int, int, int, int], device: torch.device, *, training: bool
) -> tuple[Literal["32-true", "bf16-mixed", "16-mixed"], str]:
    """The precision in which a network is fastest on a device, and why; on a CPU two steps of each are measured."""
    if isinstance(model, EmbeddingModel) and model.config.takes_vectors:
        return "32-true", "a head alone always computes in it"
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", f"{torch.cuda.get_device_name(device)} computes in bfloat16"
        why = f"{torch.cuda.get_device_name(device)} does not compute in bfloat16"
        return ("16-mixed" if training else "32-true"), why
    if device.type != "cpu":
        return "32-true", f"it is not measured on {device.type}"
    seconds = measure_steps(model, shape, training=training)
    full, half = (seconds[precision] for precision in _MEASURED)
    rates = f"{shape[0] / half:.3g} images/s in bf16-mixed, {shape[0] / full:.3g} in 32-true"
    return ("bf16-mixed" if half < _FASTER * full else "32-true"), rates


def measure_steps(model: nn.Module, shape: tuple[int, int, int, int], *, training: bool) -> dict[str, float]:
    """Seconds of the network's second step on the CPU in 32-true and in bf16-mixed; its first one fills caches.

    A step is forward and backward in training mode, or forward alone in evaluation mode.
    """
    seconds: dict[str, float] = {}
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(training):
        model, images = copy.deepcopy(model).cpu(), torch.rand(shape)
        with evaluation_mode(model), contextlib.nullcontext() if training else folded(model):
            model.train(training)
            for _ in range(2):
                for precision in _MEASURED:
                    start = time.perf_counter()
                    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16-mixed"):
                        embeddings = model(images)
                    if embeddings.requires_grad:  # unless all of the network is frozen
                        embeddings.sum().backward()
                    seconds[precision] = time.perf_counter() - start
    return seconds
