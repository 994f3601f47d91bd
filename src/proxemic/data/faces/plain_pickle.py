"""Pickles of plain data, read without running what they hold.

A pickle is a program for a small stack machine, and some of its instructions look up and call any function. Here a
first pass over the instructions refuses all but those that build lists, tuples, bytes and numbers, and those that would
take more memory than the file has; `pickle.Unpickler` then carries them out. Its `find_class` imports nothing. A few
names that plain data is written with stand for functions of this module: bytes, which Python 3 writes for protocol 2 as
`_codecs.encode(text, "latin1")`, NumPy's one-dimensional arrays of uint8 or bool, and its bools.
"""

import io
import pickle
import pickletools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

# An image takes 2 to 30; each makes less than 100 bytes beside what the file itself holds.
_MAX_INSTRUCTIONS = 2_000_000
# fmt: off
_INSTRUCTIONS = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8", "EMPTY_LIST", "APPEND", "APPENDS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
}
# fmt: on


class Refused(Exception):
    """The pickle asks for more than plain data needs."""


class Kind(Enum):
    """The type of the items of a NumPy array."""

    UINT8 = "u1"
    BOOL = "b1"

    def __setstate__(self, state: object) -> None:
        if state not in ((3, "|", None, None, None, -1, -1, 0), (3, b"|", None, None, None, -1, -1, 0)):
            raise Refused("it has a NumPy type with fields, metadata or flags")


@dataclass(slots=True, eq=False)
class Array:
    """A one-dimensional NumPy array with one byte per item, empty until the pickle that refers to it fills it."""

    kind: Kind = Kind.UINT8
    content: bytes | bytearray = b""

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, (size,), Kind() as kind, 0, bytes() | bytearray() as content) if size == len(content):
                self.kind, self.content = kind, content
            case _:
                raise Refused("it has a NumPy array that is not one-dimensional, of uint8 or bool")


def unpickle(content: bytes) -> object:
    """Build the plain data that a pickle describes; raise `Refused` if it asks for more, `ValueError` if it is damaged.

    >>> unpickle(pickle.dumps(([b"a", b"b"], [True])))
    ([b'a', b'b'], [True])
    """
    with warnings.catch_warnings():
        # Of escapes in a string of protocol 0, which is refused.
        warnings.simplefilter("ignore", DeprecationWarning)
        for number, (opcode, argument, place) in enumerate(pickletools.genops(content)):
            if number == _MAX_INSTRUCTIONS:
                raise Refused(f"it has more than {_MAX_INSTRUCTIONS:,} instructions")
            # The unpickler makes room for all numbers up to the one that something is kept under.
            if opcode.name not in _INSTRUCTIONS or (opcode.name == "LONG_BINPUT" and (argument or 0) > number):
                asked = "" if argument is None else f" {str(argument)[:60]!r}"
                raise Refused(f"at byte {place} it has the pickle instruction {opcode.name}{asked}")
    try:
        return _Unpickler(content).load()
    except (pickle.UnpicklingError, AttributeError, EOFError, IndexError, TypeError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")  # strings of Python 2 are bytes
        self._left = len(content)  # bytes that may be encoded: one text may be encoded again and again

    def find_class(self, module: str, name: str) -> Any:
        called = f"{module.replace('numpy._core', 'numpy.core')}.{name}"  # as NumPy 2 spells it
        if called == "_codecs.encode":
            return self._encode
        if called not in _NUMPY:
            raise Refused(f"it names {module[:60]!r} {name[:60]!r}")
        return _NUMPY[called]

    def _encode(self, text: object, encoding: object) -> bytes:
        if not isinstance(text, str) or encoding != "latin1":
            raise Refused("it calls _codecs.encode with what no bytes, uint8 or bool needs")
        self._left -= len(text)
        if self._left < 0:
            raise Refused("it encodes more text than it holds")
        return text.encode("latin1")


def _function(name: str) -> Callable[..., Kind | Array | bool]:
    def call(*arguments: object) -> Kind | Array | bool:
        match name, *arguments:
            case "dtype", "u1" | b"u1", 0, 1:
                return Kind.UINT8
            case "dtype", "b1" | b"b1", 0, 1:
                return Kind.BOOL
            case "_reconstruct", kind, (0,), b"b" if kind is _NDARRAY:
                return Array()
            case "_frombuffer", bytes() | bytearray() as content, Kind() as kind, (size,), "C" if size == len(content):
                return Array(kind, content)
            case "scalar", Kind.BOOL, b"\0" | b"\1" as content:
                return content == b"\1"
        raise Refused(f"it calls numpy.{name} with what no bytes, uint8 or bool needs")

    return call


_NDARRAY = object()
_NUMPY = {
    "numpy.ndarray": _NDARRAY,
    "numpy.dtype": _function("dtype"),
    "numpy.core.multiarray._reconstruct": _function("_reconstruct"),
    "numpy.core.numeric._frombuffer": _function("_frombuffer"),  # by protocol 5
    "numpy.core.multiarray.scalar": _function("scalar"),
}
