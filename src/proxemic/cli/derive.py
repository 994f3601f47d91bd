"""Derive parsers from the signatures and docstrings of the functions that commands call.

The sources are parsed, not imported, because importing torch takes seconds and ``--help`` must answer at once.
Positional parameters are words of the command, keyword-only ones are flags. A sequence is a list with commas if its
flag has a plural name; a flag with a singular name may be repeated. Parameters that no word can express are left out.
"""

import argparse
import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from proxemic.errors import UserError

_Function = TypeVar("_Function", bound=Callable[..., object])
_PACKAGE = Path(__file__).parents[1]


def _int(text: str) -> int:
    """Parse a whole number of at most 64 bits, which is all that torch and NumPy take."""
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise argparse.ArgumentTypeError(f"{text[:20]}… is beyond all whole numbers of 64 bits")
    return number


_int.__name__ = "int"  # argparse names it in its messages
# From the narrowest to the widest. A text may also be an address.
_TYPES = {"int": _int, "float": float, "Stem": str, "Folder": str, "PathLike": str, "str": str, "Path": Path}
_METAVARS = {"int": "N", "float": "X", "Stem": "STEM", "Folder": "DIR", "PathLike": "FILE", "Path": "FILE"}
_FLAGS = {
    **dict.fromkeys(("data_root", "source"), "--data.root"),
    "most_images": "--images",
    "licence": "--license",
    "names": "--name",
    "roots": "--root",
    "spaces": "--space",
}
"""Flags with another name than their parameter."""
_SHARED = {
    "gallery": (
        "GALLERY",
        "A folder, postgresql://USER@HOST/DATABASE/NAME, milvus://HOST:PORT/NAME, or milvus-lite:FILE",
    ),
    **dict.fromkeys(
        ("source", "query"),
        (
            "",
            "Folders, tables (.csv, .tsv, .parquet), images, patterns as 'photos/**/*.jpg', .txt files with a path "
            "on each line; or files of vectors: .npy, .parquet with a column embedding",
        ),
    ),
    "roots": (
        "DIR",
        "A folder or URL of the images that files of vectors name, or to which images were moved with their folder; "
        "serve, report and contact sheets open images below it; may be repeated",
    ),
    "recipe": ("NAME|FILE", "The name of a recipe (proxemic recipes list), or a YAML file"),
    "model": ("MODEL", "Where the gallery's model is now (default: where it was)"),
    "format": ("", "Format of what is printed"),
    **dict.fromkeys(("run", "runs"), ("RUN", "")),
    **dict.fromkeys(("losses", "corruptions", "severities"), ("A,B", "")),
    "vary": ("KEY[,KEY...]=LIST", ""),
    "measure": ("COLUMN", ""),
}
"""Metavar and text of parameters that many commands share; the docstring of the command takes precedence."""
_ENTRY = re.compile(r"^    (\w+)(?: \((.+?)\))?(?:: (.*(?:\n {8}.*)*))?$", re.MULTILINE)  # of Args
_SECTION = re.compile(r"\n(?=(?:Args|Returns|Raises|Example)s?:|Source: |>>> )")


def options_of(address: str, *, but: Collection[str] = ()) -> Callable[[_Function], _Function]:
    """Add the keyword-only parameters of another function to a command, which receives them as ``**options``.

    Args:
        address: The import path of the function, such as ``proxemic.retrieval:Gallery.add``.
        but: Names of parameters that are not flags.
    """
    return lambda function: function  # `Command` reads the source


@dataclass(frozen=True)
class _Parameter:
    module: str
    name: str
    flag: bool
    annotation: ast.expr | None
    default: ast.expr | None


