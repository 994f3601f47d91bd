"""Check the content of a recipe by the type hints of its keys, and build the typed values in the same pass.

Objects are only described, so that reading a recipe does not run their code. Names are looked up only for keys that
take classes or functions, and only if the key takes that kind.
"""

import difflib
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.recipes.hints import (
    FREE,
    PAIR_PACKAGE,
    UntypedArgument,
    arguments_of,
    elements,
    field_types,
    in_words,
    is_container,
    is_mapping,
    join_key,
    section_in,
    tuple_length,
    union_members,
)
from proxemic.recipes.importing import find_object, may_name
from proxemic.recipes.slots import Slot, slot_of
from proxemic.recipes.yaml_files import as_yaml, shown
from proxemic.training.callbacks.callback import is_of_lightning

LINKS = {"model.in_channels": "images.channels", "model.image_size": "images.size"}
"""Keys that recipes cannot give, each with the key whose value it takes: the network fits the transforms' output."""

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_MOST_NAMES = 10  # in a sentence that lists what is allowed


@dataclass(frozen=True)
class Described:
    """An object of a recipe before it is made: its class and arguments, including defaults.

    With ``later``, the training makes the object, and the recipe contains a `functools.partial`.
    """

    kind: type
    arguments: dict[str, Any]
    key: str
    later: bool

    def make(self) -> Any:
        """Make the object; raise `UserError` if a package is missing or a class of PML refuses its arguments."""
        arguments = made(self.arguments)
        if self.later:
            return partial(self.kind, **arguments)
        try:
            thing = self.kind(**arguments)
        except ImportError as error:
            message = " ".join(str(error).split()).rstrip(".")
            raise UserError(f"{self.kind.__name__} cannot be made: {message}.") from error
        except (AssertionError, TypeError, ValueError) as error:
            if not self.kind.__module__.startswith(PAIR_PACKAGE):
                raise
            path = f"{self.kind.__module__}.{self.kind.__qualname__}"
            raise UserError(f"{self.key} is {path}, which cannot be made: {error}.") from error
        if not is_dataclass(thing) and hasattr(thing, "__dict__"):
            vars(thing)["_described"] = self  # they are needed to write it, and most objects do not keep them
        return thing


def made(value: Any) -> Any:
    """Make all described objects in a value."""
    if isinstance(value, Described):
        return value.make()
    if isinstance(value, list | tuple):
        return type(value)(map(made, value))
    if isinstance(value, dict):
        return {name: made(item) for name, item in value.items()}
    if section_in(type(value)):
        given = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: new for name, old in given.items() if (new := made(old)) is not old})
    return value


