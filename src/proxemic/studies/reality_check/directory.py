"""The settings and files of a reality check."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxemic.ranges import SEEDS, check_fields
from proxemic.studies.directories import StudyDirectory


@dataclass(frozen=True)
class RealityCheck:
    """The arguments of `reality_check` as ``reality-check.json`` stores them, with the search space of each recipe."""

    recipes: tuple[str, ...]
    flags: tuple[str, ...] = ()
    trials: int = 50
    repeats: int = 10
    folds: int = 4
    embedding_size: int = 128
    metric: str = "map@r"
    seed: int = 0
    spaces: tuple[dict[str, Any], ...] = ()

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("trials", "repeats", "embedding_size"), "[1, inf)")
        check_fields(self, **counts, folds="[2, inf)", seed=SEEDS)
        if not self.recipes:
            raise ValueError("There is no recipe: name at least one that proxemic recipes list prints.")
        if len({folder_of(recipe) for recipe in self.recipes}) < len(self.recipes):
            raise ValueError(f"The recipes are {', '.join(self.recipes)}, but their names must differ.")


def directory_of(path: Path) -> StudyDirectory[RealityCheck]:
    """Return the directory of a check, which has a folder for each recipe."""
    return StudyDirectory(path, "reality-check.json", "reality check", "reality-check", RealityCheck)


def folder_of(recipe: str) -> str:
    """Return the name of a recipe's folder."""
    path = Path(recipe)
    return path.stem if path.suffix in (".yaml", ".yml") else recipe.replace("/", "-")


def recipe_file(out: Path, name: str = "base") -> Path:
    """Return the path of a recipe in the folder of a loss: ``base``, or a derived recipe such as ``fold-0``."""
    return out / "recipes" / f"{name}.yaml"


def all_training_classes(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data settings without validation classes, since the folds take these from the training classes."""
    return {**data, "init_args": {**data.get("init_args", {}), "validation_fraction": 0.0}}
