"""Pickles of plain data, carried out by hand.

A pickle is a program for a small stack machine, and instructions of it can call any function. Only those that build
lists, tuples, bytes and numbers are carried out here, and nothing in a file can name a function that would be called.
What plain data is written as a call of is recognised by its spelling and done by hand: bytes, which Python 3 writes for
old protocols as `_codecs.encode(text, "latin1")`, and NumPy's arrays of one dimension of uint8 or bool, and its bools.
"""

import pickletools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

_STEPS = 2_000_000  # an image takes 2 to 30; each step makes less than 100 bytes, beside what the file itself holds


class Refused(Exception):
    """The pickle asks for more than plain data needs."""


class _Named(Enum):
    """What a pickle may name: it stands for itself on the stack."""

    ENCODE = "_codecs encode"
    NDARRAY = "numpy ndarray"
    DTYPE = "numpy dtype"
    RECONSTRUCT = "numpy.core.multiarray _reconstruct"
    FROM_BUFFER = "numpy.core.numeric _frombuffer"  # protocol 5
    SCALAR = "numpy.core.multiarray scalar"


# NumPy 2 writes `numpy._core`.
_NAMES = {spelling: each for each in _Named for spelling in (each.value, each.value.replace(".core.", "._core."))}


class Kind(Enum):
    """Of a NumPy array."""

    UINT8 = "u1"
    BOOL = "b1"


@dataclass(slots=True, eq=False)
class Array:
    """A NumPy array of one dimension; it is empty until the pickle fills it, as it may refer to it before.

    Args:
        kind: of its items.
        content: a byte an item.
    """

    kind: Kind = Kind.UINT8
    content: bytes = b""


def unpickle(content: bytes) -> object:
    """Carry out those instructions of a pickle that build plain data.

    Args:
        content: a pickle of protocol 2 to 5.

    Returns:
        Lists, tuples, None, bytes, texts, integers and bools, and `Array` for those of NumPy.

    Raises:
        Refused: it asks for more.
        ValueError, IndexError, KeyError, TypeError: it is damaged or no pickle.

    Example:
        >>> import pickle
        >>> unpickle(pickle.dumps(([b"a", b"b"], [True])))
        ([b'a', b'b'], [True])
    """
    with warnings.catch_warnings():
        # Of escapes in a text of Python 2, which is refused.
        warnings.simplefilter("ignore", DeprecationWarning)
        return _carry_out(content)


def _carry_out(content: bytes) -> object:
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, object] = {}
    encoded = 0

    def above_mark() -> list[object]:
        place = marks.pop()
        items = stack[place:]
        del stack[place:]
        return items

    instructions: Iterator[tuple[pickletools.OpcodeInfo, Any, Any]] = pickletools.genops(content)
    for step, (opcode, argument, place) in enumerate(instructions):
        if step == _STEPS:
            raise Refused(f"it has more than {_STEPS:,} instructions")
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "BININT" | "BININT1" | "BININT2" | "SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8":
                stack.append(argument)
            case "BYTEARRAY8":  # copied once here, however often the file refers to it
                stack.append(bytes(argument))
            case "BINUNICODE" | "SHORT_BINUNICODE" | "NONE":
                stack.append(argument)
            case "SHORT_BINSTRING" | "BINSTRING":  # bytes of Python 2, which `genops` decodes
                stack.append(argument.encode("latin1"))
            case "NEWTRUE" | "NEWFALSE":
                stack.append(opcode.name == "NEWTRUE")
            case "EMPTY_LIST":
                stack.append([])
            case "APPEND":
                item = stack.pop()
                _list(stack[-1]).append(item)
            case "APPENDS":
                items = above_mark()
                _list(stack[-1]).extend(items)
            case "MARK":
                marks.append(len(stack))
            case "TUPLE":
                stack.append(tuple(above_mark()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = int(opcode.name[-1])
                stack[-size:] = [tuple(stack[-size:])]
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL" if argument in _NAMES:
                stack.append(_NAMES[argument])
            case "STACK_GLOBAL" if (named := " ".join(stack[-2:])) in _NAMES:
                stack[-2:] = [_NAMES[named]]
            case "REDUCE" if (made := _made(stack[-2:])) is not None:
                stack[-2:] = [made]
                encoded += len(made) if isinstance(made, bytes) else 0
                # One text may be encoded again and again, to fill the memory.
                if encoded > len(content):
                    raise Refused("it encodes more text than it holds")
            case "BUILD" if _filled(stack[-2:]):
                stack.pop()
            case "STOP":
                return stack.pop()
            case name:
                if name == "STACK_GLOBAL":
                    argument = " ".join(stack[-2:])
                asked = "" if argument is None else f" {str(argument)[:60]!r}"
                raise Refused(f"at byte {place} it has the pickle instruction {name}{asked}")
    raise AssertionError("genops ends with STOP or raises")


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"items are appended to {type(value).__name__}")
    return value


def _made(top: list[Any]) -> object:
    """What the call of a name gives, None for all that is not needed; Python 2 writes texts as bytes, bools as 0, 1."""
    match top:
        case [_Named.ENCODE, (str(text), "latin1")]:
            return text.encode("latin1")
        case [_Named.DTYPE, ("u1" | b"u1", 0, 1)]:
            return Kind.UINT8
        case [_Named.DTYPE, ("b1" | b"b1", 0, 1)]:
            return Kind.BOOL
        case [_Named.RECONSTRUCT, (_Named.NDARRAY, (0,), b"b")]:
            return Array()
        case [_Named.FROM_BUFFER, (bytes(content), Kind() as kind, (size,), "C")] if size == len(content):
            return Array(kind, content)
        case [_Named.SCALAR, (Kind.BOOL, b"\0" | b"\1" as content)]:
            return content == b"\1"
    return None


def _filled(top: list[Any]) -> bool:
    """Give an object its state, or say that it is not one that is needed."""
    match top:
        case [Kind(), (3, "|" | b"|", None, None, None, -1, -1, 0)]:
            return True
        case [Array() as array, (1, (size,), Kind() as kind, 0, bytes(content))] if size == len(content):
            array.kind, array.content = kind, content
            return True
    return False
