"""Reads the search spaces of the package, or files of the user's own, into stages."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.recipes.reader import read_yaml
from proxemic.studies.tuning.spaces.dimensions import Choices, Dimension, Factor, Range, read_dimension

FOLDER = Path(__file__).parent
PACKAGES = ("proxemic.losses.", "pytorch_metric_learning.")


@dataclass(frozen=True)
class Stage:
    """One of several searches in a row, each of which takes over the best values of those before.

    Args:
        search: What is searched, by the recipe's keys as flags name them.
        fixed: Values of the recipe in this stage alone.
        from_best: Begin with the weights of the best trial of the stage before, which is then the first of two phases.
        share: Part of all trials, in (0, 1]; None shares what is left evenly with the other stages.
    """

    search: Mapping[str, Dimension]
    fixed: Mapping[str, Any]
    from_best: bool = False
    share: float | None = None

    def dimensions(self, recipe: Mapping[str, Any]) -> dict[str, Range | Choices]:
        """Return what is searched, with every `Factor` resolved by the full content of a recipe.

        Raises:
            UserError: If a range is relative to a value that the recipe does not have.
        """
        return {
            name: each.around(name, recipe_value(recipe, name)) if isinstance(each, Factor) else each
            for name, each in self.search.items()
        }


def list_spaces() -> list[str]:
    """Names of the search spaces in the package, sorted: classes of losses, and of what may be inside them.

    A loss whose two phases are searched differently has a second space, its name with ``-two-phases``.
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_space(name: str) -> list[Any]:
    """Read the content of a search space: of the package by name, or any YAML file by path.

    Raises:
        UserError: If there is neither, or it cannot be read.
    """
    path = Path(name)
    if name in list_spaces():
        path = FOLDER / f"{name}.yaml"
    elif path.suffix not in (".yaml", ".yml"):
        near = difflib.get_close_matches(name, list_spaces(), n=1)
        meant = f" (did you mean {near[0]}?)" if near else ""
        raise UserError(
            f"There is no search space {name!r}{meant}: the names are {', '.join(list_spaces())}; or give a YAML file."
        )
    content = read_yaml(path)
    if not isinstance(content, list):
        raise UserError(f"{path} holds no search space: it must be a list of stages, each with search.")
    return content


def default_space(recipe: Mapping[str, Any], *, two_phases: bool = False) -> list[Any]:
    """Return the package's space for the loss of a recipe; its last stage also searches what is inside the loss.

    Args:
        recipe: Full content of the recipe.
        two_phases: Take the loss's space of two phases, if there is one; its first stage searches what is inside.

    Raises:
        UserError: If there is none for the loss.
    """
    loss, *inside = _classes(recipe["loss"])
    known = list_spaces()
    if loss not in known:
        raise UserError(
            f"There is no search space for the loss {loss}: give one with --space FILE, in which stages list what is "
            f"searched, or the name of one of {', '.join(known)}."
        )
    phases = f"{loss}-two-phases"
    stages = load_space(phases if two_phases and phases in known else loss)
    for name in inside:
        if name in known:
            stages[0 if two_phases else -1]["search"] |= load_space(name)[-1]["search"]
    return stages


def pin(content: Sequence[Any], given: Collection[str], where: str = "The search space") -> tuple[list[Any], list[str]]:
    """Remove from a search space the keys that overrides give a value to, which every trial then keeps.

    Returns:
        The stages with what is left to search, and the keys that were removed.

    Raises:
        UserError: As `read_stages`, or if a stage has nothing left to search, or sets one of the keys itself.

    >>> pin([{"search": {"optim.lr": {"factor": 10}, "loss.alpha": {"low": 4, "high": 128}}}], ["loss.alpha"])
    ([{'search': {'optim.lr': {'factor': 10}}}], ['loss.alpha'])
    """
    stages = read_stages(content, where)
    searched = dict.fromkeys(key for stage in stages for key in stage.search)
    if twice := sorted({key for stage in stages for key in stage.fixed} & set(given) - set(searched)):
        raise UserError(
            f"Flags give {', '.join(twice)}, which the search space sets itself in its stages: leave "
            f"{'it' if len(twice) == 1 else 'them'} out, or give another --space FILE."
        )
    left: list[Any] = []
    for stage in content:
        search = {key: each for key, each in stage["search"].items() if key not in given}
        if not search:
            raise UserError(
                f"Flags give {', '.join(stage['search'])}, which is all that a stage of the search space varies: leave "
                "one of them to be searched, or give --space FILE."
            )
        left.append({**stage, "search": search})
    return left, [key for key in searched if key in given]


