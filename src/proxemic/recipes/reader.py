"""Read a recipe file, and the flags that override it, into a typed `Recipe`."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from proxemic.data import ImageSource
from proxemic.errors import UserError
from proxemic.recipes import find_recipe, resolve_extended
from proxemic.recipes.build import Builder, made, names_nothing
from proxemic.recipes.flags import Flags, apply_overrides, differences, merge, read_flags
from proxemic.recipes.hints import field_types, section_in
from proxemic.recipes.slots import Slot
from proxemic.recipes.writing import content_of
from proxemic.recipes.yaml_files import as_yaml, read_yaml, shown, write_yaml
from proxemic.runs.evaluate import EvaluationConfig
from proxemic.training.config import BatchConfig
from proxemic.training.recipe import Recipe


@dataclass(frozen=True)
class ReadRecipe:
    """A recipe that was read; its objects are `Described` but not made yet."""

    described: Recipe

    @functools.cached_property
    def yaml(self) -> str:
        """The full text, including defaults."""
        content = content_of(self.described, Recipe)
        second = content.pop("second_phase")
        if second is not None:  # only what differs: a value that a flag later gives to both phases must reach both
            changes = {key: differences(content[key], second[key]) for key in ("loss", "optim")}
            second = {"epochs": second["epochs"]} | {key: value for key, value in changes.items() if value}
        return write_yaml(content | {"second_phase": second})

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The recipe, made on first access; raises `UserError` or `ValueError` if a class refuses its arguments."""
        # Objects made here, such as the pair loss in a PairwiseLoss, may draw random parameters.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.described.seed)
            return made(self.described)


@dataclass(frozen=True)
class Evaluation:
    """The part of a recipe for evaluation; of ``batches`` only the number of workers is used."""

    data: ImageSource
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)


def read_recipe(path: Path, overrides: Sequence[str] | Mapping[str, Any] = (), *, own_code: bool = False) -> ReadRecipe:
    """Read and check a recipe; its objects are made when ``recipe`` of the result is first accessed.

    Args:
        path: YAML file.
        overrides: Flags such as ``--optim.lr 0.01`` or ``--optim.lr=0.01``, or a mapping of dotted keys to values;
            keys do not contain ``init_args``.
        own_code: Whether classes may be imported from the current directory, as for a training.

    Raises:
        UserError: If the file or an override has an unknown key (a similar one is suggested), a value of the wrong
            type, or a class that does not exist or cannot be used for its key.
        ValueError: If a value is out of its range.
    """
    return ReadRecipe(_build(Recipe, _content(path), str(path), overrides, own_code))


def load(name_or_file: str | Path, /, *, own_code: bool = False, **overrides: Any) -> Recipe:
    """Load a recipe of the package by name, or any recipe from a YAML file.

    Args:
        name_or_file: A name that `list_recipes` gives, or a path.
        own_code: Whether modules may be imported from the current directory even if it is not on Python's path.
        overrides: Values by key, nested (``training={"epochs": 5}``) or dotted
            (``**{"training.epochs": 5}``). A class is given by its name, as a mapping of ``class_path`` and
            ``init_args``, as the class itself, or as a `functools.partial` with its arguments.

    Raises:
        UserError: If there is no such recipe, or a key or a value is not allowed.
        ValueError: If a value is out of its range.

    >>> recipe = load("glyphs", loss="ProxyAnchorLoss", optim={"lr": 0.01}, **{"loss.alpha": 16})
    >>> recipe.loss.keywords["alpha"], recipe.optim.lr
    (16.0, 0.01)
    """
    where = str(name_or_file)
    given = {key: content_of(override, _hint_of(key), key) for key, override in overrides.items()}
    return ReadRecipe(_build(Recipe, _content(find_recipe(where)), where, given, own_code)).recipe


def to_yaml(recipe: Recipe) -> str:
    """Return the full text of a recipe, including defaults, from which it can be read again.

    Raises:
        UserError: If a part of it cannot be written, such as a function defined inside another one.
        ValueError: If a value is out of its range.

    >>> print(to_yaml(load("glyphs")).partition("  init_args")[0].rstrip())
    data:
      class_path: proxemic.data.Glyphs
    """
    return ReadRecipe(Builder("The recipe").section(content_of(recipe, Recipe), Recipe)).yaml


