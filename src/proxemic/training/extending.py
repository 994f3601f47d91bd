"""More epochs for a run that has begun or is finished, or a second phase for a copy of it."""

import shutil
from collections.abc import Iterator
from dataclasses import replace

from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    LRScheduler,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
)

from proxemic.errors import UserError
from proxemic.files import write_atomically, write_text
from proxemic.locks import LOCK
from proxemic.optim.schedules import PolynomialDecay
from proxemic.runs.directory import RunDirectory
from proxemic.training.recipe import Recipe

# After this many epochs, the rate is 0, rises again or is not defined.
_ENDS = {CosineAnnealingLR: "T_max", OneCycleLR: "total_steps", PolynomialLR: "total_iters"}


def with_epochs(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with more epochs."""
    before = recipe.training.epochs
    if recipe.training.start_phase == 2:
        raise UserError(
            "The run trains its second phase alone, whose epochs are second_phase.epochs: it cannot be extended by "
            "--training.epochs."
        )
    if epochs <= before:
        raise UserError(
            f"--training.epochs is {epochs}, but the run has {before}: give more to extend it, or continue it by "
            "--resume alone."
        )
    return replace(recipe, training=replace(recipe.training, epochs=epochs))


def check_extension(run: RunDirectory, before: int, epochs: int, schedule: LRScheduler | None) -> None:
    """Raise `UserError` unless the run, extended, ends as a run of as many epochs from the start would have."""
    from proxemic.training.checkpoint_io import read_checkpoint  # imports Lightning

    instead = f"begin with its weights, by --training.start_from {run.path} and a new --out"
    if not run.checkpoint.exists():
        if run.metrics.exists():
            raise UserError(f"{run.path} has no checkpoint to go on from ({run.checkpoint} is missing): {instead}.")
        return  # nothing was trained yet
    if read_checkpoint(run.checkpoint)["proxemic"]["second_phase_began"] is not None:
        raise UserError(f"{run.path} is in its second phase, which cannot begin later any more: {instead}.")
    for each in _parts(schedule):
        if isinstance(each, PolynomialDecay):
            raise UserError(
                f"optim.schedule is PolynomialDecay, whose rates fall over all epochs: those trained so far had the "
                f"rates of {before} epochs. To train more, {instead}."
            )
        end = next((getattr(each, name) for kind, name in _ENDS.items() if isinstance(each, kind)), None)
        if end is not None and before <= end < epochs:
            raise UserError(
                f"optim.schedule is {type(each).__name__}, which comes to its end after {end} epochs: its rates "
                f"from there on are not those of a training of {epochs} epochs. To train more, {instead}."
            )


def extend(run: RunDirectory, recipe_yaml: str) -> None:
    """Replace the recipe of a run, which is then no longer finished; killed at any moment, the run can be resumed."""
    with write_atomically(run.recipe) as temporary:
        temporary.write_text(recipe_yaml, encoding="utf-8")
        # First: a run with more epochs than its metrics are of would be taken for finished.
        run.metrics.unlink(missing_ok=True)
        run.report.unlink(missing_ok=True)


def branch(run: RunDirectory, out: RunDirectory, recipe_yaml: str, epochs: int) -> None:
    """Begin a run as a copy of a finished one, to be continued by a recipe that adds a second phase up to `epochs`.

    It ends as a run of that recipe would have ended; killed on the way, it has not begun.
    """
    temporary = out.path.with_name(f".{out.path.name}.begun")
    shutil.rmtree(temporary, ignore_errors=True)
    last = (run.metrics.name, run.recipe.name, LOCK, "seconds.json", run.report.name, "*.png")
    shutil.copytree(run.path, temporary, ignore=shutil.ignore_patterns(*last))
    begun = RunDirectory(temporary)
    write_text(begun.recipe, recipe_yaml)
    begun.record_epochs(epochs)
    temporary.replace(out.path)


def _parts(schedule: LRScheduler | None) -> Iterator[LRScheduler]:
    """The schedules that a schedule is made of."""
    if isinstance(schedule, SequentialLR | ChainedScheduler):
        for each in schedule._schedulers:
            yield from _parts(each)
    elif schedule is not None:
        yield schedule
