"""Search spaces: the hyper-parameters that a search varies, their bounds, and the stages of the search.

The package's own spaces are the YAML files in this folder, one per loss or part of a loss.
"""

import difflib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
    "Stage",
    "default_space",
    "list_spaces",
    "load_space",
    "pin",
    "read_dimension",
    "read_stages",
    "recipe_value",
    "resolve_factors",
]

FOLDER = Path(__file__).parent
PACKAGES = ("proxemic.losses.", "pytorch_metric_learning.")


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
class Factor:
    """A `Range` from ``low`` to ``high`` times the recipe's own value; so one space fits networks of any size."""

    low: float
    high: float
    log: bool = False
    points: int = 3

    def __post_init__(self) -> None:
        Range(self.low, self.high, log=True, points=self.points)

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


Dimension = Range | Factor | Choices


def read_dimension(content: Any, where: str) -> Dimension:
    """Read a hyper-parameter of a space; `UserError` for unknown keys and values that are not allowed.

    >>> read_dimension({"factor": 10, "log": True}, "optim.lr")
    Factor(low=0.1, high=10.0, log=True, points=3)
    >>> read_dimension({"choices": [1, [0.45, 0.8]]}, "loss.margin_range")
    Choices(choices=(1, '[0.45, 0.8]'))
    """
    kinds = {"choices": (), "factor": ("log", "points"), "low": ("high", "log", "step", "int", "points", "grid")}
    given: dict[str, Any] = dict(content) if isinstance(content, Mapping) else {}
    kind = next((name for name in kinds if name in given), None)
    if kind is None:
        raise UserError(f"{where} is {content!r}, but must give low and high, or factor, or choices.")
    if unknown := [key for key in given if key not in (kind, *kinds[kind])]:
        raise UserError(f"{where}: there is no key {unknown[0]} beside {kind}; allowed are {', '.join(kinds[kind])}.")
    try:
        if kind == "choices":
            return Choices(tuple(json.dumps(item) if isinstance(item, list | dict) else item for item in given[kind]))
        if kind == "factor":
            factor = given.pop("factor")
            low, high = factor if isinstance(factor, list) else (1 / factor, factor)
            return Factor(float(low), float(high), **given)
        return Range(integer=given.pop("int", False), grid=tuple(given.pop("grid", ())), **given)
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(f"{where}: {error}") from error


@dataclass(frozen=True)
class Stage:
    """One of several consecutive searches; each starts from the best values of the earlier ones.

    Args:
        search: Dimensions to search, by key of the recipe as in flags.
        fixed: Values of the recipe in this stage only.
        from_best: Start from the weights of the best trial of the stage before; the two stages are then two phases.
        share: Share of all trials, in (0, 1]; stages with None share the rest evenly.
    """

    search: Mapping[str, Dimension]
    fixed: Mapping[str, Any]
    from_best: bool = False
    share: float | None = None

    def dimensions(self, recipe: Mapping[str, Any]) -> dict[str, Range | Choices]:
        """Return the dimensions, with every `Factor` replaced by a range around the value of a full recipe."""
        return {
            name: item.around(name, recipe_value(recipe, name)) if isinstance(item, Factor) else item
            for name, item in self.search.items()
        }


