"""Trains by a recipe, and writes a run directory."""

import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import check_folder, new_directory, remove_stale_temporaries, write_text
from proxemic.locks import exclusive_lock
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import pick_device
from proxemic.runs.processes import Processes, join_processes
from proxemic.threads import cpu_threads
from proxemic.training.advice import introduce
from proxemic.training.beginning import start_from, start_head, trained_before
from proxemic.training.failures import explained
from proxemic.training.recipe import Recipe
from proxemic.training.record import Session, Times

if TYPE_CHECKING:
    from proxemic.recipes.reader import ReadRecipe

    Source = Recipe | ReadRecipe | str | Path | None


@dataclass(frozen=True)
class TrainingResult:
    """A run that was trained.

    Args:
        path: The run directory.
        metrics: The content of its ``metrics.json``; empty in all processes except the first.
        embedded: The embeddings ``[N, D]`` of the test images, in order, by each network that was tested: the kept one
            (``test``) and those before training (``start``, ``untrained``); empty if nothing was trained.
    """

    path: Path
    metrics: dict[str, Any]
    embedded: Mapping[str, Float[Tensor, "images width"]] = field(default_factory=dict, repr=False)


def train(
    recipe: "Recipe | ReadRecipe | str | Path | None" = None,
    out: str | Path | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    resume: bool = False,
    threads: int | None = None,
    report: Callable[[str], object] | None = None,
    progress: bool = True,
    test: bool = True,
    on_epoch: Callable[[Mapping[str, float]], object] | None = None,
    processes: Processes | None = None,
    began: float | None = None,
) -> TrainingResult:
    """Train, select the epoch on held-out classes, evaluate on the test classes, and write everything to ``out``.

    Args:
        recipe: A recipe, its name or file, or a result of `read_recipe`. Its full text is stored in the run directory.
            None, with ``resume``, takes the recipe of the run.
        out: The run directory: a new one, or that of the run to resume; None for a new one under ``runs``.
        overrides: Values for the named recipe by dotted keys (``{"training.epochs": 5}``); with ``resume`` only
            ``data.root``, for moved data.
        resume: Continue the run in ``out`` from its last checkpoint.
        threads: CPU threads of torch if ``training.threads`` of the recipe is None.
        report: Called with lines for the user; None logs them as ``proxemic``.
        progress: Whether to show progress bars on standard error if that is a terminal.
        test: Whether to evaluate on the test classes; tuning must not.
        on_epoch: Called with each new row of the history; an error raised in it ends the training, which can be
            resumed.
        processes: The processes that train together, each of which must call this; None joins those started by
            torchrun or srun.
        began: `time.monotonic` at the start of the command, for the record of time spent; None for now.

    Returns:
        The run directory and its metrics; without ``test`` or test classes, only those on validation images.

    Raises:
        UserError: If the recipe cannot be written as a file, the directory is not new or, with ``resume``, holds no
            run, or the images cannot be read; `Interrupted` after Ctrl-C; `TrainingDiverged` if the loss is not finite.
        ValueError: If a value of the recipe is not allowed.
    """
    from proxemic.recipes.reader import to_yaml

    times = Times(began)
    with ExitStack() as held:
        processes = processes or held.enter_context(join_processes())
        report = (report or logging.getLogger("proxemic").info) if processes.is_first else (lambda _: None)
        named = out or new_directory(str(recipe) if isinstance(recipe, str | Path) else "run")
        run = RunDirectory(Path(processes.broadcast(str(named))))
        check_folder(run.path)
        if processes.is_first:
            run.check_run(test) if resume else run.check_new()
        recipe, text = _read_recipe(recipe, run, overrides or {}, resume=resume)
        if resume and run.metrics.exists():
            report(f"{run.path} is finished; these are its results.")
            return TrainingResult(run.path, dict(run.read_metrics()))
        text = text or to_yaml(recipe)
        if resume and not overrides:
            recipe = replace(recipe, data=run.locate(recipe.data))
            run.check_root(recipe.data)
        check_accelerator(recipe)
        bars = progress and os.isatty(2) and processes.is_first
        session = Session(recipe, run, processes, report, bars, on_epoch, times)
        held.enter_context(explained(session))
        with processes.main_process_first(), times.of("data"):
            clean = recipe.load_clean(partial(run.load, complete=True) if resume else methodcaller("load"))
            splits = recipe.add_noise(clean)
        with optional_dependency("train"):  # only here, as it takes seconds: the most common mistakes are found before
            from proxemic.training.components import build_components, held_out_images
            from proxemic.training.features import read_features, trains_on_features
            from proxemic.training.hardware import settle_precision
            from proxemic.training.loop import Training
            from proxemic.training.results import write_results

        components = build_components(session, splits)
        model, loss, held_out = components.model, components.phases[0].loss, held_out_images(recipe, splits)
        introduce(recipe, splits, model, report)
        is_new = not run.checkpoint.exists()
        if recipe.training.start_from is not None and is_new:
            report(start_from(RunDirectory(recipe.training.start_from), model, loss, clean))
        held.enter_context(cpu_threads(recipe.training.threads or threads))
        precision = settle_precision(session, model, resume=resume)
        _check_shared(run, processes)
        if processes.is_first:
            held.enter_context(_only_process(run))
            if not resume:
                begun = {"test": test, "processes": processes.world, "precision": precision}
                run.create(text, recipe.data, clean, earlier=trained_before(recipe), **begun)
            elif overrides:
                write_text(run.recipe, text)
            run.record_epochs(sum(recipe.lengths))
        session.begun = True
        with times.of("features"):
            if trains_on_features(recipe):
                held_out = read_features(session, components, held_out)
            if recipe.training.start_from is None and is_new:
                start_head(model, loss, components.data.images, session.recipe)
        Training(session, components, held_out).fit()
        if not processes.is_first:
            return TrainingResult(run.path, {})
        return TrainingResult(run.path, *write_results(session, splits, test=test))


