"""A recipe file and the flags that override it, read into a typed `Recipe`."""

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

import proxemic.losses
from proxemic.data import ImageSource
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.recipes import find_recipe, resolve_extended
from proxemic.recipes.checking import Check, names_nothing
from proxemic.recipes.flags import (
    Flags,
    apply_overrides,
    differences,
    merge,
    read_changes,
    read_flags,
    split_overrides,
)
from proxemic.recipes.pairs import make_inside
from proxemic.recipes.parsers import LINKS, parsers_of
from proxemic.recipes.places import Place, arms, elements, field_types, is_section
from proxemic.recipes.writing import as_content, remember
from proxemic.recipes.yaml_files import read_yaml, shown, with_current_names, write_yaml
from proxemic.runs.evaluate import EvaluationConfig
from proxemic.training.phases import SecondPhase
from proxemic.training.recipe import BatchConfig, Recipe

with optional_dependency("train"):
    from jsonargparse import ArgumentError, Namespace

MAX_EXTENDED = 20


@dataclass(frozen=True)
class ReadRecipe:
    """A recipe as its full text, defaults included, and as the objects that ``make`` makes of it."""

    yaml: str
    make: Callable[[], Recipe]

    @functools.cached_property
    def recipe(self) -> Recipe:
        """The recipe, made on first access: `UserError` or `ValueError` if a class refuses its arguments."""
        return self.make()


@dataclass(frozen=True)
class Evaluation:
    """The part of a recipe that evaluation needs; of ``batches``, the number of processes that load images."""

    data: ImageSource
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)


def read_recipe(path: Path, overrides: Sequence[str] | Mapping[str, Any] = (), *, own_code: bool = False) -> ReadRecipe:
    """Read and check a recipe; nothing that it names is made before ``recipe`` of the result is accessed.

    Args:
        path: YAML file.
        overrides: Flags, as ``--optim.lr 0.01`` or ``--optim.lr=0.01``, or a mapping of dotted keys to values;
            ``init_args`` is left out of keys.
        own_code: Classes may be imported from the current directory, as for a training.

    Raises:
        UserError: If the file or an override has an unknown key (the nearest is suggested), a value of the wrong type,
            or a class that does not exist or cannot be used for its key.
        ValueError: If a value is out of its range.
    """
    return _read(_content(path), str(path), overrides, own_code)


def load(name_or_file: str | Path, /, *, own_code: bool = False, **overrides: Any) -> Recipe:
    """Load a recipe of the package by its name, or any from a YAML file.

    Args:
        name_or_file: A name that `list_recipes` gives, or a path.
        own_code: Modules may be imported from the current directory, also those that are not on Python's path.
        overrides: Values by their keys, nested (``training={"epochs": 5}``) or dotted
            (``**{"training.epochs": 5}``). A class is given by its name, as a mapping of ``class_path`` and
            ``init_args``, as the class itself, or as a `functools.partial` with its arguments.

    Raises:
        UserError: If there is no such recipe, or a key or a value is not allowed.
        ValueError: If a value is out of its range.

    >>> recipe = load("glyphs", loss="ProxyAnchorLoss", optim={"lr": 0.01}, **{"loss.alpha": 16})
    >>> recipe.loss.keywords["alpha"], recipe.optim.lr
    (16.0, 0.01)
    """
    content = {key: as_content(value, _type_at(key), key) for key, value in overrides.items()}
    return _read(_content(find_recipe(str(name_or_file))), str(name_or_file), content, own_code).recipe


def to_yaml(recipe: Recipe) -> str:
    """The full text of a recipe, defaults included, from which it can be read again.

    Raises:
        UserError: If a part of it cannot be written, such as a function that is defined inside another one.
        ValueError: If a value is out of its range.

    >>> print(to_yaml(load("glyphs")).partition("  init_args")[0].rstrip())
    data:
      class_path: proxemic.data.Glyphs
    """
    content = as_content(recipe, Recipe)
    for target in LINKS.values():
        section, _, name = target.partition(".")
        del content[section][name]
    second = content.pop("second_phase")
    config = _parse(Recipe, content, "The recipe")
    if second is None:
        return _spell_out(config)
    changed = _parse(Recipe, content | {key: second[key] for key in ("loss", "optim")}, "The recipe")
    return _spell_out(config, (second["epochs"], changed))


