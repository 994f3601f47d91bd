"""Checks the keys, classes and arguments of a recipe before anything of it is made.

The parser makes any class, and calls any function, that it is given the name of. So it is only given names below keys
that take classes or functions, and only of those that the key takes.
"""

import difflib
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_origin

import proxemic.losses
from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.described import keyword_here
from proxemic.recipes.importing import find_object, may_name
from proxemic.recipes.places import (
    PACKAGE,
    Inside,
    Place,
    arms,
    elements,
    field_types,
    is_container,
    is_plain,
    is_section,
    is_text,
    join_key,
    parameters,
    place_of,
)
from proxemic.recipes.values import fits, said
from proxemic.recipes.yaml_files import as_yaml, shown

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_MOST_NAMES = 10  # in a sentence that lists what is allowed
_BESIDE = {
    "data": "proxemic.data",
    "loss": "proxemic.losses",
    "loss.init": "proxemic.losses.initialization",
    "loss.loss": f"{PACKAGE}losses",
    "loss.margin": "proxemic.losses",
    "loss.miner": f"{PACKAGE}miners",
    "loss.pooling": "proxemic.losses",
    "loss.regularizers": "proxemic.losses",
    "optim.optimizer": "torch.optim",
    "optim.schedule": "torch.optim.lr_scheduler",
    "training.callbacks": "lightning.pytorch.callbacks",
    "training.loggers": "lightning.pytorch.loggers",
}
"""By key, the module whose names are suggested for a misspelt one."""


