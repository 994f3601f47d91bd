"""Search the hyper-parameters of a reality check; the second phase starts from the best of the first."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.recipes.flags import as_flags
from proxemic.recipes.reader import read_recipe
from proxemic.studies.reality_check.cross_validation import CrossValidation, FoldFailed
from proxemic.studies.reality_check.directory import recipe_file
from proxemic.studies.tuning.search import (
    FinishedTrial,
    Trial,
    TrialFailed,
    best_of,
    finished_trials,
    open_study,
    search,
)
from proxemic.studies.tuning.spaces import Choices, Range, Stage, default_space, pin, read_stages, recipe_value
from proxemic.tables import percent

with optional_dependency("train"):
    import yaml

SECOND = "second_phase."


@dataclass(frozen=True)
class PhaseSpace:
    """The dimensions of a search, further values of all its trials, and the recipe's own values, by key."""

    dimensions: Mapping[str, Range | Choices]
    fixed: Mapping[str, Any]
    initial: Mapping[str, Any]

    def flags(self, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the flags for the values of a trial."""
        return as_flags({**self.fixed, **parameters})


@dataclass(frozen=True)
class CheckSpaces:
    """The search spaces of a loss in both phases; the second space depends on the result of the first search.

    ``later`` is the stage that starts from the best weights of earlier stages. Without it, the ranges of the second
    phase are derived from those of the first. Keys in ``pinned`` are not varied.
    """

    first: PhaseSpace
    later: Stage | None
    pinned: frozenset[str]

    @classmethod
    def of(cls, base: Mapping[str, Any], given: Collection[str], content: Sequence[Any], where: str) -> "CheckSpaces":
        """Read a space for a full recipe, without the keys that flags set.

        Stages that do not start from the best weights of earlier stages are searched together: the range of a key comes
        from the first stage that searches it, and the fixed values come from the last stage.
        """
        two = base.get("second_phase") is not None
        stages = read_stages(pin(content, given, where)[0], where)
        if any("training.epochs" in (*stage.search, *stage.fixed) for stage in stages):
            raise UserError(
                f"{where} sets training.epochs, but the phases of a reality check take the recipe's epochs, or end at "
                "a plateau: leave it out."
            )
        later = stages[-1] if stages[-1].from_best else None
        if later is not None and not two:
            raise UserError(
                f"{where} has a stage with start_from: best, but the recipe has no second phase: add one, or leave the "
                "stage out."
            )
        first = [stage for stage in stages if stage is not later]
        dimensions = {
            name: dimension for stage in reversed(first) for name, dimension in stage.dimensions(base).items()
        }
        initial = {name: recipe_value(base, name) for name in dimensions}
        return cls(PhaseSpace(dimensions, first[-1].fixed, initial), later, frozenset(given))

    def second(self, best: Mapping[str, Any]) -> PhaseSpace:
        """Return the space of the second phase, for the full recipe with the best values of the first phase."""
        if self.later is not None:
            dimensions: Mapping[str, Range | Choices] = self.later.dimensions(best)
        else:
            near = {name: _tighter(name, dimension, best) for name, dimension in self.first.dimensions.items()}
            dimensions = {name: item for name, item in near.items() if item is not None}
        searched = {
            name: dimension for name, dimension in dimensions.items() if self.pinned.isdisjoint((name, SECOND + name))
        }
        second = best.get("second_phase") or {}
        before = {name: recipe_value(second, name) for name in searched}
        initial = {name: recipe_value(best, name) if value is None else value for name, value in before.items()}
        return PhaseSpace(_of_second(searched), self._fixed_later(), _of_second(initial))

    def flags(self, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the flags for the best values of both phases."""
        return as_flags({**self.first.fixed, **self._fixed_later(), **parameters})

    def _fixed_later(self) -> dict[str, Any]:
        return {} if self.later is None else _of_second(self.later.fixed)


def default_stages(base: Mapping[str, Any]) -> list[Any]:
    """Return the package's space for the loss of a recipe; with one phase, without the stages of a second."""
    content = default_space(base, two_phases=True)
    two = base.get("second_phase") is not None
    return content if two else [stage for stage in content if stage.get("start_from") is None]


def _of_second(values: Mapping[str, Any]) -> dict[str, Any]:
    return {SECOND + name: value for name, value in values.items()}


def _tighter(name: str, dimension: Range | Choices, best: Mapping[str, Any]) -> Range | None:
    """Return the range of the second phase, or None for choices and whole numbers, which stay fixed.

    Learning rates fall by a factor of up to 100. The range of other numbers is around the best value of the first phase
    and half as wide as the first range.

    >>> _tighter("optim.lr", Range(0.001, 0.1, log=True), {"optim": {"lr": 0.01}})
    Range(low=0.0001, high=0.01, log=True, step=None, integer=False, points=3, grid=())
    >>> _tighter("loss.margin", Range(0, 0.8), {"loss": {"margin": 0.1}})
    Range(low=0.0, high=0.3, log=False, step=None, integer=False, points=3, grid=())
    """
    if not isinstance(dimension, Range) or dimension.integer:
        return None
    value, low, high = recipe_value(best, name), dimension.low, dimension.high
    if name.startswith("optim.") and dimension.log:
        bounds: Iterable[float] = (value / 100, value)
    elif dimension.log:
        factor = (high / low) ** 0.25
        bounds = (max(low, value / factor), min(high, value * factor))
    else:
        quarter = (high - low) / 4
        bounds = (max(low, value - quarter), min(high, value + quarter))
    least, most = (float(f"{bound:.6g}") for bound in bounds)
    return Range(least, most, dimension.log)


def find_best(
    spaces: CheckSpaces, validation: CrossValidation, *, report: Callable[[str], object]
) -> tuple[dict[str, Any], float]:
    """Search the first phase, and then the second phase, if there is one, from the runs of the best trial.

    Returns the best values of both phases, by key of the recipe, and their mean metric over the folds.
    """
    two_phases = validation.base["second_phase"] is not None
    flags = ("--second_phase=null", f"--training.epochs={validation.first_epochs}") if two_phases else ()
    best = _search(validation, spaces.first, report, flags)
    values = dict(best.parameters)
    if two_phases:
        flags = spaces.first.flags(values)
        space = spaces.second(yaml.safe_load(read_recipe(recipe_file(validation.out), flags, own_code=True).yaml))
        if space.dimensions:
            first = validation.out / "trials" / str(best.number)
            best = _search(validation, space, lambda line: report(f"second phase, {line}"), flags, first)
    return {**values, **best.parameters}, best.value or 0.0


def _search(
    validation: CrossValidation,
    space: PhaseSpace,
    report: Callable[[str], object],
    flags: Sequence[str],
    first: Path | None = None,
) -> FinishedTrial:
    """Search one phase; the second phase continues the runs of the trial ``first``."""
    check, is_first = validation.check, first is None
    folder = validation.out / ("trials" if is_first else "second-trials")
    storage = f"sqlite:///{validation.out / 'study.db'}"
    study = "reality-check" if is_first else "reality-check-second-phase"

    def evaluate(trial: Trial) -> float:
        values = (*flags, *space.flags(trial.parameters))
        try:
            return validation.evaluate(values, folder / str(trial.number), first=first)
        except FoldFailed as error:
            raise TrialFailed(str(error)) from error

    def finish(trial: FinishedTrial) -> None:
        done = finished_trials(open_study(storage, study))
        best = best_of(done)
        validation.drop_weights(folder.name, but=best and folder / str(best.number))
        value = trial.failure if trial.value is None else f"{check.metric} {percent(trial.value)}"
        report(f"trial {len(done)}/{check.trials}, {check.folds} folds, {trial.seconds:.0f} s: {value}")

    return search(
        evaluate,
        space.dimensions,
        storage=storage,
        study=study,
        trials=check.trials,
        seed=check.seed + (not is_first),
        first=[space.initial],
        alone=True,
        on_trial=finish,
    )
