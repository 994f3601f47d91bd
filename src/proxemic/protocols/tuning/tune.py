"""The search for a recipe's hyper-parameters on classes held out from training, by any number of processes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import remove_stale_temporaries
from proxemic.protocols.runs.jobs import RUN_THREADS, Workers, going_on_with
from proxemic.protocols.tuning.directory import TuningDirectory, TuningOptions
from proxemic.protocols.tuning.planned_sampler import Sampler
from proxemic.protocols.tuning.search import Pruner
from proxemic.protocols.tuning.spaces import default_space, hold, load_space, read_stages
from proxemic.protocols.tuning.stages import budgets, check_stages
from proxemic.protocols.tuning.study import check_storage, masked, storage_at_work
from proxemic.protocols.tuning.worker import TuningSearch
from proxemic.recipes.reader import read_recipe
from proxemic.training.threads import cpu_threads

with optional_dependency("train"):
    import yaml

__all__ = ["TuningResult", "resume_tuning", "tune"]


@dataclass(frozen=True)
class TuningResult:
    """What a search found.

    Args:
        best_recipe: The YAML file, ready to be trained.
        value: Of the metric at the best epoch of the best trial, on validation classes; the best of many, so too good.
        parameters: Of the best trial, by the recipe's keys.
    """

    best_recipe: Path
    value: float
    parameters: Mapping[str, Any]


def tune(
    recipe: Path,
    flags: Sequence[str] = (),
    *,
    out: Path,
    space: str | None = None,
    trials: int | None = None,
    sampler: Sampler = "tpe",
    pruner: Pruner = "none",
    storage: str | None = None,
    study: str | None = None,
    workers: int = 1,
    seed: int = 0,
    report: Callable[[str], object] = print,
) -> TuningResult:
    """Search for the hyper-parameters with the largest evaluation.metric on validation classes.

    The test classes are never looked at. Calls with the same ``out``, or with the same ``storage`` and ``study``, share
    the trials, whatever process or machine they come from; each returns when all trials are made.

    Args:
        recipe: The YAML file that is varied.
        flags: Overrides of it, as on the command line; what they give a value to is not searched.
        out: The search's directory; new, or that of the same search, which is gone on with.
        space: Name of a search space of the package, or a YAML file; None takes that of the recipe's loss.
        trials: Of all stages and processes together; None makes 50, or all points of a grid.
        sampler: ``tpe``, ``gp``, ``random`` or ``grid``.
        pruner: ``median`` stops a trial that at some epoch is worse than the median of the others there.
        storage: Optuna storage URL; None keeps the study in ``out``.
        study: Its name there; None takes that of ``out``. Stage 2 of NAME is the study NAME-2.
        workers: Processes to start here.
        seed: Of the sampler; that of the recipe is the trainings'.
        report: Is given a line a trial.

    Raises:
        UserError: If the recipe, the space, the storage or the directory is refused, or no trial works; `Interrupted`
            after Ctrl-C.
        ValueError: If a number is out of its range.
    """
    if trials is not None and trials < 1:
        raise ValueError(f"--trials is {trials}, but must be at least 1.")
    if workers < 1:
        raise ValueError(f"--workers is {workers}, but must be at least 1.")
    read = read_recipe(recipe, flags, own_code=True)
    select_on = read.recipe.evaluation.select_on
    if select_on != "validation":
        raise UserError(
            f"evaluation.select_on is {select_on}, but a search must choose on validation classes, as it must not see "
            "the test classes: set --evaluation.select_on validation, and data.validation_fraction above 0."
        )
    content = default_space(yaml.safe_load(read.yaml)) if space is None else load_space(space)
    content, held = hold(content, flags)
    name = space or "of the loss"
    stages = read_stages(content, f"The search space {name}")
    if sampler != "grid" or trials is not None:
        budgets(stages, trials or 50)
    check_stages(recipe, flags, stages, name)
    shown = None if storage is None else masked(storage)
    named = study or out.resolve().name
    options = TuningOptions(str(recipe), list(flags), content, name, trials, sampler, pruner, shown, named, seed)
    directory = TuningDirectory(out)
    directory.check(options, read.yaml)
    if not directory.options.exists():
        read.recipe.load()  # a wrong folder is said before anything is written
    if storage is not None:
        check_storage(storage)
    directory.create(options, read.yaml)
    if held:
        report(f"Not searched, as flags give {'it' if len(held) == 1 else 'them'}: {', '.join(held)}.")
    return resume_tuning(out, workers=workers, storage=storage, report=report)


def resume_tuning(
    out: Path, *, workers: int = 1, storage: str | None = None, report: Callable[[str], object] = print
) -> TuningResult:
    """Go on with a search, or read what a finished one found.

    Args:
        out: Its directory.
        workers: Processes to start here.
        storage: As it was; None is enough unless it has a password, which is not written to disk.
        report: Is given a line a trial.

    Raises:
        UserError: As `tune`.
    """
    directory = TuningDirectory(out)
    options = directory.read()
    storage = options.storage if storage is None else storage
    if storage is not None and "***" in storage:
        raise UserError(f"{directory.options} does not keep the password of {storage}: give --storage again.")
    if storage is not None and masked(storage) != options.storage:
        kept = options.storage or "in its own folder"
        raise UserError(f"--storage is not that of the search in {out}, which is {kept}: give the same, or none.")
    remove_stale_temporaries(out)
    with going_on_with(f"proxemic tune --resume {out}"), cpu_threads(RUN_THREADS):
        if workers > 1:
            with Workers(workers) as pool:
                pool.share(_work, out, storage)
        its = TuningSearch(directory, options, storage or directory.storage, report)
        with storage_at_work(its.storage):
            its.make_trials()
            best = its.finish()
        return TuningResult(directory.best_recipe, best.value or 0.0, best.parameters)


def _work(out: Path, storage: str | None) -> None:
    directory = TuningDirectory(out)
    options = directory.read()
    its = TuningSearch(directory, options, storage or directory.storage, _print_line)
    with storage_at_work(its.storage):
        its.make_trials()


def _print_line(line: str) -> None:
    print(line, flush=True)
