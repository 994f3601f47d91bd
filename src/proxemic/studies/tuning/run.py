"""Tune the hyper-parameters of a recipe on classes held out from training, with any number of processes."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from proxemic.addresses import MASK, without_password
from proxemic.arguments import changed_arguments
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import new_directory, write_text
from proxemic.ranges import SEEDS, check_range
from proxemic.recipes import find_recipe
from proxemic.recipes.flags import as_flags, read_flags
from proxemic.recipes.reader import read_recipe, to_yaml
from proxemic.studies.jobs import RUN_THREADS, Workers
from proxemic.studies.tuning.directory import TuningOptions, tuning_directory
from proxemic.studies.tuning.search import Search
from proxemic.studies.tuning.spaces import (
    default_space,
    load_space,
    middle,
    pin,
    read_space,
    recipe_point,
    resolve_factors,
    trial_values,
)
from proxemic.studies.tuning.study import FinishedTrial, Pruner, Sampler, open_storage, storage_errors
from proxemic.threads import cpu_threads
from proxemic.training.recipe import Recipe

with optional_dependency("train"):
    import yaml


@dataclass(frozen=True)
class TuningResult:
    """The result of tuning.

    Args:
        out: Directory of the study, with ``trials.csv`` and plots.
        best_recipe: YAML file of the best recipe, ready to be trained.
        value: Validation metric of the best trial at its best epoch; as the best of many, it is biased upwards.
        parameters: Parameters of the best trial, by key of the recipe.
        trials: Finished trials, sorted by number.
    """

    out: Path
    best_recipe: Path
    value: float
    parameters: Mapping[str, Any]
    trials: tuple[FinishedTrial, ...]


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
    """Tune hyper-parameters for the largest metric on validation classes; test classes are never evaluated.

    Calls with the same ``out``, or the same ``storage`` and ``study``, share the trials, also between processes and
    machines. Each call returns when all trials are done.

    Args:
        recipe: Recipe to vary: a name, a YAML file or a `proxemic.training.Recipe`.
        out: Directory of the study: a new one, or that of the same study, which is then continued; None creates one
            under ``runs``.
        overrides: Values of the recipe by dotted keys, such as ``{"training.epochs": 20}``; these are not tuned.
        metric: Metric to maximise; None takes the recipe's ``evaluation.metric``.
        space: Name of a search space of the package, or a YAML file; None takes the space of the recipe's loss.
        around: Recipe whose values are the centres of ranges that a space gives as a factor; None takes ``recipe``.
            Several losses tuned with the same ``around`` have the same ranges.
        trials: Number of trials of all processes together; None takes 50, or all points of a grid.
        budget: Instead of ``trials``: total epochs of all trials, as a multiple of the recipe's epochs. A budget of 24
            pays for 24 complete trials, or for more if some are pruned. Trials start until it is spent.
        first: Recipes (names or files), such as the best ones of similar losses. The first trial takes the values of
            ``recipe``; the next trials take the values of these recipes, clipped to the ranges of the space.
        sampler: ``tpe``, ``random`` (random search) or ``grid`` (grid search).
        pruner: ``median`` stops a trial that is worse at an epoch than the median of the other trials.
        storage: Optuna storage URL of a database; None keeps the study in ``out``.
        study: Name of the study in the storage; None takes the name of ``out``.
        workers: Number of processes to start on this machine.
        seed: Seed of the sampler, which makes tuning in one process repeatable; trainings use the recipe's seed.
        resume: Continue the study in this directory, or read the result of a finished one. All other arguments are then
            read from there, except ``workers`` and a ``storage`` with a password, which is not written to disk.
        report: Called with one line per trial, in every worker process; it must therefore be picklable if ``workers``
            is 2 or more. None logs the lines.

    Raises:
        UserError: If the recipe, the space, the storage or the directory is refused, or if every trial fails;
            `Interrupted` after Ctrl-C.
        ValueError: If a number is out of its range.
    """
    given = changed_arguments(tune, locals())
    report = report or logging.getLogger("proxemic").info
    check_range("workers", workers, "[1, inf)")
    if resume is not None:
        if others := given - {"resume", "workers", "storage", "report"}:
            raise UserError(f"resume takes all settings from the study that it continues: leave out {min(others)}.")
        return _run(Path(resume), workers, storage, report)
    if recipe is None:
        raise UserError("--recipe is missing: name one that proxemic recipes list prints, or give a YAML file.")
    check_range("seed", seed, SEEDS)
    check_range("trials", trials, "[1, inf)")
    check_range("budget", budget, "(0, inf)")
    other = "--trials" if trials is not None else "--sampler grid" if sampler == "grid" else None
    for refused, sentence in (
        (
            budget is not None and other,
            f"--budget and {other} both set the number of trials: leave one of them out.",
        ),
    ):
        if refused:
            raise ValueError(sentence)
    flags = as_flags({**(overrides or {}), **({} if metric is None else {"evaluation.metric": metric})})
    with recipe_file(recipe) as file:
        read = read_recipe(file, flags, own_code=True)
        select_on = read.recipe.evaluation.select_on
        if select_on != "validation":
            raise UserError(
                f"evaluation.select_on is {select_on}, but tuning must not see the test classes: set "
                "--evaluation.select_on validation, and data.validation_fraction above 0."
            )
        content, pinned = plan_space(file, flags, space, around=None if around is None else content_of(around))
        source = "recipe" if isinstance(recipe, Recipe) else str(file)
    out = new_directory(f"tune-{'recipe' if isinstance(recipe, Recipe) else recipe}") if out is None else Path(out)
    dimensions = read_space(content, "The search space")
    points = math.prod(len(item.values()) for item in dimensions.values()) if sampler == "grid" else trials or 50
    options = TuningOptions(
        source,
        list(flags),
        content,
        min(trials or points, points),
        study or out.resolve().name,
        seed,
        [recipe_point(content_of(item), dimensions) for item in first],
        budget,
        sampler,
        pruner,
        None if storage is None else without_password(storage),
    )
    directory = tuning_directory(out)
    if not directory.is_begun(["base.yaml"]):
        read.recipe.load()  # refuses a missing folder before anything is written
    if storage is not None:
        open_storage(storage)
    directory.begin(options, {out / "base.yaml": read.yaml})
    if pinned:
        report(f"Not tuned, because flags set {'it' if len(pinned) == 1 else 'them'}: {', '.join(pinned)}.")
    return _run(out, workers, storage, report)


def plan_space(
    file: Path, flags: Sequence[str], space: str | None, *, around: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the content of a search space for a recipe with flags, and the keys that flags exclude from tuning.

    Factors are replaced by ranges around the values of the full recipe ``around``; None takes the recipe itself.
    `UserError` if the space does not fit the recipe.
    """
    where = f"The search space {space or 'of the loss'}"
    base = yaml.safe_load(read_recipe(file, flags, own_code=True).yaml)
    content, pinned = pin(default_space(base) if space is None else load_space(space), read_flags(flags))
    content = resolve_factors(content, base if around is None else around, where)
    dimensions = read_space(content, where)
    try:
        values = trial_values(middle(dimensions), dimensions, base)
        _ = read_recipe(file, (*flags, *as_flags(values)), own_code=True).recipe
    except (UserError, ValueError) as error:
        raise UserError(f"{where} does not fit the recipe: {error}") from error
    return content, pinned


