"""The search for a recipe's hyper-parameters on classes held out from training, by any number of processes."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from proxemic.addresses import MASK, without_password
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import new_directory, write_text
from proxemic.locks import lock_in_turn
from proxemic.recipes import find_recipe
from proxemic.recipes.flags import as_flags, read_flags
from proxemic.recipes.reader import read_recipe, to_yaml
from proxemic.studies.jobs import RUN_THREADS, Workers
from proxemic.studies.tuning.directory import TuningDirectory, TuningOptions
from proxemic.studies.tuning.search import FinishedTrial, Pruner, Sampler, open_storage, storage_errors
from proxemic.studies.tuning.spaces import default_space, load_space, pin, read_stages, resolve_factors
from proxemic.studies.tuning.stages import check_stages, first_values, shares
from proxemic.studies.tuning.worker import TuningWorker
from proxemic.threads import cpu_threads
from proxemic.training.recipe import Recipe

with optional_dependency("train"):
    import yaml


@dataclass(frozen=True)
class TuningResult:
    """The result of a search.

    Args:
        out: The directory of the search, with ``trials.csv`` and plots.
        best_recipe: The YAML file of the best recipe, ready to be trained.
        value: The metric on validation classes at the best trial's best epoch; as the best of many, biased upwards.
        parameters: Those of the best trial, by the recipe's keys.
        trials: The finished trials of each stage, by number.
    """

    out: Path
    best_recipe: Path
    value: float
    parameters: Mapping[str, Any]
    trials: tuple[tuple[FinishedTrial, ...], ...]


def tune(
    recipe: Recipe | str | Path | None = None,
    *,
    out: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    metric: str | None = None,
    space: str | None = None,
    around: Recipe | str | Path | None = None,
    trials: int | None = None,
    budget: float | None = None,
    seeds: int = 1,
    first: Sequence[str | Path] = (),
    sampler: Sampler = "tpe",
    pruner: Pruner = "none",
    storage: str | None = None,
    study: str | None = None,
    workers: int = 1,
    seed: int = 0,
    resume: str | Path | None = None,
    report: Callable[[str], object] | None = None,
) -> TuningResult:
    """Search for the hyper-parameters with the largest metric on validation classes; test classes are never evaluated.

    Calls with the same ``out``, or with the same ``storage`` and ``study``, share the trials, whatever process or
    machine they come from; each returns when all trials are made.

    Args:
        recipe: The recipe that is varied: a name, a YAML file or a `proxemic.training.Recipe`.
        out: The directory of the search: new, or that of the same search, which then goes on; None makes one under
            ``runs``.
        overrides: Values of the recipe by dotted keys, such as ``{"training.epochs": 20}``; these are not searched.
        metric: What is maximised; None takes the recipe's ``evaluation.metric``.
        space: Name of a search space of the package, or a YAML file; None takes that of the recipe's loss.
        around: The recipe around whose values lie the ranges that a space gives by a factor; None takes ``recipe``.
            With the same one, the searches of several losses have the same ranges, whatever was found before.
        trials: Trials of all stages and processes together; None makes 50, or all points of a grid.
        budget: Instead of ``trials``, the epochs of all trials together, as a multiple of the recipe's epochs: 24 are
            24 trials that are trained to their end, or more of which some are pruned. Trials begin until it is spent.
        seeds: Train each trial with this many seeds, from the recipe's on; its value is the mean over them.
        first: Recipes, names or files, whose values the trials after the first one take, such as the best values of
            similar losses: those that the space has, moved into its ranges. The first trial is that of ``recipe``.
        sampler: ``tpe``, ``gp``, ``random`` or ``grid``.
        pruner: ``median`` stops a trial that at some epoch is worse than the median of the others there; ``halving``
            lets the better half go on after a quarter and after a half of the epochs.
        storage: Optuna storage URL; None keeps the study in ``out``.
        study: Name of the study in the storage; None takes that of ``out``. Stage 2 of NAME is the study NAME-2.
        workers: Processes to start here.
        seed: Seed of the sampler, with which one process makes the same trials again; the trainings take that of the
            recipe.
        resume: Go on with the search in this directory, or read the result of a finished one. Everything but
            ``workers``, and a ``storage`` with a password, which is not written to disk, is then taken from there.
        report: Is called with one line per trial, in every worker process, so that several of them need a function that
            can be pickled; None logs the lines.

    Raises:
        UserError: If the recipe, the space, the storage or the directory is refused, or no trial works; `Interrupted`
            after Ctrl-C.
        ValueError: If a number is out of its range.
    """
    report = report or logging.getLogger("proxemic").info
    if resume is not None:
        if recipe is not None or out is not None or overrides:
            raise UserError("--resume takes everything from the search that it goes on with: give it alone.")
        return _make_trials(Path(resume), workers, storage, report)
    if recipe is None:
        raise UserError("--recipe is missing: name one that proxemic recipes list prints, or give a YAML file.")
    other = "--trials" if trials is not None else "--sampler grid" if sampler == "grid" else None
    for refused, sentence in (
        (workers < 1, f"--workers is {workers}, but must be at least 1."),
        (seeds < 1, f"--seeds is {seeds}, but must be at least 1."),
        (
            budget is not None and not 0 < budget < math.inf,
            f"--budget is {budget}, but must be a number of complete trials above 0.",
        ),
        (
            budget is not None and other,
            f"--budget and {other} both say how many trials there are: leave one of them out.",
        ),
        (
            seeds > 1 and pruner == "median",
            f"--pruner median compares every epoch, for which {seeds} seeds would have to be trained by turns: take "
            "--pruner halving, or one seed.",
        ),
    ):
        if refused:
            raise ValueError(sentence)
    flags = as_flags({**(overrides or {}), **({} if metric is None else {"evaluation.metric": metric})})
    name = space or "of the loss"
    where = f"The search space {name}"
    with recipe_file(recipe) as file:
        read = read_recipe(file, flags, own_code=True)
        select_on = read.recipe.evaluation.select_on
        if select_on != "validation":
            raise UserError(
                f"evaluation.select_on is {select_on}, but a search must choose on validation classes, as it must not "
                "see the test classes: set --evaluation.select_on validation, and data.validation_fraction above 0."
            )
        content = default_space(yaml.safe_load(read.yaml)) if space is None else load_space(space)
        if around is not None:
            content = resolve_factors(content, _content(around), where)
        content, pinned = pin(content, read_flags(flags), where)
        stages = read_stages(content, where)
        if budget is None and (sampler != "grid" or trials is not None):
            shares(stages, 50 if trials is None else trials)
        check_stages(file, flags, stages, name)
        source = "recipe" if isinstance(recipe, Recipe) else str(file)
    out = new_directory(f"tune-{'recipe' if isinstance(recipe, Recipe) else recipe}") if out is None else Path(out)
    options = TuningOptions(
        source,
        list(flags),
        content,
        name,
        trials,
        sampler,
        pruner,
        None if storage is None else without_password(storage),
        study or out.resolve().name,
        seed,
        budget,
        seeds,
        [list(value) for value in zip(*(first_values(_content(item), stages) for item in first), strict=True)],
    )
    directory = TuningDirectory(out)
    if directory.is_begun():
        directory.check_same(options, {directory.base: read.yaml})
    else:
        read.recipe.load()  # a folder that is missing is refused before anything is written
    if storage is not None:
        open_storage(storage)
    directory.begin(options, read.yaml)
    if pinned:
        report(f"Not searched, as flags give {'it' if len(pinned) == 1 else 'them'}: {', '.join(pinned)}.")
    return _make_trials(out, workers, storage, report)


def _content(recipe: Recipe | str | Path) -> dict[str, Any]:
    """Return the full content of a recipe."""
    with recipe_file(recipe) as file:
        return yaml.safe_load(read_recipe(file, (), own_code=True).yaml)


@contextlib.contextmanager
def recipe_file(recipe: Recipe | str | Path) -> Iterator[Path]:
    """Provide the YAML file of a recipe; for a `Recipe`, a temporary one that exists within the block."""
    if not isinstance(recipe, Recipe):
        yield find_recipe(str(recipe))
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "recipe.yaml"
        write_text(file, to_yaml(recipe))
        yield file


def _make_trials(out: Path, workers: int, storage: str | None, report: Callable[[str], object]) -> TuningResult:
    """Make the trials that the search in a directory still lacks."""
    directory = TuningDirectory(out)
    options = directory.read()
    storage = options.storage if storage is None else storage
    if storage is not None and MASK in storage:
        raise UserError(f"{out / directory.file} does not keep the password of {storage}: give --storage again.")
    if storage is not None and without_password(storage) != options.storage:
        begun = options.storage or "in its own folder"
        raise UserError(f"--storage is not that of the search in {out}, which is {begun}: give the same, or none.")
    storage = storage or directory.storage
    with directory.at_work(alone=False), cpu_threads(RUN_THREADS), storage_errors(storage):
        with lock_in_turn(out / ".study"):  # two processes that make the tables at once would disturb each other
            open_storage(storage)
        if workers > 1:
            with Workers(workers) as pool:
                pool.share(_work, out, storage, report)
        worker = _work(out, storage, report, alone=workers == 1)
        best, finished = worker.finish()
        return TuningResult(out, directory.best_recipe, best.value or 0.0, best.parameters, finished)


def _work(out: Path, storage: str, report: Callable[[str], object], *, alone: bool = False) -> TuningWorker:
    worker = TuningWorker(out, storage, report, alone=alone)
    with storage_errors(storage):
        worker.make_trials()
    return worker
