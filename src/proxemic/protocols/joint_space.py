"""A search space in one piece, for a protocol that varies everything at once, in both phases of a recipe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from proxemic.protocols.dimensions import Choices, Range
from proxemic.protocols.spaces import Stage, as_flags, default_space, hold, read_stages, recipe_value

__all__ = ["JointSpace"]


@dataclass(frozen=True)
class JointSpace:
    """All stages of a loss's space as one.

    Args:
        base: Content of the recipe, in full.
        stages: Of the space; the first stage that searches a value gives its range, the last one what it fixes.
    """

    base: Mapping[str, Any]
    stages: tuple[Stage, ...]

    @classmethod
    def of(cls, base: Mapping[str, Any], flags: Sequence[str]) -> "JointSpace":
        """The package's space for the recipe's loss, without what flags give a value to.

        Raises:
            UserError: If there is none, or nothing is left to search.
        """
        content, _ = hold(default_space(base), flags)
        return cls(base, read_stages(content, "the search space"))

    @cached_property
    def dimensions(self) -> dict[str, Range | Choices]:
        """What is searched."""
        ordered = (stage.dimensions(self.base) for stage in reversed(self.stages))
        return {name: each for dimensions in ordered for name, each in dimensions.items()}

    def first(self) -> dict[str, Any]:
        """The recipe's own values, for the first trial."""
        return {name: recipe_value(self.base, name) for name in self.dimensions}

    def middle(self) -> dict[str, Any]:
        """A value of each dimension, to see whether the recipe can be read with them."""
        values = {name: each.values() for name, each in self.dimensions.items()}
        return {name: each[len(each) // 2] for name, each in values.items()}

    def flags(self, parameters: Mapping[str, Any]) -> tuple[str, ...]:
        """What gives a recipe these values, in its second phase too where that has values of its own.

        What is searched by its logarithm, as rates are, keeps the recipe's ratio between the phases, other numbers the
        difference within their range; anything else is the same in both, unless it is the recipe's own.

        Args:
            parameters: By name, all of ``dimensions``.

        >>> recipe = {"optim": {"lr": 0.1}, "second_phase": {"optim": {"lr": 0.01}}}
        >>> stage = Stage({"optim.lr": Range(0.01, 1, log=True)}, {})
        >>> JointSpace(recipe, (stage,)).flags({"optim.lr": 0.5})
        ('--optim.lr=0.5', '--second_phase.optim.lr=0.05')
        """
        own = self.base.get("second_phase") or {}
        second = {
            f"second_phase.{name}": self._in_second(name, value, recipe_value(own, name))
            for name, value in parameters.items()
            if recipe_value(own, name) is not None
        }
        return as_flags({**self.stages[-1].fixed, **parameters, **second})

    def _in_second(self, name: str, value: Any, own: Any) -> Any:
        dimension, before = self.dimensions[name], recipe_value(self.base, name)
        if value == before:
            return own
        if not isinstance(dimension, Range) or dimension.integer or before is None:
            return value
        if dimension.log:
            return float(f"{value * own / before:.6g}")
        return float(f"{min(max(value + own - before, dimension.low), dimension.high):.6g}")
