"""Search spaces: the hyper-parameters that tuning varies, and their bounds.

A space is a YAML file that maps keys of a recipe to ranges, factors or choices. The package's own spaces are the files
in this folder, one per loss or part of a loss.
"""

import difflib
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from proxemic.errors import UserError
from proxemic.recipes.reader import read_yaml

__all__ = [
    "Choices",
    "Dimension",
    "Factor",
    "Range",
    "default_space",
    "list_spaces",
    "load_space",
    "middle",
    "pin",
    "read_dimension",
    "read_space",
    "recipe_point",
    "recipe_value",
    "resolve_factors",
    "trial_values",
]

FOLDER = Path(__file__).parent
PACKAGES = ("proxemic.losses.", "pytorch_metric_learning.")
SECOND = "second_phase."


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``; `ValueError` if an argument, or a combination of arguments, is not allowed.

    With ``log``, sampling is uniform in the logarithm. With ``step``, values are multiples of it above ``low``.
    ``integer`` allows whole numbers only. A grid search takes the values of ``grid``, or ``points`` evenly spaced ones.
    """

    low: float
    high: float
    log: bool = False
    step: float | None = None
    integer: bool = False
    points: int = 3
    grid: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        low, high, step = self.low, self.high, 1 if self.step is None else self.step
        for name, value in {"low": low, "high": high, "step": step, "points": self.points}.items():
            if not _is_number(value):
                raise ValueError(f"{name} is {value!r}, but must be a number.")
        for is_wrong, sentence in (
            (low > high, f"low is {low} and high is {high}: swap them."),
            (self.log and (low <= 0 or self.step is not None), f"low is {low}: log needs a low above 0 and no step."),
            (step <= 0, f"step is {step}, but must be above 0."),
            (self.integer and (low % 1 or high % 1 or step % 1), "int is true, but low, high or step is not whole."),
            (self.points < 1 or self.points % 1, f"points is {self.points}, but must be a whole number from 1 on."),
            (any(value not in self for value in self.grid), f"grid is {self.grid}, but must lie in {low} to {high}."),
        ):
            if is_wrong:
                raise ValueError(sentence)

    def __contains__(self, value: object) -> bool:
        """Return whether a value is in the range; the step is ignored."""
        return _is_number(value) and self.low <= value <= self.high and not (self.integer and value % 1)  # pyright: ignore

    def nearest(self, value: Any) -> float | None:
        """Clip a number to the range, ignoring the step; return None for anything else.

        >>> Range(1, 4, integer=True).nearest(9.5), Range(0.1, 1).nearest(0.2), Range(0.1, 1).nearest(None)
        (4, 0.2, None)
        """
        if not _is_number(value):
            return None
        inside = min(max(value, self.low), self.high)
        return round(inside) if self.integer else inside

    def values(self) -> tuple[float, ...]:
        """Return the values that a grid search takes.

        >>> Range(1, 100, log=True).values(), Range(1, 4, integer=True, points=9).values()
        ((1.0, 10.0, 100.0), (1, 2, 3, 4))
        """
        if self.grid:
            return self.grid
        spaced = (np.geomspace if self.log else np.linspace)(self.low, self.high, int(self.points))
        if step := self.step or self.integer:
            spaced = self.low + step * np.round((spaced - self.low) / step)
        inside = np.unique(spaced.clip(self.low, self.high))  # rounding may lead out of the range
        return tuple(int(value) if self.integer else float(f"{value:.6g}") for value in inside)


@dataclass(frozen=True)
class Factor(Range):
    """A range of factors, so that one space fits networks of any size.

    A factor multiplies the recipe's own value. For a key of the second phase, it multiplies the value that the same
    trial has in the first phase.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.low <= 0:
            raise ValueError(f"factor is {self.low} to {self.high}, but must be above 0.")

    def around(self, name: str, value: Any) -> Range:
        """Return the range around the recipe's value of the key ``name``; `UserError` unless that is above 0."""
        if not _is_number(value) or value <= 0:
            raise UserError(
                f"The search space varies {name} by a factor of the recipe's own value, which is {value!r}: set it "
                "in the recipe, or give low and high in the space."
            )
        return Range(float(f"{self.low * value:.6g}"), float(f"{self.high * value:.6g}"), self.log, points=self.points)


