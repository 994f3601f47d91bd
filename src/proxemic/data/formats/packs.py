"""The `.bin` packs of insightface: pickles of encoded images in pairs, read without running code in them.

A pickle is a program for a small stack machine, and some of its instructions look up and call any function. A first
pass over the instructions accepts only those that build lists, tuples, bytes and numbers, and refuses those that would
take more memory than the file has. `pickle.Unpickler` then executes them, but its `find_class` imports nothing. It
only knows functions for plain data, which are `_codecs.encode(text, "latin1")` (Python 3 writes it for bytes by
protocol 2), one-dimensional NumPy arrays of uint8 or bool, and NumPy's bools.
"""

import io
import pickle
import pickletools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from proxemic.data.pixels import EncodedPixels
from proxemic.data.reading import describe

_MAX_BYTES = 4 * 2**30  # published packs have up to 0.2 GB
_MAX_INSTRUCTIONS = 2_000_000  # an image takes 2 to 30 objects, each with less than 100 bytes on top of its content
# fmt: off
_INSTRUCTIONS = {
    "PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8", "EMPTY_LIST", "APPEND", "APPENDS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
    "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET", "GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD",
}
_FUNCTIONS = {
    "_codecs.encode", "numpy.dtype", "numpy.core.multiarray._reconstruct", "numpy.core.multiarray.scalar",
    "numpy.core.numeric._frombuffer",  # by protocol 5
}
# fmt: on


@dataclass(frozen=True, eq=False)
class PackPixels(EncodedPixels):
    """Images of a pack, held in memory as encoded files; `names` are for error messages."""

    per_image = ("contents", "names")
    contents: tuple[bytes, ...]
    names: tuple[str, ...]

    def encoded(self, index: int) -> bytes:
        return self.contents[index]

    def place(self, index: int) -> str:
        return self.names[index]


class Refused(Exception):
    """Raised if a pickle asks for more than plain data needs."""


class Kind(str):
    """The type of the items of a NumPy array, `u1` or `b1`; its pickled state is ignored."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None: ...


@dataclass(slots=True, eq=False)
class Array:
    """A one-dimensional NumPy array with one byte per item, empty until the pickle sets its state."""

    kind: str = ""
    content: bytes | bytearray = b""

    def __setstate__(self, state: object) -> None:
        match state:
            case (1, (size,), Kind() as kind, 0, bytes() | bytearray() as content) if size == len(content):
                self.kind, self.content = kind, content
            case _:
                raise Refused("it has a NumPy array that is not one-dimensional, of uint8 or bool")


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")  # strings of Python 2 are bytes
        self._left = len(content)  # limit of encoded bytes, since one text may be encoded many times

    def find_class(self, module: str, name: str) -> str | Callable[..., object]:
        called = f"{module.replace('numpy._core', 'numpy.core')}.{name}"  # as NumPy 2 spells it
        if called == "numpy.ndarray":
            return called
        if called not in _FUNCTIONS:
            raise Refused(f"it names {module[:60]!r} {name[:60]!r}")
        return lambda *arguments: self._call(called, arguments)

    def _call(self, name: str, arguments: tuple[object, ...]) -> object:
        match name, *arguments:
            case "_codecs.encode", str() as text, "latin1":
                self._left -= len(text)
                if self._left >= 0:
                    return text.encode("latin1")
            case "numpy.dtype", "u1" | b"u1", 0, 1:
                return Kind("u1")
            case "numpy.dtype", "b1" | b"b1", 0, 1:
                return Kind("b1")
            case "numpy.core.multiarray._reconstruct", "numpy.ndarray", (0,), b"b":
                return Array()
            case "numpy.core.numeric._frombuffer", bytes() | bytearray() as content, Kind() as kind, (size,), "C":
                if size == len(content):
                    return Array(kind, content)
            case "numpy.core.multiarray.scalar", "b1", b"\0" | b"\1" as content:
                return content == b"\1"
        raise Refused(f"it calls {name} with arguments that bytes, uint8 and bool do not need")


def unpickle(content: bytes) -> object:
    """Build the plain data that a pickle describes; raise `Refused` if it asks for more, `ValueError` if it is damaged.

    >>> unpickle(pickle.dumps(([b"a", b"b"], [True])))
    ([b'a', b'b'], [True])
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # for escapes in a string of protocol 0, which is refused
        for number, (opcode, argument, place) in enumerate(pickletools.genops(content)):
            if number == _MAX_INSTRUCTIONS:
                raise Refused(f"it has more than {_MAX_INSTRUCTIONS:,} instructions")
            # The memo of the unpickler has room for all numbers up to the largest one used.
            if opcode.name not in _INSTRUCTIONS or (opcode.name == "LONG_BINPUT" and (argument or 0) > number):
                asked = "" if argument is None else f" {str(argument)[:60]!r}"
                raise Refused(f"at byte {place} it has the pickle instruction {opcode.name}{asked}")
    try:
        return _Unpickler(content).load()
    except (pickle.UnpicklingError, AttributeError, EOFError, IndexError, TypeError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def read_pack(path: Path) -> tuple[PackPixels, list[int], list[bool]]:
    """Return the distinct images of a pack, the index of each image of its pairs, and the flag of each pair."""
    try:
        if (size := path.stat().st_size) > _MAX_BYTES:
            raise ValueError(f"{path} has {size:,} bytes, but a pack has at most {_MAX_BYTES:,}.")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {describe(error)}.") from error
    try:
        data = unpickle(content)
    except Refused as error:
        raise ValueError(
            f"{path} is refused: {error}, but a pack needs no more than protocols 2 to 5 write for lists, tuples, "
            "bytes, integers, bools and NumPy arrays of one dimension of uint8 or bool; if you trust its "
            "source, write it anew with each image as bytes and each flag as a bool, by protocol 2 or later."
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged or not a pickle of protocol 2 to 5 ({describe(error)}): fetch it again."
        ) from error
    same: Sequence[object]
    match data:
        case ([*images], [*same] | Array("b1", same)):
            pass
        case _:
            raise ValueError(f"{path} is not a pack of insightface, which holds two lists, of images and of flags.")
    if not same or len(images) != 2 * len(same):
        raise ValueError(
            f"{path} has {len(images):,} images for {len(same):,} flags, but a pack has two images per flag, and at "
            "least one flag."
        )
    for number, flag in enumerate(same):
        if not isinstance(flag, int) or flag not in (0, 1):
            raise ValueError(f"{path}: flag {number}, counted from 0, is {_name(flag)}, but it must be a bool.")
    places: dict[bytes, int] = {}
    names: list[str] = []
    indices: list[int] = []
    for number, image in enumerate(images):
        encoded = image.content if isinstance(image, Array) and image.kind == "u1" else image
        if not isinstance(encoded, bytes | bytearray):
            raise ValueError(
                f"{path}: image {number}, counted from 0, is {_name(image)}, but it must be the bytes of an image file."
            )
        indices.append(places.setdefault(bytes(encoded), len(places)))
        if len(places) > len(names):
            names.append(f"{path} (image {number}, counted from 0)")
    return PackPixels(tuple(places), tuple(names)), indices, [bool(flag) for flag in same]


def _name(value: object) -> str:
    return str(value) if isinstance(value, int) else f"of type {type(value).__name__}"
