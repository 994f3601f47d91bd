"""A recipe file and the flags that override it, read into a typed `Recipe`."""

import copy
import difflib
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

import proxemic.data
import proxemic.losses
from proxemic.data import Batches, ImageSource
from proxemic.errors import UserError
from proxemic.extras import extra
from proxemic.losses import PairwiseLoss, ProxyLoss
from proxemic.recipes import resolve_extended
from proxemic.recipes.filling import FILLED_IN, make, parameters
from proxemic.recipes.pairs import PLACES, make_inside
from proxemic.recipes.second_phase import differences, merge, part_flags, read_changes
from proxemic.training.phases import SecondPhase
from proxemic.training.recipe import EvaluationConfig, Recipe

with extra("train"):
    import yaml
    from jsonargparse import ArgumentError, ArgumentParser, Namespace

__all__ = ["Evaluation", "ReadRecipe", "own_backbone", "read_evaluation", "read_evaluation_config", "read_recipe"]


@dataclass(frozen=True)
class ReadRecipe:
    """A recipe and its full text, defaults included."""

    recipe: Recipe
    yaml: str


@dataclass(frozen=True)
class Evaluation:
    """What to judge and how.

    Args:
        data: Where images come from.
        evaluation: How embeddings are judged.
    """

    data: ImageSource
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)


def read_recipe(path: Path, flags: Sequence[str] = ()) -> ReadRecipe:
    """Read a recipe.

    Args:
        path: YAML file.
        flags: Overrides, as ``--optim.lr 0.01`` or ``--optim.lr=0.01``; ``init_args`` is left out of names.

    Raises:
        UserError: If the file or a flag has an unknown key (the nearest is suggested), a value of the wrong type, or a
            class that does not exist.
        ValueError: If a value is out of its range.
    """
    parser = _recipe_parser()
    content, (own, later) = _content(path), part_flags(flags)
    second = read_changes(content.pop("second_phase", None), later)
    config = _parse(parser, content, str(path), own)
    full = _spelt_out(parser, config)
    # What is made here, such as the pair loss in a PairwiseLoss, may have parameters that are drawn at random.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        values = _instantiate(parser, make_inside(config))
        if second is None:
            return ReadRecipe(Recipe(**values), yaml.safe_dump(full | {"second_phase": None}, sort_keys=False))
        epochs, changes, rest = second
        try:
            changed = _parse(parser, merge(full, changes), str(path), rest)
        except UserError as error:
            raise UserError(f"second_phase: {error}") from error
        new = _instantiate(parser, make_inside(changed))
        phase = SecondPhase(epochs, new["loss"], new["optim"])
        # What differs and no more: a value that a flag gives to both phases later shall reach both.
        new_full = _spelt_out(parser, changed)
        kept = {key: differences(full[key], new_full[key]) for key in ("loss", "optim")}
        full["second_phase"] = {"epochs": epochs} | {key: value for key, value in kept.items() if value}
        return ReadRecipe(Recipe(**values, second_phase=phase), yaml.safe_dump(full, sort_keys=False))


@functools.cache
def _recipe_parser() -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False, prog="proxemic train")
    parser.add_class_arguments(Recipe, skip={"second_phase"})  # its keys are those of the recipe itself
    # The network takes what the transforms make: one place to say it.
    parser.link_arguments("images.channels", "model.in_channels")
    parser.link_arguments("images.size", "model.image_size")
    return parser


def _spelt_out(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    return yaml.safe_load(parser.dump(config, skip_unset=False, skip_validation=True))


def read_evaluation(path: Path | None, flags: Sequence[str] = ()) -> Evaluation:
    """Read the part of a recipe that evaluation needs; without a recipe, the user's own images in ``--data.root``.

    Raises:
        UserError: As `read_recipe`.
        ValueError: If a value is out of its range.
    """
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False, prog="proxemic evaluate")
    parser.add_class_arguments(Evaluation)
    content: dict[str, Any] = {}
    if path is not None:
        content = {key: value for key, value in _content(path).items() if key in Evaluation.__dataclass_fields__}
    elif not any(
        flag.startswith(("--data.root", "--data.class_path", "--data=")) or flag == "--data" for flag in flags
    ):
        raise UserError("--data.root is missing: give the folder or table of images to judge the model on.")
    else:
        flags = ["--data", "proxemic.data.OwnImages", *flags]
    config = _parse(parser, content, str(path), flags)
    return Evaluation(**_instantiate(parser, config))