def _type_at(key: str) -> Any:
    """The declared type of a recipe's value; `Any` inside classes."""
    annotation: Any = Recipe
    for name in key.split("."):
        sections = [arm for arm in arms(annotation) if is_section(arm)]
        annotation = field_types(sections[0]).get(name, Any) if sections else Any
    return annotation


def _read(
    content: dict[str, Any], where: str, overrides: Sequence[str] | Mapping[str, Any], own_code: bool
) -> ReadRecipe:
    given = _overrides(overrides)
    first, later = split_overrides(given)
    kind = Flags if isinstance(given, Flags) else dict
    changes = read_changes(content.pop("second_phase", None), later)
    config, second = _parse(Recipe, content, where, kind(first), own_code), None
    if changes is not None:
        epochs, changed, rest = changes
        try:
            second = epochs, _parse(Recipe, merge(_full(config), changed), where, kind(rest), own_code)
        except UserError as error:
            raise UserError(f"second_phase: {str(error).replace('--', '--second_phase.')}") from error
    return ReadRecipe(_spell_out(config, second), lambda: _make(config, second))


def _make(config: Namespace, second: tuple[int, Namespace] | None) -> Recipe:
    # What is made here, such as the pair loss in a PairwiseLoss, may have parameters that are drawn at random.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        values = _instantiate(Recipe, make_inside(config))
        if second is None:
            return Recipe(**values)
        epochs, changed = second
        new = _instantiate(Recipe, make_inside(changed))
        return Recipe(**values, second_phase=SecondPhase(epochs, new["loss"], new["optim"]))


def _spell_out(config: Namespace, second: tuple[int, Namespace] | None = None) -> str:
    """The full text of a recipe; `ValueError` if a value is out of its range."""
    full, epochs = _full(config), None if second is None else {"epochs": second[0]}
    for each in (config, *(second or ())[1:]):
        _check_ranges(Recipe, each.as_dict() | {"second_phase": epochs})
    if second is None or epochs is None:
        return write_yaml(full | {"second_phase": None})
    # Only what differs: a value that a flag later gives to both phases must reach both.
    changed = _full(second[1])
    changes = {key: differences(full[key], changed[key]) for key in ("loss", "optim")}
    return write_yaml(full | {"second_phase": epochs | {key: value for key, value in changes.items() if value}})


def _full(config: Namespace) -> dict[str, Any]:
    return parsers_of(Recipe).dump(config)


def read_evaluation(
    path: Path | None, overrides: Sequence[str] | Mapping[str, Any] = (), *, own_code: bool = False
) -> Evaluation:
    """Read the part of a recipe that evaluation needs; without a recipe, for the user's images in ``--data.root``."""
    content: dict[str, Any] = {"data": "proxemic.data.OwnImages"}
    given = _overrides(overrides)
    if path is not None:
        content = {key: value for key, value in _content(path).items() if key in Evaluation.__dataclass_fields__}
    elif not any(key in ("data", "data.class_path") or key.startswith("data.root") for key in given):
        raise UserError("--data.root is missing: give the folder or table of images to evaluate the model on.")
    return Evaluation(**_instantiate(Evaluation, _parse(Evaluation, content, str(path), given, own_code)))


def read_evaluation_config(overrides: Sequence[str] | Mapping[str, Any]) -> EvaluationConfig:
    """The settings of an evaluation without a recipe, whose images are not given by ``data``."""
    content = {"evaluation": asdict(EvaluationConfig())}
    config = _parse(_EvaluationAlone, content, "The evaluation", _overrides(overrides))
    return _instantiate(_EvaluationAlone, config)["evaluation"]


@dataclass(frozen=True)
class _EvaluationAlone:
    evaluation: EvaluationConfig


def own_backbone(path: Path) -> type[nn.Module] | None:
    """The class of the user's own that the recipe beside a model names as its backbone; None if it names none.

    ``path`` is the directory of the model, or its ``model.safetensors``.
    """
    recipe = (path if path.is_dir() else path.parent) / "recipe.yaml"
    model = _content(recipe).get("model") if recipe.is_file() else None
    backbone = model.get("backbone") if isinstance(model, Mapping) else None
    if not isinstance(backbone, str) or names_nothing(backbone, str):
        return None
    kind = Check(str(recipe), ()).find(backbone, Place((nn.Module,)), "model.backbone")
    return kind if isinstance(kind, type) else None