class Check:
    """A check of one recipe: messages are about the file ``where``, or about the keys that ``flags`` gave.

    The values of the keys ``linked`` follow from those of others, so that the recipe must not give them.
    """

    def __init__(
        self, where: str, flags: Collection[str], linked: Collection[str] = (), *, own_code: bool = False
    ) -> None:
        self.where, self.flags, self.linked, self.own_code = where, flags, linked, own_code
        self._values: list[tuple[str, Any, Any]] = []

    def section(self, content: Any, made: type, key: str = "") -> None:
        """Check what a recipe gives for the fields of a dataclass: unknown and missing keys, and what values name."""
        types = field_types(made)
        allowed = [name for name in types if join_key(key, name) not in self.linked]
        if content is None:
            raise self._error(key, f"{key} is empty: give {', '.join(allowed[:3])} or others below it, or leave it out")
        content = as_yaml(content) if isinstance(content, str) else content
        if not isinstance(content, Mapping):
            raise self._error(key, f"{key} is {shown(content)}, but must map names such as {allowed[0]} to values")
        self._check_names(key, content, allowed)
        for each in fields(made):
            name = join_key(key, each.name)
            if each.name in content:
                self.value(content[each.name], types[each.name], name)
            elif each.default is MISSING and each.default_factory is MISSING:
                raise self._error("", f"The key {name} is missing, which every recipe has")

    def value(self, value: Any, annotation: Any, key: str) -> None:
        """Check a value, and all that is in it, by its type."""
        if sections := [arm for arm in arms(annotation) if is_section(arm)]:
            if value is not None or type(None) not in arms(annotation):
                self.section(value, sections[0], key)
            return
        if value == "" and Path in arms(annotation):  # a shell variable that is not set: not the current folder
            raise self._error(key, f"{key} is empty: give a path, or . for the current folder")
        place = place_of(key, annotation)
        # As the parser does, unless nothing but a text is allowed.
        inside = as_yaml(value) if isinstance(value, str) and not is_text(annotation) else value
        if isinstance(inside, Mapping):
            self._check_mapping(inside, annotation, place, key)
        elif isinstance(inside, list | tuple):
            if place and elements(annotation) is Any:
                raise self._error(key, f"{key} is {shown(value)}, but is a single one: give {place}")
            for each in inside:
                self.value(each, elements(annotation), key)
        elif isinstance(inside, str) and place and not names_nothing(inside, annotation):
            self._check_made(inside, {}, {}, place, key)
        elif isinstance(inside, str) and not place and not is_plain(annotation) and _PATH.fullmatch(inside):
            wanted = f"must be {said(annotation)}" if not fits(inside, annotation) else "nothing can be imported there"
            raise self._error(key, f"{key} is {shown(inside)}, but {wanted}")
        elif inside is None and place and not {type(None), Inside} & {*arms(annotation)}:
            raise self._error(key, f"{key} is empty: give {place}")
        self._values.append((key, value, annotation))

    def types(self) -> None:
        """Check whether the values that were seen fit their types, which unknown keys explain better."""
        for key, value, annotation in self._values:
            if not fits(value, annotation):
                raise self._error(key, f"{key} is {shown(value)}, but must be {said(annotation)}")

    def _check_mapping(self, content: Mapping[str, Any], annotation: Any, place: Place | None, key: str) -> None:
        if "class_path" in content:
            unknown = set(content) - {"class_path", "init_args", "dict_kwargs"}
            if place is None or not isinstance(content["class_path"], str):
                raise self._error(key, f"{key} is {shown(dict(content))}, but no class can stand there")
            if unknown:
                raise self._error(key, f"{key}.{min(unknown)} is beside class_path: put it into init_args")
            arguments, others = (content.get(each) or {} for each in ("init_args", "dict_kwargs"))
            self._check_made(content["class_path"], arguments, others, place, key)
        elif place and not place.package:
            raise self._error(
                key, f"{key} has no class_path, which says of which class {', '.join(map(str, content))} is"
            )
        elif is_section(elements(annotation)):
            raise self._error(
                key, f"{key} is {shown(dict(content))}, but must be a list of such mappings: put it in []"
            )
        elif not fits(content, annotation):
            raise self._unknown(f"{key}.{next(iter(content), '')}", [])
        else:
            for name, each in content.items():
                self.value(each, elements(annotation), join_key(key, name))

    def _check_made(self, path: str, arguments: Any, others: Any, place: Place, key: str) -> None:
        thing = self.find(path, place, key)
        for each in (arguments, others):
            if not isinstance(each, Mapping):
                raise self._error(key, f"{key} is {path} with {shown(each)}, but must map its arguments to values")
        if not inspect.isclass(thing) or not place.made:
            if arguments or others:
                raise self._error(key, f"{key} is {path}, which takes no arguments here: give its import path alone")
            return
        if issubclass(thing, ProxyLoss) and thing.step_objective is ProxyLoss.step_objective:
            try:
                inspect.signature(thing.objective).bind("self", "positive", "negative", "labels", "embeddings")
            except TypeError as error:
                message = f"{key} is {path}, but its objective must take (self, positive, negative, labels, embeddings)"
                raise self._error(key, f"{message}: {error}") from error
        every = parameters(thing)
        known = {name: each for name, each in [*every.items()][place.filled :] if name not in place.filled_names}
        self._check_names(key, arguments, known)
        for name, each in known.items():
            if name in arguments:
                if arguments[name] is None and any(is_container(get_origin(arm)) for arm in arms(each.annotation)):
                    continue  # the parser takes null for a list, and the class says what it makes of it
                self.value(arguments[name], each.annotation, f"{key}.{name}")
            elif each.required:
                raise self._missing(thing, name, each.annotation, key)
        for name, each in others.items():
            if name in every or not str(name).isidentifier():  # it would be taken for the argument, unchecked
                raise self._error(key, f"{key}.{name} is no further keyword of {thing.__name__}: put it into init_args")
            self.value(each, Any, f"{key}.{name}")

    def find(self, path: str, place: Place, key: str) -> object:
        """The class or function that a key names, by its import path or, for some keys, by its name."""
        if "." not in path:
            beside = [vars(import_module(_BESIDE[key])).get(path)] if key in _BESIDE else []
            known = (each for base in place.bases for each in _derived(base))
            named = [*filter(None, beside), *(each for each in known if each.__name__ == path)]
            if not named or not place.takes(named[0]):
                raise self._no_such(path, place, key)
            return named[0]
        if not path.startswith(place.package):
            raise self._error(key, f"{key} is {path}, but must be a class of {place.package.rstrip('.')}")
        thing = None
        if may_name(path):
            try:
                thing = find_object(key, path, place.takes, own_code=self.own_code)
            except UserError as error:
                raise self._error(key, str(error).removesuffix(".")) from error
        if thing is None or not place.takes(thing):
            abstract = "is abstract: it " if inspect.isabstract(thing) else ""
            beside = f", such as those of {_BESIDE[key]}" if key in _BESIDE else ""
            raise self._error(key, f"{key} is {path}, which {abstract}cannot stand there: give {place}{beside}")
        return thing

    def _no_such(self, name: str, place: Place, key: str) -> UserError:
        module = _BESIDE.get(key, "")
        names = [each for each, thing in vars(import_module(module)).items() if place.takes(thing)] if module else []
        names = [each for each in names if not each.startswith("_")]
        by_name = module.startswith("proxemic.") and bool(place.bases)
        if near := difflib.get_close_matches(name, names, n=1):
            meant = near[0] if by_name else f"{module}.{near[0]}"
            return self._error(key, f"There is no {key} {name}: did you mean {meant}?")
        choice = f"choose one of {', '.join(names)}, or " if by_name else ""
        return self._error(key, f"There is no {key} {name}: {choice}give the import path of {place}")

    def _missing(self, made: type, name: str, annotation: Any, key: str) -> UserError:
        if annotation not in (inspect.Parameter.empty, Inside):
            hint = f"{made.__name__} needs it, in the recipe or as --{key}.{name}"
            return self._error("", f"The key {key}.{name} is missing: {hint}")
        if made.__name__ in proxemic.losses.__all__:
            return self._error(
                key, f"{key} is {made.__name__}, which has proxies of its own: make it the loss itself, not inside one"
            )
        return self._error(
            key,
            f"{key} is {made.__name__}, which needs {name} but does not say of what type, so that no recipe can give "
            "it: derive a class of your own that does, and give its import path",
        )

    def _check_names(self, key: str, given: Mapping[str, Any], allowed: Iterable[str]) -> None:
        known = [*allowed]
        for name in given:
            if name not in known:
                raise self._unknown(join_key(key, name), known)

    def _unknown(self, key: str, allowed: Collection[str]) -> UserError:
        parent, _, name = key.rpartition(".")
        flag = next((each for each in self.flags if each == key or each.startswith(f"{key}.")), None)
        dashes, kind = ("--", "flag") if flag else ("", "key")
        near = difflib.get_close_matches(name, allowed, n=1)
        if parent.rpartition(".")[2] == "loss" and (advice := keyword_here(name, allowed)):
            hint = advice
        elif near:
            rest = (flag or key).removeprefix(key)
            hint = f"did you mean {dashes}{join_key(parent, near[0])}{rest}?"
        elif allowed and flag:
            hint = f"allowed are {_few([dashes + join_key(parent, each) for each in sorted(allowed)])}"
        elif allowed:
            hint = f"allowed{f' in {parent}' if parent else ''} are {_few(sorted(allowed))}"
        else:
            hint = f"{parent} is a single value"
        return self._error(key, f"There is no {kind} {dashes}{flag or key}: {hint}")

    def _error(self, key: str, message: str) -> UserError:
        """The message, after the name of the file unless a flag gave the key."""
        given = key and any(
            each == key or each.startswith(f"{key}.") or key.startswith(f"{each}.") for each in self.flags
        )
        return UserError(f"{'' if given else f'{self.where}: '}{message}{'' if message.endswith('?') else '.'}")


def _few(names: Sequence[str]) -> str:
    """The names, or so many of them as a sentence can bear."""
    shown = names[:_MOST_NAMES] if len(names) > _MOST_NAMES + 3 else names
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return ", ".join(shown) + more


def _derived(base: type) -> Iterable[type]:
    """A class and all derived from it that are imported; none twice."""
    return {base: None, **{each: None for derived in base.__subclasses__() for each in _derived(derived)}}


def names_nothing(text: str, annotation: Any) -> bool:
    """Whether a value of this type may be a text, and this one names nothing that can be imported."""
    root = text.partition(".")[0]
    named = _PATH.fullmatch(text) and (root in sys.modules or find_spec(root))
    return not named and any(is_plain(arm) and fits(text, arm) for arm in arms(annotation))