def read_evaluation_config(path: Path | None, flags: Sequence[str] = ()) -> EvaluationConfig:
    """Read how to judge, of a recipe or without one, where the images are given otherwise.

    Raises:
        UserError: As `read_recipe`.
        ValueError: If a value is out of its range.
    """
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False, prog="proxemic evaluate")
    parser.add_class_arguments(EvaluationConfig, "evaluation")
    given = {} if path is None else _content(path).get("evaluation", {})
    # With the defaults, a message can name what there is.
    content = {"evaluation": asdict(EvaluationConfig()) | given}
    return _instantiate(parser, _parse(parser, content, str(path), flags))["evaluation"]


def own_backbone(path: Path) -> type[nn.Module] | None:
    """The class of a run's own backbone, which its recipe names; None where it names none, or there is no recipe.

    Args:
        path: The directory of a run or another model, or its `model.safetensors`.

    Raises:
        UserError: If the class is not there.
    """
    recipe = (path if path.is_dir() else path.parent) / "recipe.yaml"
    model = _content(recipe).get("model") if recipe.is_file() else None
    backbone = model.get("backbone") if isinstance(model, Mapping) else None
    if "." not in str(backbone):
        return None
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(_ModelAlone)
    found = _instantiate(parser, _parse(parser, {"model": {"backbone": backbone}}, str(recipe), ()))["model"].backbone
    return found if isinstance(found, type) else None


@dataclass(frozen=True)
class _Backbone:
    backbone: type[nn.Module] | str


@dataclass(frozen=True)
class _ModelAlone:
    model: _Backbone


