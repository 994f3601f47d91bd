"""From a recipe to a finished run directory."""

import logging
import os
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxtyping import Float
from torch import Tensor

from proxemic.errors import Interrupted, UserError
from proxemic.extras import optional_dependency
from proxemic.files import check_folder, new_directory, remove_stale_temporaries, write_text
from proxemic.locks import exclusive_lock
from proxemic.models.freezing import describe_training
from proxemic.models.lora import describe_adapters
from proxemic.threads import cpu_threads
from proxemic.training.advice import advice
from proxemic.training.auto_precision import settle_precision
from proxemic.training.embed import check_accelerator
from proxemic.training.extending import check_extension, extend, with_epochs
from proxemic.training.failures import explained, to_be_continued
from proxemic.training.head_start import start_head
from proxemic.training.multiprocess.processes import Processes, join_processes
from proxemic.training.recipe import Recipe
from proxemic.training.run_directory import RunDirectory, split_fingerprint
from proxemic.training.times import Times
from proxemic.training.warm_start import start_from, trained_before

if TYPE_CHECKING:
    from proxemic.recipes.reader import ReadRecipe
    from proxemic.training.components import Components

_SEEN_BY = 120.0  # seconds in which a file of one machine is seen by the others in a folder they share; NFS may take 60


@dataclass(frozen=True)
class TrainingResult:
    """A run that was trained.

    Args:
        path: The run directory.
        metrics: The content of its ``metrics.json``; empty in all processes of a run but the first.
        embedded: The embeddings ``[N, D]`` of the test images, in order, by the network that is kept (``test``) and
            by those of before the first step (``start``, ``untrained``), as far as the test was of them; empty where
            nothing was trained.
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
    epochs: int | None = None,
    threads: int | None = None,
    report: Callable[[str], object] | None = None,
    progress: bool = True,
    test: bool = True,
    on_epoch: Callable[[Mapping[str, float]], object] | None = None,
    processes: Processes | None = None,
    began: float | None = None,
) -> TrainingResult:
    """Train, choose the epoch on held-out classes, evaluate once on the test classes, write everything to ``out``.

    Args:
        recipe: What to do, or the name or the file of a recipe, or what `read_recipe` gives. Its text, defaults
            included, is kept in the run directory. None, with ``resume``, takes the recipe of the run.
        out: The run directory: a new one, or that of the run to resume; None is a new one under ``runs``.
        overrides: Values of the recipe that is named, by dotted keys (``{"training.epochs": 5}``); with ``resume`` only
            ``data.root``, where the data were moved.
        resume: Continue the run in ``out`` from its last checkpoint.
        epochs: Extend the run that is resumed, finished or not, to this many epochs, more than its recipe has: it ends
            as a run of as many would have ended.
        threads: CPU threads of torch, where ``training.threads`` of the recipe is None.
        report: Is called with lines for the user; None logs them as ``proxemic``.
        progress: Show progress bars on standard error, where it is a terminal.
        test: Evaluate on the test classes; without, they are not looked at, as a search for hyper-parameters must not.
        on_epoch: Is called with each new row of the history; what it raises ends the training, which can be resumed.
        processes: Those that train together, each of which calls this; None joins those that torchrun or srun has
            started.
        began: `time.monotonic` when the command began, for the record of where the time went; None is now.

    Returns:
        The run directory and its metrics; without ``test``, or where the data have no test classes, those of the
        validation alone.

    Raises:
        UserError: If the recipe cannot be written as a file, the directory is not what ``resume`` asks for, or the
            images cannot be read; `Interrupted` after Ctrl-C, `TrainingDiverged` if the loss is not finite.
        ValueError: If a value of the recipe is not allowed.
    """
    from proxemic.recipes import find_recipe
    from proxemic.recipes.reader import ReadRecipe, read_recipe, to_yaml

    with ExitStack() as held:
        if processes is None:
            processes = held.enter_context(join_processes())
        times = Times(began)
        report = (report or logging.getLogger("proxemic").info) if processes.is_first else (lambda _: None)
        run = RunDirectory(
            Path(
                processes.broadcast(str(out or new_directory(str(recipe) if isinstance(recipe, str | Path) else "run")))
            )
        )
        check_folder(run.path)
        if processes.is_first:
            run.check_run(test) if resume else run.check_new()
        if resume and (others := (overrides or {}).keys() - {"data.root"}):
            raise UserError(f"train is to resume a run, but also to change {min(others)}: only data.root may be given.")
        if recipe is None and not resume:
            raise UserError("train is given no recipe: give a Recipe, a name or a file, or resume the run in out.")
        if isinstance(recipe, Recipe | ReadRecipe):
            if overrides:
                raise UserError(
                    "train is given a Recipe and overrides: give them to proxemic.recipes.load or read_recipe, which "
                    "makes it."
                )
        else:
            path = run.recipe if recipe is None else find_recipe(str(recipe))
            recipe = read_recipe(path, overrides or {}, own_code=True)
        text = None
        if isinstance(recipe, ReadRecipe):  # whose text need not be written anew, which takes as long as reading it
            recipe, text = recipe.recipe, recipe.yaml
        before = recipe.training.epochs
        if epochs is not None:
            recipe, text = with_epochs(recipe, epochs), None
        text = text or to_yaml(recipe)
        if resume:
            _check_shared(run, processes)
            if run.metrics.exists() and epochs is None:
                report(f"{run.path} is finished; these are its results.")
                return TrainingResult(run.path, run.read_metrics())
        check_accelerator(recipe)
        recipe = recipe.from_its_first_phase()
        if resume and not overrides:
            recipe = replace(recipe, data=run.locate(recipe.data))
            run.check_root(recipe.data)
        with explained(recipe, run):
            with processes.main_process_first(), times.of("data"):
                splits = recipe.load()
            # Lightning, which takes seconds to import: not before what is most often refused.
            with optional_dependency("train"):
                from proxemic.training.checkpointing import Display
                from proxemic.training.components import build_components, held_out_images
                from proxemic.training.features.cache import read_features
                from proxemic.training.fit import fit
                from proxemic.training.results import write_results

            components = build_components(recipe, splits, run, processes, times)
        held_out = held_out_images(recipe, splits)
        _introduce(recipe, components, report)
        if resume:
            run.check_images(split_fingerprint(splits))
        else:
            _check_shared(run, processes)
        if epochs is not None:
            check_extension(run, before, epochs, components.schedule)
        if recipe.training.start_from is not None and not run.checkpoint.exists():
            task = components.task
            report(start_from(RunDirectory(recipe.training.start_from), task.model, task.loss, splits))
        display = Display(report, progress and os.isatty(2) and processes.is_first, on_epoch, times)
        held.enter_context(cpu_threads(recipe.training.threads or threads))
        with explained(recipe, run):
            begun = run if resume else None
            recipe, precision = settle_precision(recipe, components.task.model, begun, processes, report)
        if processes.is_first:
            try:
                held.enter_context(exclusive_lock(run.checkpoint.parent))
            except OSError as error:
                reason = str(error.strerror or error).lower()
                raise UserError(f"{run.path} cannot be written to: {reason}; check the folder.") from error
            remove_stale_temporaries(run.path)
            if not resume:
                if run.recipe.exists():  # another run has begun there in the meantime
                    run.check_new()
                earlier = trained_before(recipe)
                run.create(
                    text,
                    recipe.data,
                    splits,
                    earlier=earlier,
                    test=test,
                    processes=processes.world,
                    precision=precision,
                )
            elif epochs is not None or overrides:
                extend(run, text)
            run.record_epochs(sum(recipe.lengths))
            run.restore_chosen()
        held.enter_context(to_be_continued(run))
        held.enter_context(explained(recipe, run))
        with times.of("features"):
            if recipe.features.cache:
                held_out = read_features(recipe, components, held_out, run, report, processes)
            if recipe.training.start_from is None and not run.checkpoint.exists():
                task = components.task
                start_head(task.model, task.loss, components.data.images, recipe)
        checkpointer = fit(recipe, components, held_out, run, display, processes)
        if not processes.is_first:
            return TrainingResult(run.path, {})
        try:
            return TrainingResult(run.path, *write_results(checkpointer, components.task, splits, test=test))
        except KeyboardInterrupt:
            raise Interrupted(
                f"Stopped after training, which is saved: evaluate and finish with proxemic train --resume {run.path}"
            ) from None


def _check_shared(run: RunDirectory, processes: Processes) -> None:
    """Raise `UserError` in all processes unless all see the same run directory."""
    if processes.world == 1:
        return
    # A copy of the run on each machine has all files, but not this one.
    token = run.path / f".together.{uuid.uuid4().hex}.tmp"
    if processes.is_first:
        write_text(token, "")
    try:
        files = (run.path / processes.broadcast(token.name), run.recipe, run.checkpoint, run.metrics)
        deadline = time.monotonic() + _SEEN_BY
        there = str([path.exists() for path in files])
        while processes.any(there != processes.broadcast(there))[0]:
            if processes.any(time.monotonic() > deadline)[0]:
                raise UserError(
                    f"{run.path} is not the same folder for all processes: give --out or --resume one that all "
                    "machines share."
                )
            time.sleep(0.5)  # a file that one machine has made may come to others with a delay
            there = str([path.exists() for path in files])
    finally:
        token.unlink(missing_ok=True)


def _introduce(recipe: Recipe, components: "Components", report: Callable[[str], object]) -> None:
    splits, model = components.splits, components.task.model
    for note in splits.notes:
        report(note)
    parts = {"training": splits.train, "validation": splits.validation, "test": splits.test}
    for name, images in parts.items():
        if images is not None:
            report(f"{name}: {images.num_classes:,} classes, {len(images):,} {images.kind}")
    if recipe.model.train != "all":
        report(describe_training(model.backbone, recipe.model.train, recipe.model.backbone_name))
    if recipe.model.lora is not None:
        report(describe_adapters(model.backbone, recipe.model.lora, recipe.model.backbone_name))
    for sentence in advice(recipe):
        report(sentence)