class Command:
    """Describe a command: its function, and the words and flags that the function takes.

    Args:
        address: The import path of the function, such as ``proxemic.cli.pictures:search``.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        found = _find(address)
        assert found is not None, address
        module, function = found
        docstring = ast.get_docstring(function) or ""
        described: dict[str, tuple[str, str]] = {}
        self._parameters = {parameter.name: parameter for parameter in _parameters(module, function)}
        self.takes = {*self._parameters}
        """The names of the function's own parameters, including those that are not words or flags."""
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "options_of":
                called = _find(ast.literal_eval(decorator.args[0]))
                assert called is not None, address
                names = [name for hidden in decorator.keywords for name in ast.literal_eval(hidden.value)]
                described = _entries(ast.get_docstring(called[1]) or "")
                others = {
                    parameter.name: parameter
                    for parameter in _parameters(*called)
                    if parameter.flag and parameter.name not in names
                }
                self._parameters = others | self._parameters
        self._entries = _merged(described, _SHARED, _entries(docstring))
        self.description = _plain(" ".join(_SECTION.split(docstring)[0].split()))
        self.words = [parameter.name for parameter in self._parameters.values() if not parameter.flag]

    def fill(self, parser: argparse.ArgumentParser) -> None:
        """Declare words and flags without defaults: the function has its own."""
        parser.description = self.description
        flags = {name: flag_of(name) for name, parameter in self._parameters.items() if parameter.flag}
        for parameter in sorted(self._parameters.values(), key=lambda item: item.flag):
            metavar, text = self._entries.get(parameter.name, ("", ""))
            _add(parser, parameter, metavar, _plain(text, flags))


def summary_of(address: str) -> str:
    """Return the summary line of a function."""
    found = _find(address)
    assert found is not None, address
    return _plain((ast.get_docstring(found[1]) or "").partition("\n")[0])


def flag_of(name: str) -> str:
    """Write a parameter as a flag.

    >>> flag_of("batch_size"), flag_of("k"), flag_of("class_")
    ('--batch-size', '-k', '--class')
    """
    return _FLAGS.get(name) or ("-" if len(name) == 1 else "--") + name.rstrip("_").replace("_", "-")


def read_seeds(text: str) -> list[int]:
    """Parse seeds: how many, or a list of them.

    >>> read_seeds("3"), read_seeds("0,7"), read_seeds("7,")
    ([0, 1, 2], [0, 7], [7])
    """
    words = [word.strip() for word in text.removesuffix(",").split(",")]
    if not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        raise UserError(f"--seeds is {text!r}, but must be how many, as 5, or the seeds with commas, as 0,1,2.")
    numbers = [int(word) for word in words]
    if "," in text:
        return numbers
    if numbers[0] < 1:
        raise UserError(f"--seeds is {text}, but must be at least 1: it is how many; seed {text} alone is {text},")
    return list(range(numbers[0]))


def _add(parser: argparse.ArgumentParser, parameter: _Parameter, metavar: str, text: str) -> None:
    name, flag = parameter.name, flag_of(parameter.name)
    types = [*_types(parameter.module, parameter.annotation)]
    kind = next((kind for kind in ("bool", *_TYPES) if kind in types), None)
    many, required = "Sequence" in types, parameter.default is None
    default = _constant(parameter.module, parameter.default)
    default = ",".join(map(str, default)) if isinstance(default, tuple) else default
    default = None if isinstance(default, bool) or default is None or default == "" else str(default)
    if default is not None and "default" not in text:
        text += f" (default: {default})"
    settings: dict[str, Any] = {"help": text.replace("%", "%%")}
    if choices := [kind.strip("'") for kind in types if kind.startswith("'")]:
        settings["choices"] = choices
    elif kind is None:  # no word can express it
        return
    elif kind == "bool":
        is_on = isinstance(parameter.default, ast.Constant) and parameter.default.value
        settings["action"] = argparse.BooleanOptionalAction if is_on else "store_true"
    else:
        named = next((_METAVARS[kind] for kind in types if kind in _METAVARS), name.upper())
        settings |= {"type": _TYPES[kind], "metavar": metavar or named}
    if not parameter.flag:
        nargs = {(True, False): "*", (True, True): "+", (False, False): "?"}.get((many, required))
        action = parser.add_argument(name, nargs=nargs, **settings)
    else:
        if many and metavar.endswith("..."):
            settings |= {"nargs": "+", "metavar": metavar.removesuffix("...").strip()}
        elif many and name == "seeds":
            settings |= {"type": read_seeds, "metavar": "N|LIST"}
        elif many and flag.endswith("s"):
            settings["type"] = _list_of(settings["type"])
        elif many:
            settings["action"] = "append"
        action = parser.add_argument(flag, dest=name, required=required, **settings)
    vars(action)["function_default"] = default