def _content(path: Path, by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The content of a file, merged into that of the recipe that it extends."""
    content = with_current_names(read_yaml(path))
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no recipe: it must map names such as data, model and loss to values.")
    extended = content.pop("extends", None)
    if extended is None:
        return content
    if not isinstance(extended, str):
        raise UserError(f"{path}: extends is {shown(extended)}, but must be the name or the path of a recipe.")
    base = resolve_extended(extended, path)
    if base in (*by, path):
        raise UserError(f"{path} extends {extended}, which extends it in turn: let one of them stand alone.")
    if len(by) == MAX_EXTENDED:
        raise UserError(f"{path} extends {extended}, after {MAX_EXTENDED} others: let a recipe extend fewer.")
    return merge(_content(base, (*by, path)) | {"published": None}, content)


def _overrides(given: Sequence[str] | Mapping[str, Any]) -> Mapping[str, Any]:
    return given if isinstance(given, Mapping) else read_flags(given)


def _parse(
    made: type, content: dict[str, Any], where: str, overrides: Mapping[str, Any] | None = None, own_code: bool = False
) -> Namespace:
    content = _with_full_name(apply_overrides(content, overrides or {}))
    flags = overrides if isinstance(overrides, Flags) else ()
    check = Check(where, flags, LINKS.values(), own_code=own_code)
    check.section(content, made)
    check.types()
    try:
        # The parser changes what it is given, down to the elements of lists.
        return parsers_of(made).parse(copy.deepcopy(content))
    except (ArgumentError, TypeError) as error:
        raise UserError(f"{where}: {' '.join(str(error).split())[:300]}") from error


def _with_full_name(content: dict[str, Any]) -> dict[str, Any]:
    """Replace the name of a loss of this package by its import path, as other packages have losses of that name."""
    loss = content.get("loss")
    name = loss.get("class_path") if isinstance(loss, Mapping) else loss
    if not isinstance(name, str) or name not in proxemic.losses.__all__:
        return content
    full = f"proxemic.losses.{name}"
    return content | {"loss": {**loss, "class_path": full} if isinstance(loss, Mapping) else full}


def _instantiate(kind: type, config: Namespace) -> dict[str, Any]:
    refused: list[UserError | ValueError] = []

    def make(class_type: type[Any], *given: Any, **arguments: Any) -> Any:
        arguments = {name: _as_partial(each) for name, each in arguments.items()}
        try:
            made = class_type(*given, **arguments)
        except ImportError as error:
            message = " ".join(str(error).split()).rstrip(".")
            refused.append(UserError(f"{class_type.__name__} cannot be made: {message}."))
            raise
        except ValueError as error:
            refused.append(error)
            raise
        remember(made, arguments)
        return made

    try:
        values = parsers_of(kind).instantiate(config, make)
    except ValueError as error:
        # For a class in a list, the parser's own message lists all that it tried besides.
        raise refused[0] if refused else error  # noqa: B904
    return {name: _as_partial(each) for name, each in values.items()}


def _as_partial(value: Any) -> Any:
    """Turn the parser's partial of a function that makes an object into a partial of the object's class."""
    made = value.args[-1] if isinstance(value, functools.partial) and value.args else None
    return functools.partial(made, **value.keywords) if isinstance(made, type) else value


def _check_ranges(made: type, values: Mapping[str, Any]) -> Any:
    """Raise `ValueError` if a number of a recipe is out of its range, without making any of its classes."""
    checked = object.__new__(made)
    for name, value in values.items():
        object.__setattr__(checked, name, _check_value(field_types(made)[name], value))
    checked.__post_init__()
    return checked


def _check_value(annotation: Any, value: Any) -> Any:
    if isinstance(value, list):
        return [_check_value(elements(annotation), each) for each in value]
    (section, *_) = [arm for arm in arms(annotation) if is_section(arm)] or [None]
    return _check_ranges(section, value) if section and value is not None else value