def resolve_factors(content: Sequence[Any], recipe: Mapping[str, Any], where: str) -> list[Any]:
    """Replace the factors of a search space by ranges around the values of a recipe, in full.

    A stage that begins with the best weights keeps its factors, which are relative to what was found before.

    Raises:
        UserError: As `read_stages`, or if a factor is relative to a value that the recipe does not have.

    >>> resolve_factors([{"search": {"optim.lr": {"factor": 10, "log": True}}}], {"optim": {"lr": 0.02}}, "mine.yaml")
    [{'search': {'optim.lr': {'low': 0.002, 'high': 0.2, 'log': True, 'points': 3}}}]
    """
    resolved: list[Any] = []
    for given, stage in zip(content, read_stages(content, where), strict=True):
        factors = (
            {} if stage.from_best else {name: each for name, each in stage.search.items() if isinstance(each, Factor)}
        )
        near = {name: each.around(name, recipe_value(recipe, name)) for name, each in factors.items()}
        ranges = {
            name: {"low": each.low, "high": each.high, "log": each.log, "points": each.points}
            for name, each in near.items()
        }
        resolved.append({**given, "search": {**given["search"], **ranges}})
    return resolved


def read_stages(content: Sequence[Any], where: str) -> tuple[Stage, ...]:
    """Check the content of a search space, which messages call ``where``, and give it types.

    Raises:
        UserError: For an unknown key, or a value that is not allowed.

    >>> read_stages([{"search": {"optim.lr": {"low": 0.001, "high": 0.1, "log": True}}}], "mine.yaml")[0].search
    {'optim.lr': Range(low=0.001, high=0.1, log=True, step=None, integer=False, points=3, grid=())}
    """
    stages = tuple(_read_stage(each, f"{where}, stage {number}") for number, each in enumerate(content, 1))
    if not stages:
        raise UserError(f"{where} holds no stages: give at least one, with search.")
    for number, stage in enumerate(stages, 1):
        if stage.from_best and (number == 1 or number < len(stages)):
            raise UserError(
                f"{where}, stage {number} has start_from: best, but only the last of several stages may: it becomes "
                "the second phase of the best recipe."
            )
        for key in {**stage.search, **stage.fixed} if stage.from_best else ():
            if not key.startswith(("loss.", "optim.")) and key != "training.epochs":
                raise UserError(
                    f"{where}, stage {number} has start_from: best and {key}, but a second phase changes keys of loss "
                    "and optim, and training.epochs, alone."
                )
    if sum(stage.share or 0 for stage in stages) > 1 + 1e-9:
        raise UserError(f"{where}: the stages' trials add up to more than 1, but they are parts of all trials.")
    return stages


def recipe_value(recipe: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key as flags name it; in a list, such as ``loss.regularizers``, that of the last entry.

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


def _read_stage(content: Any, where: str) -> Stage:
    if not isinstance(content, Mapping) or not isinstance(content.get("search"), Mapping) or not content["search"]:
        raise UserError(
            f"{where} has no search: map the recipe's keys to what is searched, as optim.lr: {{factor: 10}}."
        )
    allowed = ("search", "fixed", "start_from", "trials")
    for key in content:
        if key not in allowed:
            raise UserError(f"{where}: there is no key {key}; allowed are {', '.join(allowed)}.")
    fixed = content.get("fixed") or {}
    if not isinstance(fixed, Mapping):
        raise UserError(f"{where}: fixed is {fixed!r}, but must map keys of the recipe to values.")
    if content.get("start_from") not in (None, "best"):
        raise UserError(f"{where}: start_from is {content['start_from']!r}, but must be best, or left out.")
    share = content.get("trials")
    if share is not None and not (isinstance(share, int | float) and 0 < share <= 1):
        raise UserError(
            f"{where}: trials is {share!r}, but must be the stage's part of all trials, above 0 and up to 1."
        )
    search = {name: read_dimension(each, f"{where}, {name}") for name, each in content["search"].items()}
    return Stage(search, fixed, content.get("start_from") == "best", share)


def _classes(loss: Any) -> list[str]:
    """Return the name of the loss's class, then those of the classes inside it that flags can reach."""
    arguments = loss.get("init_args") or {} if isinstance(loss, Mapping) else {}
    inside = [arguments.get("loss"), arguments.get("miner"), *(arguments.get("regularizers") or [])[-1:]]
    return [_name(loss), *(_name(each) for each in inside if each)]


def _name(spec: Any) -> str:
    path = str(spec.get("class_path") if isinstance(spec, Mapping) else spec)
    # A class of the user's own may have the name of one of ours.
    return path.rpartition(".")[2] if path.startswith(PACKAGES) else path