@dataclass(frozen=True)
class Choices:
    """One of several values; lists and mappings are JSON text, as flags take them."""

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        if not self.choices:
            raise ValueError("choices is empty, but needs at least one value.")

    def __contains__(self, value: object) -> bool:
        return value in self.choices

    def nearest(self, value: object) -> Any:
        """Return the value if it is one of the choices, and otherwise None."""
        return value if value in self.choices else None

    def values(self) -> tuple[Any, ...]:
        """Return the values that a grid search takes."""
        return self.choices


Dimension = Range | Choices


def read_dimension(content: Any, where: str) -> Dimension:
    """Read a hyper-parameter of a space; `UserError` for unknown keys and values that are not allowed.

    >>> read_dimension({"factor": 10, "log": True}, "optim.lr")
    Factor(low=0.1, high=10.0, log=True, step=None, integer=False, points=3, grid=())
    >>> read_dimension({"choices": [1, [0.45, 0.8]]}, "loss.margin_range")
    Choices(choices=(1, '[0.45, 0.8]'))
    """
    kinds = {"choices": (), "factor": ("log", "points"), "low": ("high", "log", "step", "int", "points", "grid")}
    given: dict[str, Any] = dict(content) if isinstance(content, Mapping) else {}
    kind = next((name for name in kinds if name in given), None)
    if kind is None:
        raise UserError(f"{where} is {content!r}, but must give low and high, or factor, or choices.")
    if unknown := [key for key in given if key not in (kind, *kinds[kind])]:
        raise UserError(f"{where}: there is no key {unknown[0]} for {kind}; allowed are {', '.join(kinds[kind])}.")
    try:
        if kind == "choices":
            return Choices(tuple(map(_as_choice, given[kind])))
        if kind == "factor":
            factor = given.pop("factor")
            low, high = factor if isinstance(factor, list) else (1 / factor, factor)
            return Factor(float(low), float(high), **given)
        return Range(integer=given.pop("int", False), grid=tuple(given.pop("grid", ())), **given)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{where}: {error}") from error


def read_space(space: Mapping[str, Any], where: str) -> dict[str, Dimension]:
    """Read the content of a search space; error messages call it ``where``.

    >>> read_space({"optim.lr": {"low": 0.001, "high": 0.1, "log": True}}, "mine.yaml")
    {'optim.lr': Range(low=0.001, high=0.1, log=True, step=None, integer=False, points=3, grid=())}
    """
    return {name: read_dimension(item, f"{where}, {name}") for name, item in space.items()}


def resolve_factors(space: Mapping[str, Any], recipe: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Replace the factors in the content of a search space by ranges around the values of a full recipe.

    Factors of the second phase stay, since they multiply the values of each trial.

    >>> resolve_factors({"optim.lr": {"factor": 10, "log": True}}, {"optim": {"lr": 0.02}}, "mine.yaml")
    {'optim.lr': {'low': 0.002, 'high': 0.2, 'log': True, 'points': 3}}
    """
    resolved = dict(space)
    for name, item in read_space(space, where).items():
        if isinstance(item, Factor) and not name.startswith(SECOND):
            near = asdict(item.around(name, recipe_value(recipe, name)))
            resolved[name] = {key: near[key] for key in ("low", "high", "log", "points")}
    return resolved


def list_spaces() -> list[str]:
    """Return the sorted names of the package's search spaces: classes of losses and of their components.

    A space for recipes of two phases has the suffix ``-two-phases``.
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_space(name: str) -> dict[str, Any]:
    """Read the content of a search space of the package, by name, or of a YAML file, by path."""
    path, known = Path(name), list_spaces()
    if name in known:
        path = FOLDER / f"{name}.yaml"
    elif path.suffix not in (".yaml", ".yml"):
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"There is no search space {name!r}{meant}: give one of {', '.join(known)}, or a YAML file.")
    content = read_yaml(path)
    if not isinstance(content, dict) or not content:
        raise UserError(f"{path} is not a search space: map keys to ranges, as optim.lr: {{factor: 10, log: true}}.")
    return content