def _list_of(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    def read(text: str) -> list[object]:
        try:
            return [*dict.fromkeys(kind(word.strip()) for word in text.split(","))]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be numbers with commas, as 1,3,5 are") from None

    return read


def _entries(docstring: str) -> dict[str, tuple[str, str]]:
    """Return the metavar, which may be empty, and the text of each parameter in a docstring."""
    _, _, section = docstring.partition("\nArgs:\n")
    section = _SECTION.split("\n" + section)[0]
    return {name: (metavar, " ".join(text.split())) for name, metavar, text in _ENTRY.findall(section)}


def _merged(*layers: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Combine descriptions; later ones replace earlier ones unless they are empty."""
    merged: dict[str, tuple[str, str]] = {}
    for layer in layers:
        for name, (metavar, text) in layer.items():
            before = merged.get(name, ("", ""))
            merged[name] = (metavar or before[0], text or before[1])
    return merged


def _plain(text: str, flags: Mapping[str, str] = {}) -> str:
    """Convert a docstring's text to plain text, for readers who do not know Python."""
    text = re.sub(r"[:,;] see `[^`]*`", "", text)
    text = re.sub(r"(\. )?\bNone\b(?: takes| is|:)?", lambda match: ". By default" if match[1] else "by default", text)
    text = re.sub(r"``?([^`]+)``?", lambda match: flags.get(match[1], match[1]), text)
    return text[:-1] if text.endswith(".") and not text.endswith("..") else text


def _parameters(module: str, function: ast.FunctionDef) -> Iterator[_Parameter]:
    taken = function.args
    positional = [*taken.posonlyargs, *taken.args]
    defaults = [None] * (len(positional) - len(taken.defaults)) + taken.defaults
    for argument, default in zip(positional, defaults, strict=True):
        yield _Parameter(module, argument.arg, False, argument.annotation, default)
    for argument, default in zip(taken.kwonlyargs, taken.kw_defaults, strict=True):
        yield _Parameter(module, argument.arg, True, argument.annotation, default)


def _types(module: str, node: ast.AST | None) -> Iterator[str]:
    """Yield the names of a union's members, with choices in quotes, and ``Sequence`` before the items of a sequence."""
    match node:
        case ast.BinOp(left=left, right=right):
            yield from _types(module, left)
            yield from _types(module, right)
        case ast.Constant(value=str(text)):
            yield from _types(module, ast.parse(text, mode="eval").body)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=names):
            yield from map(repr, ast.literal_eval(names) if isinstance(names, ast.Tuple) else [ast.literal_eval(names)])
        case ast.Subscript(value=ast.Name(id="Sequence" | "Collection"), slice=inner):
            yield "Sequence"
            yield from _types(module, inner)
        case ast.Subscript(value=ast.Attribute(attr="PathLike")):
            yield "PathLike"
        case ast.Name(id=name) if name in (*_TYPES, *_METAVARS, "bool"):
            yield name
        case ast.Name(id=name):
            alias = _find(f"{module}:{name}")
            if alias is not None and isinstance(alias[1], ast.Assign):
                yield from _types(alias[0], alias[1].value)


def _constant(module: str, node: ast.expr | None) -> Any:
    """Return the value of a default that is a literal or the name of a constant; None for anything else."""
    if isinstance(node, ast.Name) and (found := _find(f"{module}:{node.id}")) is not None:
        node = getattr(found[1], "value", None)
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def _find(address: str) -> tuple[str, Any] | None:
    """Find the module and the statement that define a name, following imports; None outside the package."""
    module, _, name = address.partition(":")
    name, _, method = name.partition(".")
    node = _definitions(module).get(name)
    if isinstance(node, ast.ImportFrom):
        imported = next(item.name for item in node.names if (item.asname or item.name) == name)
        inside = (node.module or "").startswith("proxemic")
        return _find(f"{node.module}:{imported}{'.' * bool(method)}{method}") if inside else None
    if isinstance(node, ast.ClassDef) and method:
        node = next(item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == method)
    return None if node is None else (module, node)


@cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """Return the statement that defines each name of a module."""
    found: dict[str, ast.stmt] = {}
    statements: list[ast.stmt] = [*_tree(module).body]
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.If | ast.With):
            statements += node.body
    return found


@cache
def _tree(module: str) -> ast.Module:
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))
