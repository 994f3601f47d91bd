"""A recipe file and the flags that override it, read into a typed `Recipe`."""

import difflib
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

import proxemic.data
import proxemic.losses
from proxemic.data import ImageSource
from proxemic.errors import UserError
from proxemic.training.recipe import EvaluationConfig, Recipe

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
    elif not any(flag.startswith(("--data.root", "--data.class_path", "--data=")) or flag == "--data" for flag in flags):
        raise UserError("--data.root is missing: give the folder or table of images to judge the model on.")
    else:
        flags = ["--data", "proxemic.data.OwnImages", *flags]
    config = _parse(parser, content, str(path), flags)
    return Evaluation(**_instantiate(parser, config))


def _content(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path} is not a readable YAML file: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no recipe: it must map names such as data, model and loss to values.")
    return content


def _parse(parser: ArgumentParser, content: dict[str, Any], where: str, flags: Sequence[str]) -> Namespace:
    base = None
    if content:
        try:
            base = parser.parse_object(content, defaults=True)
        except (ArgumentError, TypeError) as error:
            if "is required" not in str(error) or not flags:
                raise UserError(f"{where}: {_explain(str(error), content, ())}") from error
            # What is missing may be among the flags: a recipe for own images does not say where they are.
            base = parser.parse_object(content, with_meta=False)
    try:
        return parser.parse_args(list(flags), namespace=base)
    except (ArgumentError, TypeError) as error:
        raise UserError(_explain(str(error), base.as_dict() if base else content, flags)) from error


def _instantiate(parser: ArgumentParser, config: Namespace) -> dict[str, Any]:
    return parser.instantiate(config).as_dict()


def _explain(message: str, content: Mapping[str, Any], flags: Sequence[str]) -> str:
    """One sentence from the parser's message: what came, what is allowed."""
    message = " ".join(message.split())
    key = found[1] if (found := re.search(r'Parser key "([\w.]+)"', message)) else ""
    if found := re.search(r"unrecognized arguments: (--[\w.-]+)", message):
        return _unknown(found[1].removeprefix("--"), _keys(content), "flag")
    if found := re.search(r"Group '([\w.]+)' does not accept option '(\w+)'", message):
        return _unknown(f"{found[1]}.{found[2]}", _keys(content), "key")
    if found := re.search(r"Option '([\w.]+)' is not accepted(.*class_path='([\w.]+)')?", message):
        if found[3] is None:
            return _unknown(found[1], [*Recipe.__dataclass_fields__, *_keys(content)], "key")
        allowed = [name for name in inspect.signature(_import(found[3])).parameters]
        return _unknown(f"{key}.{found[1]}", [f"{key}.{name}" for name in allowed], "key")
    if any(words in message for words in ("has no attribute", "dot import path", "No module named", "not a subclass")):
        return _unknown_class(key, message, content, flags)
    if found := re.search(r'Key "([\w.]+)" is required', message):
        return f"the key {found[1]} is missing: every recipe has one."
    return message.replace(f'Parser key "{key}":', f"{key}:").replace("<class '", "").replace("'>", "")


def _unknown(name: str, allowed: Sequence[str], kind: str) -> str:
    shown = f"--{name}" if kind == "flag" else name
    near = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    if near:
        return f"There is no {kind} {shown}: did you mean {'--' if kind == 'flag' else ''}{near[0]}?"
    parents = {key for key in allowed if "." not in key.removeprefix(name.rpartition(".")[0] + ".")}
    return f"There is no {kind} {shown}: allowed are {', '.join(sorted(parents or set(allowed)))}."


def _unknown_class(key: str, message: str, content: Mapping[str, Any], flags: Sequence[str]) -> str:
    for index, flag in enumerate(flags):
        if flag.split("=")[0] == f"--{key}":
            given = flag.partition("=")[2] or (flags[index + 1] if index + 1 < len(flags) else "")
            break
    else:
        entry = content.get(key)
        given = str(entry.get("class_path", entry) if isinstance(entry, Mapping) else entry)
    room = {"loss": proxemic.losses, "data": proxemic.data}.get(key.split(".")[0])
    if room is None:
        return f"{key}: {given} is no class that can be used here ({message})."
    base = proxemic.losses.ProxyLoss if room is proxemic.losses else proxemic.data.ImageSource
    names = [
        name
        for name in room.__all__
        if inspect.isclass(thing := getattr(room, name)) and issubclass(thing, base) and thing is not base
    ]
    near = difflib.get_close_matches(given.rpartition(".")[2], names, n=1, cutoff=0.4)
    meant = f" (did you mean {near[0]}?)" if near else ""
    return f"There is no {key} {given}{meant}: choose one of {', '.join(names)}, or the import path of your own."


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


def _import(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)