def default_space(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return the package's space for the loss of a recipe and its components.

    If the recipe has a second phase, the space is the loss's space for two phases. If the loss has no such space, the
    learning rates of the second phase are added to its space, as factors of those of the first phase.
    """
    arguments = recipe["loss"].get("init_args") or {}
    parts = [arguments.get("loss"), arguments.get("miner"), *(arguments.get("regularizers") or [])[-1:]]
    loss, *inside = (_class_of(part) for part in (recipe["loss"], *filter(None, parts)))
    known, two_phases = list_spaces(), f"{loss}-two-phases"
    if loss not in known:
        raise UserError(
            f"There is no search space for the loss {loss}: give one with --space, a YAML file or one of "
            f"{', '.join(known)}."
        )
    has_own = recipe.get("second_phase") is not None and two_phases in known
    space = load_space(two_phases if has_own else loss)
    for name in inside:
        space |= load_space(name) if name in known else {}
    if recipe.get("second_phase") is not None and not has_own:
        rates = [key for key in space if key.startswith("optim.")]
        space |= {SECOND + key: {"factor": [0.01, 1], "log": True} for key in rates}
    return space


def _class_of(spec: Any) -> str:
    path = str(spec.get("class_path") if isinstance(spec, Mapping) else spec)
    # A class of the user may have the same name as one of ours.
    return path.rpartition(".")[2] if path.startswith(PACKAGES) else path


def pin(space: Mapping[str, Any], given: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Remove the keys that overrides set, in both phases, from a search space; return the space and the removed keys.

    >>> pin({"optim.lr": {"factor": 10}, "loss.alpha": {"low": 4, "high": 128}}, ["loss.alpha"])
    ({'optim.lr': {'factor': 10}}, ['loss.alpha'])
    """
    pinned = [key for key in space if key in given or key.removeprefix(SECOND) in given]
    if len(pinned) == len(space):
        raise UserError(
            f"Flags give {', '.join(space)}, so that the search space has nothing left to vary: leave out one of these "
            "flags, or give --space FILE."
        )
    return {key: item for key, item in space.items() if key not in pinned}, pinned


def recipe_point(recipe: Mapping[str, Any], space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Return a recipe's values of the tuned keys as the parameters of a trial, clipped to their ranges.

    >>> recipe_point({"optim": {"lr": 0.5}, "second_phase": {}}, read_space({"optim.lr": {"low": 0, "high": 0.1}}, ""))
    {'optim.lr': 0.1}
    """
    point: dict[str, Any] = {}
    for name, dimension in space.items():
        value, first = (recipe_value(recipe, key) for key in (name, name.removeprefix(SECOND)))
        if value is None and recipe.get("second_phase") is not None:
            value = first  # a second phase holds only what changes
        if isinstance(dimension, Factor):
            value = value / first if _is_number(value) and _is_number(first) and first else None
        if (near := dimension.nearest(_as_choice(value))) is not None:
            point[name] = near
    return point


def trial_values(
    parameters: Mapping[str, Any], space: Mapping[str, Dimension], recipe: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of the recipe's keys in a trial: factors become products with the values of the first phase.

    >>> space = read_space({"optim.lr": {"low": 0, "high": 1}, "second_phase.optim.lr": {"factor": [0.1, 1]}}, "")
    >>> trial_values({"optim.lr": 0.5, "second_phase.optim.lr": 0.1}, space, {})
    {'optim.lr': 0.5, 'second_phase.optim.lr': 0.05}
    """
    values = dict(parameters)
    for name in parameters:
        if isinstance(space[name], Factor):
            first = name.removeprefix(SECOND)
            before = parameters[first] if first in parameters else recipe_value(recipe, first)
            if not _is_number(before):
                raise UserError(
                    f"The search space varies {name} by a factor of {first}, which is {before!r}: set it in the "
                    "recipe, or give low and high in the space."
                )
            values[name] = float(f"{parameters[name] * before:.6g}")
    return values


def middle(space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Return a middle value of each dimension, to check that a recipe accepts it."""
    values = {name: dimension.values() for name, dimension in space.items()}
    return {name: value[len(value) // 2] for name, value in values.items()}


def _as_choice(value: Any) -> Any:
    """Convert lists and mappings to JSON text, as in `Choices`."""
    return json.dumps(value) if isinstance(value, list | dict) else value


def recipe_value(recipe: Mapping[str, Any], key: str) -> Any:
    """Return the value of a dotted key; in a list, such as ``loss.regularizers``, of the last entry.

    >>> loss = {"class_path": "Loss", "init_args": {"alpha": 3, "regularizers": [{"init_args": {"weight": 1}}]}}
    >>> recipe_value({"loss": loss}, "loss.alpha"), recipe_value({"loss": loss}, "loss.regularizers.weight")
    (3, 1)
    """
    value: Any = recipe
    for name in key.split("."):
        value = value[-1] if isinstance(value, list) and value else value
        value = value.get("init_args", value) if isinstance(value, Mapping) else {}
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