def check_accelerator(recipe: Recipe) -> None:
    """Raise `UserError` if this machine lacks the accelerator that a recipe names or its precision needs."""
    accelerator = recipe.training.accelerator
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(accelerator, True):
        raise UserError(f"training.accelerator is {accelerator}, but this machine has none: take cpu, or auto.")
    if recipe.training.precision == "16-mixed" and pick_device(accelerator).type != "cuda":
        raise UserError("training.precision is 16-mixed, which needs a CUDA GPU: take bf16-mixed, or 32-true.")


def _read_recipe(
    recipe: "Source", run: RunDirectory, overrides: Mapping[str, Any], *, resume: bool
) -> tuple[Recipe, str | None]:
    """Return the recipe, and its text if that is known already."""
    from proxemic.recipes import find_recipe
    from proxemic.recipes.reader import ReadRecipe, read_recipe

    if resume and (others := overrides.keys() - {"data.root"}):
        raise UserError(
            f"resume takes everything but data.root from the run that it continues: leave out {min(others)}, or begin "
            "a new run with its weights, by training.start_from."
        )
    if recipe is None and not resume:
        raise UserError("train is given no recipe: give a Recipe, a name or a file, or resume the run in out.")
    if not isinstance(recipe, Recipe | ReadRecipe):
        path = run.recipe if recipe is None else find_recipe(str(recipe))
        recipe = read_recipe(path, overrides, own_code=True)
    elif overrides:
        raise UserError(
            "train is given a Recipe and overrides: give them to proxemic.recipes.load or read_recipe, which makes it."
        )
    return (recipe, None) if isinstance(recipe, Recipe) else (recipe.recipe, recipe.yaml)


def _check_shared(run: RunDirectory, processes: Processes) -> None:
    """Raise `UserError` in all processes if they do not see the same run directory."""
    if processes.world == 1:
        return
    # Each machine may have a copy of the run, but not with this file.
    token = run.path / processes.broadcast(f".together.{uuid.uuid4().hex}.tmp")
    if processes.is_first:
        write_text(token, "")
    processes.wait()
    missing = processes.any(not token.exists())[0]
    processes.wait()
    if processes.is_first:
        token.unlink(missing_ok=True)
    if missing:
        raise UserError(
            f"{run.path} is not the same folder for all processes: give --out or --resume one that all machines share."
        )


@contextmanager
def _only_process(run: RunDirectory) -> Iterator[None]:
    """Lock the run directory while the block runs, and remove temporary files of killed processes."""
    with ExitStack() as held:
        try:
            held.enter_context(exclusive_lock(run.checkpoint.parent))
        except OSError as error:
            reason = str(error.strerror or error).lower()
            raise UserError(f"{run.path} cannot be written to: {reason}; check the folder.") from error
        remove_stale_temporaries(run.path)
        yield