class Builder:
    """Build one recipe; messages name the file ``where``, or the flag of keys that ``flags`` gave.

    With ``own_code``, classes may be imported from the current directory.
    """

    def __init__(self, where: str, flags: Collection[str] = (), *, own_code: bool = False) -> None:
        self.where, self.flags, self.own_code = where, flags, own_code
        self._linked: dict[str, Any] = {}

    def section(self, content: Any, kind: type, key: str = "") -> Any:
        """Build a dataclass from a recipe's values for its fields; objects in it are only described."""
        hints = field_types(kind)
        allowed = [name for name in hints if join_key(key, name) not in LINKS]
        if content is None:
            raise self.error(key, f"{key} is empty: give {', '.join(allowed[:3])} or others below it, or leave it out")
        content = as_yaml(content)
        if not isinstance(content, Mapping):
            what = key or "the recipe"
            raise self.error(key, f"{what} is {shown(content)}, but must map names such as {allowed[0]} to values")
        self._check_names(key, content, allowed, kind)
        section = object.__new__(kind)  # its constructor would get descriptions instead of the objects that it declares
        sources = {source.rpartition(".")[0] for source in LINKS.values()}
        for field in sorted(fields(kind), key=lambda field: join_key(key, field.name) not in sources):
            name = join_key(key, field.name)
            if name in LINKS:
                value = self._linked[LINKS[name]]
            elif field.name in content:
                value = self.value(content[field.name], hints[field.name], name)
            elif field.default is not MISSING:
                value = field.default
            elif field.default_factory is not MISSING:
                section_type = section_in(field.default_factory)
                value = self.section({}, section_type, name) if section_type else field.default_factory()
            else:
                raise self.error("", f"The key {name} is missing, which every recipe has")
            if name in LINKS.values():
                self._linked[name] = value
            object.__setattr__(section, field.name, value)
        getattr(section, "__post_init__", lambda: None)()
        return section

    def value(self, content: Any, hint: Any, key: str) -> Any:
        """Build the value of a key by its hint.

        A text is also read as YAML, unless the key takes texts: a folder may be called ``null``.
        """
        members = union_members(hint)
        parsed = content if {str, Path} & {*members} else as_yaml(content)
        if parsed is None and content != "" and type(None) in members:
            return None
        if section := section_in(hint):
            return self.section(parsed, section, key)
        if content == "" and Path in members:  # an unset shell variable must not mean the current folder
            raise self.error(key, f"{key} is empty: give a path, or . for the current folder")
        slot = slot_of(key, hint)
        if slot is not None:
            self._check_slot(parsed, content, hint, slot, key)
            if isinstance(parsed, Mapping) and "class_path" in parsed:
                return self._object(parsed, slot, key)
            if isinstance(parsed, str) and not names_nothing(parsed, hint):
                return self._object({"class_path": parsed}, slot, key)
        built = self._plain(content, hint, key)
        if built is not MISSING:
            return built
        if isinstance(parsed, Mapping) and section_in(elements(hint)):
            raise self.error(key, f"{key} is {shown(parsed)}, but must be a list of such mappings: put it in []")
        if isinstance(parsed, Mapping) and slot is None:
            inner = parsed.get("init_args")  # a change of a text looks like a class
            name = next(iter(inner if isinstance(inner, Mapping) and inner else parsed), "")
            raise self._unknown(f"{key}.{name}", [])
        raise self.error(key, f"{key} is {shown(content)}, but must be {in_words(hint)}")

    def _check_slot(self, parsed: Any, content: Any, hint: Any, slot: Slot, key: str) -> None:
        if isinstance(parsed, Mapping) and "class_path" not in parsed and not slot.package:
            names = ", ".join(map(str, parsed))
            raise self.error(key, f"{key} has no class_path, which names the class that takes {names}")
        if isinstance(parsed, list | tuple) and elements(hint) is Any and not slot.package:
            raise self.error(key, f"{key} is {shown(content)}, but must be a single one: give {slot}")
        if parsed is None and UntypedArgument not in union_members(hint):
            raise self.error(key, f"{key} is empty: give {slot}")

    def _plain(self, content: Any, hint: Any, key: str) -> Any:
        """Build a plain value by the first member of a union that accepts it; return `MISSING` if none does."""
        parsed = as_yaml(content)
        for member in union_members(hint):
            built = self._member(content if member in (str, Path) else parsed, member, key)
            if built is not MISSING:
                return built
        return MISSING

    def _member(self, value: Any, member: Any, key: str) -> Any:
        origin = get_origin(member) or member
        if member is UntypedArgument and isinstance(value, list):
            return [self.value(item, UntypedArgument, key) for item in value]
        if member in FREE:
            return value
        if origin is Literal:
            return next((arg for arg in get_args(member) if arg == value and type(arg) is type(value)), MISSING)
        if member in (bool, int, type(None)):
            return value if type(value) is member else MISSING
        if member is float:
            return float(value) if type(value) is float or (type(value) is int and abs(value) < 2**53) else MISSING
        if member in (str, Path):
            return member(value) if isinstance(value, str | member) else MISSING
        if inspect.isclass(origin) and issubclass(origin, Enum):
            return next((item for item in origin if value in (item.name, item.value)), MISSING)
        if is_mapping(member) and isinstance(value, Mapping):
            return {name: self.value(item, elements(member), join_key(key, name)) for name, item in value.items()}
        if not is_container(member) or is_mapping(member) or not isinstance(value, list | tuple):
            return MISSING
        if tuple_length(member) not in (None, len(value)):
            return MISSING
        inner = elements(member)
        build = self.value if slot_of(key, inner) or section_in(inner) else self._plain
        built = [build(item, inner, key) for item in value]
        if MISSING in built:  # the sentence is about the whole list
            return MISSING
        return origin(built) if origin in (tuple, set, frozenset) else built

    def _object(self, content: Mapping[str, Any], slot: Slot, key: str) -> Any:
        path, unknown = content["class_path"], {*content} - {"class_path", "init_args", "dict_kwargs"}
        if not isinstance(path, str):
            raise self.error(key, f"{key} is {shown(path)}, but must be {slot}")
        if unknown:
            raise self.error(key, f"{key}.{min(unknown)} is next to class_path: put it into init_args")
        arguments, others = (content.get(name) or {} for name in ("init_args", "dict_kwargs"))
        thing = self.find(path, slot, key)
        for item in (arguments, others):
            if not isinstance(item, Mapping):
                raise self.error(key, f"{key} is {path} with {shown(item)}, but must map its arguments to values")
        if not inspect.isclass(thing) or not slot.called:
            if arguments or others:
                raise self.error(key, f"{key} is {path}, which takes no arguments here: give its import path alone")
            return thing
        if issubclass(thing, ProxyLoss) and thing.step_objective is ProxyLoss.step_objective:
            try:
                inspect.signature(thing.objective).bind("self", "positive", "negative", "labels", "embeddings")
            except TypeError as error:
                message = f"{key} is {path}, but its objective must take (self, positive, negative, labels, embeddings)"
                raise self.error(key, f"{message}: {error}") from error
        known = arguments_of(thing)
        given = {name: item for name, item in [*known.items()][slot.filled :] if name not in slot.filled_names}
        self._check_names(key, arguments, given)
        built: dict[str, Any] = {}
        for name, argument in given.items():
            if name in arguments:
                is_list = any(map(is_container, union_members(argument.hint)))
                is_left_out = is_list and as_yaml(arguments[name]) is None  # as classes with ``list = None`` allow
                built[name] = None if is_left_out else self.value(arguments[name], argument.hint, f"{key}.{name}")
            elif argument.required and name == "num_classes" and thing.__module__.startswith(PAIR_PACKAGE):
                own = f"{key} is {thing.__name__}, which has proxies or class weights of its own"
                raise self.error(key, f"{own}: take a loss of proxemic.losses itself, not inside PairwiseLoss")
            elif argument.required:
                reason = f"{thing.__name__} needs it, in the recipe or as --{key}.{name}"
                raise self.error("", f"The key {key}.{name} is missing: {reason}")
            elif not slot.package and inspect.Parameter.empty not in (argument.default, argument.hint):
                as_float = type(argument.default) is int and float in union_members(argument.hint)
                built[name] = float(argument.default) if as_float else argument.default
        for name, other in others.items():
            if name in known or not str(name).isidentifier():
                raise self.error(key, f"{key}.{name} is no further keyword of {thing.__name__}: put it into init_args")
            built[name] = self.value(other, Any, f"{key}.{name}")
        return Described(thing, built, key, slot.makes_later)

    def find(self, path: str, slot: Slot, key: str) -> Any:
        """Return the class or function with this import path or, for some keys, this name."""
        if "." not in path and slot.module and hasattr(import_module(slot.module), path):
            path = f"{slot.module}.{path}"
        if "." not in path:
            derived = (kind for base in slot.bases for kind in _derived(base) if kind.__name__ == path)
            if (thing := next(filter(slot.takes, derived), None)) is None:
                raise self._no_such(path, slot, key)
            return thing
        if not path.startswith(slot.package):
            raise self.error(key, f"{key} is {path}, but must be a class of {slot.package.rstrip('.')}")
        if is_of_lightning(path):
            raise self.error(key, f"{key} is {path}, but proxemic trains without Lightning: give {slot}")
        thing = None
        if may_name(path):
            try:
                thing = find_object(key, path, slot.takes, own_code=self.own_code)
            except UserError as error:
                raise self.error(key, str(error).removesuffix(".")) from error
        if thing is None or not slot.takes(thing):
            abstract = "is abstract: it " if inspect.isabstract(thing) else ""
            such = f", such as those of {slot.module}" if slot.module else ""
            raise self.error(key, f"{key} is {path}, which {abstract}cannot be used there: give {slot}{such}")
        return thing

    def _no_such(self, name: str, slot: Slot, key: str) -> UserError:
        names = [item for item, _ in slot.choices()]
        by_name = slot.module.startswith("proxemic.") and bool(slot.bases)
        if near := difflib.get_close_matches(name, names, n=1):
            meant = near[0] if by_name else f"{slot.module}.{near[0]}"
            return self.error(key, f"There is no {key} {name}: did you mean {meant}?")
        choice = f"choose one of {', '.join(names)}, or " if by_name else ""
        return self.error(key, f"There is no {key} {name}: {choice}give the import path of {slot}")

    def _check_names(
        self, key: str, given: Mapping[str, Any], allowed: Collection[str], section: type | None = None
    ) -> None:
        for name in given:
            if name not in allowed:
                raise self._unknown(join_key(key, name), allowed, section)

    def _unknown(self, key: str, allowed: Collection[str], section: type | None = None) -> UserError:
        parent, _, name = key.rpartition(".")
        flag = next((flag for flag in self.flags if flag == key or flag.startswith(f"{key}.")), None)
        dashes, what = ("--", "flag") if flag else ("", "key")
        last = [path for path, _ in leaf_keys(section) if path.rpartition(".")[2] == name.replace("-", "_")]
        near = difflib.get_close_matches(name, allowed, n=1)
        if section and not parent and last:
            hint = f"did you mean {dashes}{min(last, key=lambda path: path.count('.'))}?"
        elif near:
            hint = f"did you mean {dashes}{join_key(parent, near[0])}{(flag or key).removeprefix(key)}?"
        elif allowed:
            names = sorted(dashes + join_key(parent, item) if flag else item for item in allowed)
            hint = f"allowed{f' in {parent}' if parent and not flag else ''} are {_few(names)}"
        else:
            hint = f"{parent} is a single value"
        return self.error(key, f"There is no {what} {dashes}{flag or key}: {hint}")

    def error(self, key: str, message: str) -> UserError:
        """Return an error whose message begins with the name of the file, unless a flag gave the key."""
        given = key and any(
            flag == key or flag.startswith(f"{key}.") or key.startswith(f"{flag}.") for flag in self.flags
        )
        return UserError(f"{'' if given else f'{self.where}: '}{message}{'' if message.endswith('?') else '.'}")


def leaf_keys(section: type | None, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all keys below a section that hold values, not sections; each with its hint."""
    for name, hint in field_types(section).items() if section else ():
        path = join_key(key, name)
        if inner := section_in(hint):
            yield from leaf_keys(inner, path)
        elif path not in LINKS:
            yield path, hint


def names_nothing(text: str, hint: Any) -> bool:
    """Return whether the hint allows texts and this text cannot be an import path."""
    root = text.partition(".")[0]
    plain = any(
        member in (str, *FREE) or (get_origin(member) is Literal and text in get_args(member))
        for member in union_members(hint)
    )
    return plain and not (_PATH.fullmatch(text) and (root in sys.modules or find_spec(root)))


def _few(names: Sequence[str]) -> str:
    """Join names, up to as many as fit into a sentence."""
    first = names[:_MOST_NAMES] if len(names) > _MOST_NAMES + 3 else names
    more = f" and {len(names) - len(first)} more" if len(first) < len(names) else ""
    return ", ".join(first) + more


def _derived(base: type) -> Iterable[type]:
    """Return a class and all its imported subclasses, without repetition."""
    return {base: None, **{item: None for derived in base.__subclasses__() for item in _derived(derived)}}
