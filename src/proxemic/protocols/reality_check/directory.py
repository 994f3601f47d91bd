"""The directory of a reality check: its settings, and for each recipe the recipes of its folds and what is searched."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from proxemic.errors import UserError
from proxemic.files import write_json, write_text
from proxemic.protocols.directories import StudyDirectory
from proxemic.protocols.recipe_content import same_recipe
from proxemic.typed_json import read_typed

Results = dict[str, dict[str, float]]
"""The metrics of one repetition by kind: ``separated``, ``concatenated`` and ``complete``."""


@dataclass(frozen=True)
class RealityCheck:
    """The arguments of `reality_check` that ``reality-check.json`` keeps."""

    recipes: tuple[str, ...]
    flags: tuple[str, ...] = ()
    trials: int = 50
    repeats: int = 10
    folds: int = 4
    embedding_size: int = 128
    metric: str = "map@r"
    seed: int = 0
    spaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, smallest in {"trials": 1, "repeats": 1, "folds": 2, "embedding_size": 1}.items():
            if (value := getattr(self, name)) < smallest:
                raise ValueError(f"--{name.replace('_', '-')} is {value}, but must be at least {smallest}.")
        if not self.recipes:
            raise ValueError("There is no recipe: name at least one that proxemic recipes list prints.")
        if len(self.spaces) not in (0, 1, len(self.recipes)):
            raise ValueError(
                f"--space is given {len(self.spaces)} times, but must be given once, or once for each of the "
                f"{len(self.recipes)} recipes, in their order."
            )
        if len({folder_of(recipe) for recipe in self.recipes}) < len(self.recipes):
            raise ValueError(f"The recipes are {', '.join(self.recipes)}, but each must have a name of its own.")


class RealityCheckDirectory(StudyDirectory[RealityCheck]):
    """The files of a reality check."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "reality-check.json", "reality check", "reality-check", RealityCheck)

    def of(self, recipe: str) -> "LossDirectory":
        """The part of a recipe."""
        return LossDirectory(self.path / folder_of(recipe))


class _Space(TypedDict):
    stages: list[Any]


class _Best(TypedDict):
    parameters: dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What a check does with one recipe.

    Args:
        recipes: The recipes of the folds and of the complete model, as text, and the one that they are derived from, by
            their names: ``base``, ``complete``, ``fold-0``, ….
        space: The content of the search space.
    """

    recipes: Mapping[str, str]
    space: list[Any]


@dataclass(frozen=True)
class LossDirectory:
    """The folder of one recipe in a reality check."""

    path: Path

    def recipe(self, name: str) -> Path:
        """The file of a recipe of the plan."""
        return self.path / "recipes" / f"{name}.yaml"

    def write_plan(self, plan: Plan) -> None:
        """Write a plan, or check that it is the one that the check was begun with."""
        space = self.path / "space.json"
        if space.exists() and read_typed(space, _Space)["stages"] != plan.space:
            raise UserError(
                f"{self.path.parent} was begun with another search space than it is now: restore it, or take a new "
                "--out."
            )
        for name, text in plan.recipes.items():
            file = self.recipe(name)
            if file.exists() and not same_recipe(file.read_text(encoding="utf-8"), text):
                raise UserError(
                    f"{self.path} was begun with another recipe than it is now: restore it, or take a new --out."
                )
            write_text(file, text)
        write_json(space, {"stages": plan.space})

    def read_plan(self) -> Plan:
        """Read the plan that the check was begun with."""
        recipes = {file.stem: file.read_text(encoding="utf-8") for file in self.recipe("base").parent.glob("*.yaml")}
        return Plan(recipes, read_typed(self.path / "space.json", _Space)["stages"])

    @property
    def best(self) -> dict[str, Any] | None:
        """The best values of the searches; None before these are finished."""
        file = self.path / "best.json"
        return read_typed(file, _Best)["parameters"] if file.exists() else None

    def write_best(self, parameters: Mapping[str, Any], metric: str, value: float) -> None:
        """Write the best values, and what they reached."""
        write_json(self.path / "best.json", {"parameters": parameters, metric: value})

    def repetition(self, number: int) -> Path:
        """The folder of a repetition."""
        return self.path / "repeats" / str(number)

    def results(self, number: int) -> Results | None:
        """The results of a repetition; None before it is finished."""
        file = self.repetition(number) / "results.json"
        return read_typed(file, Results) if file.exists() else None


def folder_of(recipe: str) -> str:
    """The folder of a recipe in the directory of a check."""
    path = Path(recipe)
    return path.stem if path.suffix in (".yaml", ".yml") else recipe.replace("/", "-")