def list_spaces() -> list[str]:
    """Return the sorted names of the package's search spaces: classes of losses and of their components.

    A loss whose phases have different spaces has a second space with the suffix ``-two-phases``.
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_space(name: str) -> list[Any]:
    """Read the content of a search space of the package, by name, or of a YAML file, by path."""
    path, known = Path(name), list_spaces()
    if name in known:
        path = FOLDER / f"{name}.yaml"
    elif path.suffix not in (".yaml", ".yml"):
        near = difflib.get_close_matches(name, known, n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(f"There is no search space {name!r}{meant}: give one of {', '.join(known)}, or a YAML file.")
    content = read_yaml(path)
    if not isinstance(content, list):
        raise UserError(f"{path} holds no search space: it must be a list of stages, each with search.")
    return content


def default_space(recipe: Mapping[str, Any], *, two_phases: bool = False) -> list[Any]:
    """Return the package's space for the loss of a recipe; its last stage also searches components of the loss.

    With ``two_phases``, return the loss's space for two phases if there is one; its first stage searches the
    components.
    """
    arguments = recipe["loss"].get("init_args") or {}
    parts = [arguments.get("loss"), arguments.get("miner"), *(arguments.get("regularizers") or [])[-1:]]
    loss, *inside = (_class_of(part) for part in (recipe["loss"], *filter(None, parts)))
    known = list_spaces()
    if loss not in known:
        raise UserError(
            f"There is no search space for the loss {loss}: give one with --space, a YAML file with stages or one of "
            f"{', '.join(known)}."
        )
    phases = f"{loss}-two-phases"
    stages = load_space(phases if two_phases and phases in known else loss)
    for name in inside:
        if name in known:
            stages[0 if two_phases else -1]["search"] |= load_space(name)[-1]["search"]
    return stages


def _class_of(spec: Any) -> str:
    path = str(spec.get("class_path") if isinstance(spec, Mapping) else spec)
    # A class of the user may have the same name as one of ours.
    return path.rpartition(".")[2] if path.startswith(PACKAGES) else path


def pin(content: Sequence[Any], given: Collection[str], where: str = "The search space") -> tuple[list[Any], list[str]]:
    """Remove the keys that overrides set from a search space; return the space and the removed keys.

    `UserError` if a stage has no key left to search, or sets one of the keys itself.

    >>> pin([{"search": {"optim.lr": {"factor": 10}, "loss.alpha": {"low": 4, "high": 128}}}], ["loss.alpha"])
    ([{'search': {'optim.lr': {'factor': 10}}}], ['loss.alpha'])
    """
    stages = read_stages(content, where)
    searched = dict.fromkeys(key for stage in stages for key in stage.search)
    if twice := sorted({key for stage in stages for key in stage.fixed} & set(given) - set(searched)):
        raise UserError(
            f"Flags give {', '.join(twice)}, but the stages of the search space set the same keys: leave out these "
            "flags, or give another --space FILE."
        )
    left = [{**item, "search": {key: v for key, v in item["search"].items() if key not in given}} for item in content]
    if empty := [before for before, after in zip(content, left, strict=True) if not after["search"]]:
        raise UserError(
            f"Flags give {', '.join(empty[0]['search'])}, so that a stage of the search space has nothing left to "
            "vary: leave out one of these flags, or give --space FILE."
        )
    return left, [key for key in searched if key in given]


def resolve_factors(content: Sequence[Any], recipe: Mapping[str, Any], where: str) -> list[Any]:
    """Replace the factors of a search space by ranges around the values of a full recipe.

    A stage that starts from the best weights keeps its factors, which apply to the values found before.

    >>> resolve_factors([{"search": {"optim.lr": {"factor": 10, "log": True}}}], {"optim": {"lr": 0.02}}, "mine.yaml")
    [{'search': {'optim.lr': {'low': 0.002, 'high': 0.2, 'log': True, 'points': 3}}}]
    """
    resolved: list[Any] = []
    for given, stage in zip(content, read_stages(content, where), strict=True):
        search = dict(given["search"])
        for name, item in stage.search.items() if not stage.from_best else ():
            if isinstance(item, Factor):
                near = item.around(name, recipe_value(recipe, name))
                search[name] = {"low": near.low, "high": near.high, "log": near.log, "points": near.points}
        resolved.append({**given, "search": search})
    return resolved


def read_stages(content: Sequence[Any], where: str) -> tuple[Stage, ...]:
    """Check the content of a search space and convert it to `Stage` objects; error messages call it ``where``.

    >>> read_stages([{"search": {"optim.lr": {"low": 0.001, "high": 0.1, "log": True}}}], "mine.yaml")[0].search
    {'optim.lr': Range(low=0.001, high=0.1, log=True, step=None, integer=False, points=3, grid=())}
    """
    stages = tuple(_read_stage(item, f"{where}, stage {number}") for number, item in enumerate(content, 1))
    if not stages:
        raise UserError(f"{where} holds no stages: give at least one with the key search.")
    if any(stage.from_best for stage in stages[:-1]) or (stages[0].from_best and len(stages) == 1):
        raise UserError(
            f"{where} has start_from: best, but only the last of several stages may have it, which becomes the second "
            "phase of the best recipe."
        )
    for key in {**stages[-1].search, **stages[-1].fixed} if stages[-1].from_best else ():
        if not key.startswith(("loss.", "optim.")) and key != "training.epochs":
            raise UserError(
                f"{where}, stage {len(stages)} has start_from: best and {key}, but a second phase changes only keys of "
                "loss and optim, and training.epochs."
            )
    if sum(stage.share or 0 for stage in stages) > 1 + 1e-9:
        raise UserError(f"{where}: the shares of trials add up to more than 1.")
    return stages


def _read_stage(content: Any, where: str) -> Stage:
    content = content if isinstance(content, Mapping) else {}
    search, fixed, share = content.get("search"), content.get("fixed") or {}, content.get("trials")
    allowed = ("search", "fixed", "start_from", "trials")
    unknown = [key for key in content if key not in allowed]
    for is_wrong, sentence in (
        (not (search and isinstance(search, Mapping)), " has no search: map keys to it, as optim.lr: {factor: 10}."),
        (unknown, f": there is no key {' '.join(map(str, unknown))}; allowed are {', '.join(allowed)}."),
        (not isinstance(fixed, Mapping), f": fixed is {fixed!r}, but must map keys of the recipe to values."),
        (
            content.get("start_from") not in (None, "best"),
            f": start_from is {content.get('start_from')!r}, but must be best, or left out.",
        ),
        (
            share is not None and not (isinstance(share, int | float) and 0 < share <= 1),
            f": trials is {share!r}, but must be the stage's share of all trials, above 0 and up to 1.",
        ),
    ):
        if is_wrong:
            raise UserError(where + sentence)
    assert isinstance(search, Mapping)
    dimensions = {name: read_dimension(item, f"{where}, {name}") for name, item in search.items()}
    return Stage(dimensions, fixed, content.get("start_from") == "best", share)


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
