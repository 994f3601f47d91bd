"""A recipe file and the flags that override it, read into a typed `Recipe`."""

import difflib
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import proxemic.data
import proxemic.losses
from proxemic.data import ImageSource
from proxemic.errors import UserError
from proxemic.extras import extra
from proxemic.training.recipe import EvaluationConfig, Recipe

with extra("train"):
    import yaml
    from jsonargparse import ArgumentError, ArgumentParser, Namespace

__all__ = ["Evaluation", "ReadRecipe", "read_evaluation", "read_recipe"]


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
    parser = ArgumentParser(exit_on_error=False, prog="proxemic train")
    parser.add_class_arguments(Recipe)
    # The network takes what the transforms make: one place to say it.
    parser.link_arguments("images.channels", "model.in_channels")
    config = _parse(parser, _content(path), str(path), flags)
    return ReadRecipe(Recipe(**_instantiate(parser, config)), parser.dump(config, skip_unset=False))


def read_evaluation(path: Path | None, flags: Sequence[str] = ()) -> Evaluation:
    """Read the part of a recipe that evaluation needs; without a recipe, the user's own images in ``--data.root``.

    Raises:
        UserError: As `read_recipe`.
        ValueError: If a value is out of its range.
    """
    parser = ArgumentParser(exit_on_error=False, prog="proxemic evaluate")
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


def _content(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not a readable YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no recipe: it must map names such as data, model and loss to values.")
    return content


def _parse(parser: ArgumentParser, content: dict[str, Any], where: str, flags: Sequence[str]) -> Namespace:
    kept = _without_replaced(content, flags)
    try:
        base = parser.parse_object(kept) if kept else None
    except (ArgumentError, TypeError) as error:
        place = f"{where}: " if kept == content else ""
        raise UserError(f"{place}{_explain(str(error), kept, flags)}") from error
    try:
        return parser.parse_args(list(flags), namespace=base)
    except (ArgumentError, TypeError) as error:
        raise UserError(_explain(str(error), base.as_dict() if base else content, flags)) from error


def _instantiate(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    return parser.instantiate(config).as_dict()


def _without_replaced(content: dict[str, Any], flags: Sequence[str]) -> dict[str, Any]:
    """The content less the arguments of classes that a flag replaces: they were chosen for the other class.

    A loss that took over the number of proxies, or the scale, of the loss before would not be the one that was named.
    """
    kept = dict(content)
    for key in _CLASSES.keys() & content.keys():
        given = _given(key, {}, flags)
        now = _given(key, content, ())
        if given and given.rpartition(".")[2] != now.rpartition(".")[2]:
            kept[key] = given
    return kept


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
    if found := re.search(r'Key "([\w.]+)" is required', message):
        return f"the key {found[1]} is missing: every recipe has one."
    if found := re.search(r"Expected a (?:typing\.)?Literal\[(.*?)\]\.? Got value: (.*)", message):
        return f"{key} is {found[2]}, but must be one of {found[1]}."
    if found := re.search(r"Expected a <class '(\w+)'>\. Got value: (.*)", message):
        return f"{key} is {found[2]}, but must be {_KINDS.get(found[1], found[1])}."
    return message.replace(f'Parser key "{key}":', f"{key}:")


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
        room, base = _CLASSES[key]
        names = [each for each in room.__all__ if _is_strict_subclass(getattr(room, each), base)]
    else:
        try:
            names = [each for each in dir(importlib.import_module(place)) if each[0].isupper()]
        except (ImportError, ValueError):
            names = []
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    meant = f" (did you mean {near[0]}?)" if near else ""
    choice = f"choose one of {', '.join(names)}, or" if key in _CLASSES else "give"
    return f"There is no {key} {given}{meant}: {choice} the import path of a class of your own."


def _given(key: str, content: Mapping[str, Any], flags: Sequence[str]) -> str:
    """The class that the user named for ``key``, in a flag or else in the recipe."""
    for flag, following in pairwise([*flags, ""]):
        name, _, value = flag.partition("=")
        if name in (f"--{key}", f"--{key}.class_path"):
            return value or following
    entry: Any = content
    for part in key.split("."):
        entry = entry.get(part, "") if isinstance(entry, Mapping) else ""
    return str(entry.get("class_path", "") if isinstance(entry, Mapping) else entry)


_CLASSES: dict[str, tuple[Any, type]] = {
    "loss": (proxemic.losses, proxemic.losses.ProxyLoss),
    "data": (proxemic.data, ImageSource),
}


def _is_strict_subclass(thing: object, base: type) -> bool:
    return inspect.isclass(thing) and issubclass(thing, base) and thing is not base


def _arguments(path: str) -> list[str]:
    """Names that a recipe may give to a class; what is filled in by the program is left out."""
    module, _, name = path.rpartition(".")
    filled_in = {"num_classes", "embedding_size", "params", "optimizer"}
    return [
        each
        for each in inspect.signature(getattr(importlib.import_module(module), name)).parameters
        if each not in filled_in
    ]


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