def _content(path: Path, by: tuple[Path, ...] = ()) -> dict[str, Any]:
    """What a file holds, laid over the recipe that it extends."""
    content = _read(path)
    extended = content.pop("extends", None)
    if extended is None:
        return content
    if not isinstance(extended, str):
        raise UserError(f"{path}: extends is {extended!r}, but must be the name or the path of a recipe.")
    base = resolve_extended(extended, path)
    if base in (*by, path):
        raise UserError(f"{path} extends {extended}, which extends it in turn: let one of them stand alone.")
    return merge(_content(base, (*by, path)), content)


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        UserError: If it cannot be read.
    """
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not a readable YAML file: {' '.join(str(error).split())}") from error


def _read(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no recipe: it must map names such as data, model and loss to values.")
    return content


def _parse(parser: ArgumentParser, content: dict[str, Any], where: str, flags: Sequence[str]) -> Namespace:
    kept = _without_replaced(content, flags)
    place = f"{where}: " if kept == content else ""
    kept, flags = _with_paths(kept, flags)
    try:
        base = parser.parse_object(kept) if kept else None
    except (ArgumentError, TypeError) as error:
        raise UserError(f"{place}{_explain(str(error), kept, flags)}") from error
    if base is not None and not flags:
        return base
    try:
        return parser.parse_args(list(flags), namespace=base)
    except (ArgumentError, TypeError) as error:
        raise UserError(_explain(str(error), base.as_dict() if base else content, flags)) from error


def _instantiate(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    return parser.instantiate(config, instantiators=[(make, nn.Module, True), (make, Batches, True)]).as_dict()


def _with_paths(content: dict[str, Any], flags: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """With the import path of a loss of this package that is given by its name: PML has some of the same names."""

    def path(name: Any) -> Any:
        return f"proxemic.losses.{name}" if name in proxemic.losses.__all__ else name

    loss = content.get("loss")
    if isinstance(loss, str):
        content = content | {"loss": path(loss)}
    elif isinstance(loss, Mapping) and "class_path" in loss:
        content = content | {"loss": {**loss, "class_path": path(loss["class_path"])}}
    found: list[str] = []
    for before, flag in pairwise(["", *flags]):
        name, given, value = flag.partition("=")
        if given and name in ("--loss", "--loss.class_path"):
            flag = f"{name}={path(value)}"
        found.append(path(flag) if before in ("--loss", "--loss.class_path") else flag)
    return content, found


def _without_replaced(content: dict[str, Any], flags: Sequence[str]) -> dict[str, Any]:
    """The content less the arguments of classes that a flag replaces: they were chosen for the other class.

    A loss that took over the number of proxies, or the scale, of the loss before would not be the one that was named.
    """
    kept = copy.deepcopy(content)
    for key in (*_CLASSES, *PLACES, "optim.optimizer", "optim.schedule"):
        *outer, name = key.split(".")
        holder = _entry(outer, kept)
        given, now = _given(key, {}, flags), _given(key, kept, ())
        if given and name in holder and given.rpartition(".")[2] != now.rpartition(".")[2]:
            # A schedule may need arguments that are in other flags: there the parser finds class and arguments alike.
            holder[name] = None if key == "optim.schedule" else _named(key, flags)
    return kept


def _named(key: str, flags: Sequence[str]) -> Any:
    """What the flags name for ``key``, with the classes that they name inside it, without which it may not be whole."""
    inside = {
        inner.removeprefix(f"{key}."): _named(inner, flags)
        for inner in PLACES
        if inner.startswith(f"{key}.") and _given(inner, {}, flags)
    }
    given = _given(key, {}, flags)
    return {"class_path": given, "init_args": inside} if inside else given


def _explain(message: str, content: Mapping[str, Any], flags: Sequence[str]) -> str:
    """One sentence from the parser's message: what came, what is allowed."""
    message = " ".join(message.split())
    key = ".".join(re.findall(r'Parser key "([\w.]+)"', message))
    if found := re.search(r"unrecognized arguments: (--[\w.-]+)", message):
        return _unknown(found[1].removeprefix("--"), _keys(content), "flag", "--")
    if found := re.search(r"Group '([\w.]+)' does not accept option '(\w+)'", message):
        return _unknown(f"{found[1]}.{found[2]}", _keys(content), "key")
    if found := re.search(r"Option '([\w.]+)' is not accepted", message):
        made = re.search(r"class_path[= ]'([\w.]+)'", message)
        names = [f"{key}.{name}" for name in _arguments(made[1])] if made else [*Recipe.__dataclass_fields__]
        return _unknown(f"{key}.{found[1]}" if made else found[1], names, "key")
    if any(words in message for words in ("has no attribute", "dot import path", "No module named", "not a subclass")):
        return _unknown_class(key, content, flags)
    if found := re.search(r"the following arguments are required: (\w+)", message):
        return f"the key {key}.{found[1]} is missing: {_given(key, content, flags).rpartition('.')[2]} needs it."
    if found := re.search(r"Parameter '(\w+)' from '([\w.]+)\.__init__' does not specify a type", message):
        name = found[2].rpartition(".")[2]
        if name in proxemic.losses.__all__:
            return f"{key} is {name}, which has proxies of its own: make it the loss itself, not inside PairwiseLoss."
        return (
            f"{key} is {name}, which needs {found[1]} but does not say of what type, so that no recipe can give it: "
            "derive a class of your own that does, and give its import path."
        )
    if found := re.search(r"Multiple subclasses with name (\w+)\. .*?: (.*?)\.\. Got value", message):
        return f"There is more than one {found[1]} for {key}: choose by the import path, of {found[2]}."
    if found := re.search(r'Key "([\w.]+)" is required', message):
        return f"the key {found[1]} is missing: every recipe has one."
    if found := re.search(rf"Expected a (?:typing\.)?Literal\[(.*?)\]\.? {_GOT}", message):
        return f"{key} is {found[2]}, but must be one of {found[1]}."
    if found := re.search(rf"Expected a <class '(\w+)'>\. {_GOT}", message):
        return f"{key} is {found[2]}, but must be {_KINDS.get(found[1], found[1])}."
    return message.replace(f'Parser key "{key}":', f"{key}:")