def content_of(recipe: Recipe | str | Path) -> dict[str, Any]:
    """Read the full content of a recipe."""
    with recipe_file(recipe) as file:
        return yaml.safe_load(read_recipe(file, (), own_code=True).yaml)


@contextlib.contextmanager
def recipe_file(recipe: Recipe | str | Path) -> Iterator[Path]:
    """Provide the YAML file of a recipe; for a `Recipe`, a temporary file that exists within the block."""
    if not isinstance(recipe, Recipe):
        yield find_recipe(str(recipe))
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "recipe.yaml"
        write_text(file, to_yaml(recipe))
        yield file


def _run(out: Path, workers: int, storage: str | None, report: Callable[[str], object]) -> TuningResult:
    """Run the missing trials of the study in a directory."""
    directory = tuning_directory(out)
    options = directory.read()
    kept = options.storage
    if storage is None and kept is not None and MASK in kept:
        raise UserError(f"{out / directory.file} does not keep the password of {kept}: give --storage again.")
    if storage is not None and without_password(storage) != kept:
        begun = kept or "in its own folder"
        raise UserError(f"--storage differs from the storage of the study in {out}, {begun}: give the same, or none.")
    search = Search(out, out / "base.yaml", options, report, storage=storage or kept)
    with directory.at_work(alone=False), cpu_threads(RUN_THREADS), storage_errors(search.storage):
        if workers > 1:
            with Workers(workers) as pool:
                pool.share(_join, out, search.storage, report)
        best, finished = search.run(seed=options.seed if workers == 1 else None)
        search.draw()
    return TuningResult(out, out / "best.yaml", best.value or 0.0, best.parameters, tuple(finished))


def _join(out: Path, storage: str, report: Callable[[str], object]) -> None:
    """Run trials of a study in a worker process."""
    search = Search(out, out / "base.yaml", tuning_directory(out).read(), report, storage=storage)
    with storage_errors(storage):
        search.run()