def _hint_of(key: str) -> Any:
    """Return the hint of a value in a recipe; `Any` inside classes."""
    hint: Any = Recipe
    for name in key.split("."):
        section = section_in(hint)
        hint = field_types(section).get(name, Any) if section else Any
    return hint


def _build(kind: type, content: dict[str, Any], where: str, overrides: Any = (), own_code: bool = False) -> Any:
    given = overrides if isinstance(overrides, Mapping) else read_flags(overrides)
    content = apply_overrides(content, given)
    second = as_yaml(content.get("second_phase")) if isinstance(content, Mapping) else None
    if isinstance(second, Mapping):  # it contains only the changes
        changed = {}
        for key in [key for key in ("loss", "optim") if key in content]:
            change = as_yaml(second.get(key, {}))
            changed[key] = merge(content[key], {"class_path": change} if isinstance(change, str) else change)
        content = content | {"second_phase": {**second, **changed}}
    return Builder(where, given if isinstance(given, Flags) else (), own_code=own_code).section(content, kind)


def read_evaluation(path: Path | None, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Evaluation:
    """Read the part of a recipe for evaluation; without a recipe, for the user's images in ``--data.root``."""
    content: dict[str, Any] = {"data": "proxemic.data.OwnImages"}
    given = overrides if isinstance(overrides, Mapping) else read_flags(overrides)
    if path is not None:
        content = {key: value for key, value in _content(path).items() if key in Evaluation.__dataclass_fields__}
    elif not any(key in ("data", "data.class_path") or key.startswith("data.root") for key in given):
        raise UserError("--data.root is missing: give the folder or table of images to evaluate the model on.")
    return made(_build(Evaluation, content, str(path), given))


def read_evaluation_config(overrides: Sequence[str] | Mapping[str, Any]) -> EvaluationConfig:
    """Read the settings of an evaluation whose images do not come from a recipe's ``data``."""
    content = {"evaluation": asdict(EvaluationConfig())}
    return made(_build(_EvaluationAlone, content, "The evaluation", overrides)).evaluation


@dataclass(frozen=True)
class _EvaluationAlone:
    evaluation: EvaluationConfig


def own_backbone(path: Path) -> type[nn.Module] | None:
    """Find the user's own backbone class by the recipe next to a model; None if the backbone is not the user's.

    ``path`` is the directory of the model, or its ``model.safetensors``.
    """
    recipe = (path if path.is_dir() else path.parent) / "recipe.yaml"
    model = _content(recipe).get("model") if recipe.is_file() else None
    backbone = model.get("backbone") if isinstance(model, Mapping) else None
    if not isinstance(backbone, str) or names_nothing(backbone, str):
        return None
    kind = Builder(str(recipe)).find(backbone, Slot((nn.Module,)), "model.backbone")
    return kind if isinstance(kind, type) else None


def _content(path: Path, extended_by: Sequence[Path] = (), known: dict[Path, Any] | None = None) -> dict[str, Any]:
    """Return the content of a file, merged into the recipes that it extends; later ones override earlier ones.

    ``known`` keeps contents, so that a file that many others extend is read once.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} does not hold a recipe: it must map names such as data, model and loss to values.")
    if "extends" not in content:
        return content
    extends = content.pop("extends")
    names = extends if isinstance(extends, list) else [extends]
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{path}: extends is {shown(extends)}, but must be the name or the path of a recipe, or a list."
        )
    whole: Any = {}
    known, extending = {} if known is None else known, (*extended_by, path.resolve())
    for name in names:
        file = resolve_extended(name, path).resolve()
        if file in extending:
            raise UserError(f"{path} extends {name}, which extends it in turn: let one of them stand alone.")
        if file not in known:
            known[file] = _content(file, extending, known)
        whole = merge(whole, known[file])
    return merge(whole | {"published": None}, content)