_GOT = r"Got value: (.*?)(?:\. Got value: .*)?$"
"""The value itself; what it is a part of may follow."""

_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text"}


def _unknown(name: str, allowed: Sequence[str], kind: str, dashes: str = "") -> str:
    parent, _, leaf = name.rpartition(".")
    siblings = sorted(key for key in allowed if key.rpartition(".")[0] == parent)
    # Names beside it are compared by themselves: the part that they all share says nothing.
    beside = difflib.get_close_matches(leaf, [key.rpartition(".")[2] for key in siblings], n=1)
    near = [f"{parent}.{beside[0]}".lstrip(".")] if beside else []
    if not siblings:
        near = difflib.get_close_matches(name, allowed, n=1)
        siblings = sorted(key for key in allowed if "." not in key)
    if near:
        return f"There is no {kind} {dashes}{name}: did you mean {dashes}{near[0]}?"
    return f"There is no {kind} {dashes}{name}: allowed are {', '.join(dashes + key for key in siblings)}."


def _unknown_class(key: str, content: Mapping[str, Any], flags: Sequence[str]) -> str:
    given = _given(key, content, flags)
    place, _, name = given.rpartition(".")
    if key in _CLASSES:
        room, bases = _CLASSES[key]
        names = [each for each in room.__all__ if _is_choice(getattr(room, each), bases)]
        shown = ""
    else:
        shown = "" if place else f"{PLACES[key]}." if key in PLACES else ""
        names = _class_names(place or PLACES.get(key, ""))
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    meant = f" (did you mean {shown}{near[0]}?)" if near else ""
    choice = f"choose one of {', '.join(names)}, or" if key in _CLASSES else "give"
    return f"There is no {key} {given}{meant}: {choice} the import path of a class of your own."


def _class_names(module: str) -> list[str]:
    if module.startswith("pytorch_metric_learning"):
        with extra("pairs"):
            import pytorch_metric_learning  # noqa: F401
    try:
        return [each for each in dir(importlib.import_module(module)) if each[0].isupper()]
    except (ImportError, ValueError):
        return []


def _given(key: str, content: Mapping[str, Any], flags: Sequence[str]) -> str:
    """The class that the user named for ``key``, in a flag or else in the recipe."""
    for flag, following in pairwise([*flags, ""]):
        name, _, value = flag.partition("=")
        if name in (f"--{key}", f"--{key}.class_path"):
            return value or following
    *outer, name = key.split(".")
    entry = _entry(outer, content).get(name) or ""
    return str(entry.get("class_path", "") if isinstance(entry, Mapping) else entry)


def _entry(keys: Sequence[str], content: Mapping[str, Any]) -> Any:
    """What a nested mapping holds under the keys, without the ``init_args`` on the way; {} if that is no mapping."""
    entry: Any = content
    for key in keys:
        entry = entry.get(key)
        entry = entry.get("init_args", entry) if isinstance(entry, Mapping) else {}
        entry = entry if isinstance(entry, Mapping) else {}
    return entry


_CLASSES: dict[str, tuple[Any, tuple[type, ...]]] = {
    "loss": (proxemic.losses, (ProxyLoss, PairwiseLoss)),
    "data": (proxemic.data, (ImageSource,)),
}


def _is_choice(thing: object, bases: tuple[type, ...]) -> bool:
    return inspect.isclass(thing) and issubclass(thing, bases) and not inspect.isabstract(thing)


def _arguments(path: str) -> list[str]:
    """Names that a recipe may give to a class; what is filled in by the program is left out."""
    module, _, name = path.rpartition(".")
    left_out = {"self", "args", "kwargs", "params", "optimizer", *FILLED_IN}
    return [each for each in parameters(getattr(importlib.import_module(module), name)) if each not in left_out]


def _keys(content: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Every dotted name in a nested mapping, as flags write it: without ``init_args`` and ``class_path``."""
    return list(_walk(content, prefix))


def _walk(content: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in content.items():
        name = prefix if key in ("init_args", "class_path") else f"{prefix}.{key}".lstrip(".")
        if key != "class_path":
            yield name
        if isinstance(value, Mapping):
            yield from _walk(value, name)
