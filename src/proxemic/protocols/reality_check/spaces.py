"""The search spaces of a reality check, one per phase."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxemic.errors import UserError
from proxemic.protocols.tuning.spaces import Choices, Range, Stage, default_space, pin, read_stages, recipe_value
from proxemic.recipes.flags import as_flags

SECOND = "second_phase."


@dataclass(frozen=True)
class PhaseSpace:
    """What one search varies, what else all its trials set, and the recipe's own values, by the recipe's keys."""

    dimensions: Mapping[str, Range | Choices]
    fixed: Mapping[str, Any]
    initial: Mapping[str, Any]

    def middle(self) -> dict[str, Any]:
        """A value of each dimension, by which to check that the recipe can be read."""
        values = {name: each.values() for name, each in self.dimensions.items()}
        return {name: each[len(each) // 2] for name, each in values.items()}

    def flags(self, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """The flags that give a recipe the values of a trial."""
        return as_flags({**self.fixed, **parameters})


@dataclass(frozen=True)
class CheckSpaces:
    """The spaces of a loss in both phases, the second of which depends on the result of the first search.

    ``later`` is the stage that begins with the best weights of the stages before; without one, the ranges of the second
    phase are derived from those of the first. Neither phase varies the keys in ``pinned``.
    """

    first: PhaseSpace
    later: Stage | None
    pinned: frozenset[str]

    @classmethod
    def of(
        cls, base: Mapping[str, Any], given: Collection[str], content: Sequence[Any] | None, where: str
    ) -> "CheckSpaces":
        """Read a space for a recipe in full, or the package's for its loss, without the keys that flags give.

        The stages that do not begin with the best weights of the stages before are searched at once: the first of them
        that searches a value gives its range, the last one gives the fixed values.
        """
        two = base.get("second_phase") is not None
        if content is None:
            content = default_space(base, two_phases=True)
            content = content if two else [stage for stage in content if stage.get("start_from") is None]
        left, _ = pin(content, given)
        stages = read_stages(left, where)
        if any("training.epochs" in (*each.search, *each.fixed) for each in stages):
            raise UserError(
                f"{where} sets training.epochs, but the phases of a reality check have the recipe's epochs, or end at "
                "a plateau: leave it out."
            )
        later = stages[-1] if stages[-1].from_best else None
        if later is not None and not two:
            raise UserError(
                f"{where} has a stage with start_from: best, but the recipe has no second phase: give it one, or leave "
                "the stage out."
            )
        first = [each for each in stages if each is not later]
        ordered = (each.dimensions(base) for each in reversed(first))
        dimensions = {name: each for stage in ordered for name, each in stage.items()}
        initial = {name: recipe_value(base, name) for name in dimensions}
        return cls(PhaseSpace(dimensions, first[-1].fixed, initial), later, frozenset(given))

    def second(self, best: Mapping[str, Any]) -> PhaseSpace:
        """What the second phase varies, given the recipe in full with the best values of the first phase."""
        if self.later is not None:
            dimensions: Mapping[str, Range | Choices] = self.later.dimensions(best)
        else:
            near = {name: _tighter(name, each, best) for name, each in self.first.dimensions.items()}
            dimensions = {name: each for name, each in near.items() if each is not None}
        searched = {name: each for name, each in dimensions.items() if self.pinned.isdisjoint((name, SECOND + name))}
        second = best.get("second_phase") or {}
        before = {name: recipe_value(second, name) for name in searched}
        initial = {name: recipe_value(best, name) if value is None else value for name, value in before.items()}
        return PhaseSpace(_of_second(searched), self._fixed_later(), _of_second(initial))

    def flags(self, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """The flags that give a recipe the best values of both phases."""
        return as_flags({**self.first.fixed, **self._fixed_later(), **parameters})

    def _fixed_later(self) -> dict[str, Any]:
        return {} if self.later is None else _of_second(self.later.fixed)


def _of_second(values: Mapping[str, Any]) -> dict[str, Any]:
    return {SECOND + name: value for name, value in values.items()}


def _tighter(name: str, dimension: Range | Choices, best: Mapping[str, Any]) -> Range | None:
    """The range of the second phase; None for choices and whole numbers, which do not change.

    Learning rates fall by a factor of up to 100. Other numbers lie around the best value of the first phase, in a range
    half as wide as that of the first phase.

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
    least, most = (float(f"{each:.6g}") for each in bounds)
    return Range(least, most, dimension.log)
