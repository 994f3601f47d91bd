"""The `.bin` packs of insightface: a pickle of encoded images in pairs, read without trusting it.

A pickle is a program for a small stack machine, and instructions of it can call any function. A pack needs only those
that build lists, tuples, bytes and numbers, so those alone are carried out here, and nothing in a file can name a
function that would be called. Python 3 writes bytes for old protocols as a call of `_codecs.encode(text, "latin1")`;
that one spelling is recognised and done by hand.
"""

import io
import pickletools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from proxemic.data.face_pairs import FacePairs
from proxemic.data.pixels import Pixels, UnreadableImageError, describe

_FOLDS = 10
_LARGEST = 4 * 2**30  # bytes; published packs have up to 0.2 GB
_STEPS = 2_000_000  # an image takes 2 to 8; each step makes less than 100 bytes, beside what the file itself holds
_ENCODE = object()  # what stands for `_codecs.encode` on the stack


class EncodedPixels(Pixels):
    """Pictures held in memory as PNG or JPEG files are, decoded when asked for.

    Args:
        encoded: one file's content a picture.
        names: what to call each in an error.

    Raises:
        UnreadableImageError: on access, when a picture cannot be decoded.

    Example:
        >>> len(EncodedPixels([b"not an image"], ["lfw.bin, image 0"]))
        1
    """

    def __init__(self, encoded: Sequence[bytes], names: Sequence[str]) -> None:
        self.encoded = tuple(encoded)
        self.names = tuple(names)

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> Image.Image:
        try:
            with Image.open(io.BytesIO(self.encoded[index])) as image:
                return image.convert("L" if image.mode in ("1", "L") else "RGB")
        except Exception as error:  # as in `read_image`
            raise UnreadableImageError(self.names[index], describe(error)) from error

    def select(self, indices: Sequence[int]) -> "EncodedPixels":
        """Keep the pictures at `indices`, in that order."""
        return EncodedPixels([self.encoded[index] for index in indices], [self.names[index] for index in indices])


def read_face_pack(path: str | Path) -> FacePairs:
    """Read a pack of insightface, such as `lfw.bin`, `cfp_fp.bin` or `agedb_30.bin`, without running what it holds.

    A pack is a pickle of `(images, same)`: encoded images, two a pair, and a bool a pair; its folds are ten blocks of
    consecutive pairs. Anything but lists, tuples, bytes, integers and bools is refused.

    Args:
        path: the pack, of pickle protocol 2 to 5, written by Python 2 or 3.

    Raises:
        ValueError: the file is missing, damaged, no pack, or asks for more than a pack needs.

    Example:
        >>> import pickle, tempfile
        >>> path = Path(tempfile.mkdtemp(), "two.bin")
        >>> _ = path.write_bytes(pickle.dumps(([b"a", b"b", b"c", b"d"], [True, False])))
        >>> pairs = read_face_pack(path)
        >>> len(pairs), pairs.same.tolist(), pairs.second.tolist()
        (2, [True, False], [1, 3])
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise ValueError(f"{path} has {size:,} bytes, but a pack has at most {_LARGEST:,}.")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {describe(error)}.") from error
    try:
        found = _unpickle(content)
    except _Refused as error:
        raise ValueError(
            f"{path} is refused: {error}, which a pack of lists, tuples, bytes, integers and bools does not need; if "
            "you trust where it comes from (packs may hold NumPy arrays), write it again with each image as bytes and "
            "each flag as a bool, by pickle protocol 2 to 5."
        ) from None
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged or no pickle of protocol 2 to 5 ({describe(error)}).") from error
    images, same = _checked(found, path)
    numbers: dict[bytes, int] = {}  # of the first image that shows each picture
    for number, image in enumerate(images):
        numbers.setdefault(image, number)
    places = {image: place for place, image in enumerate(numbers)}
    indices = torch.tensor([places[image] for image in images])
    pixels = EncodedPixels(tuple(numbers), [f"{path} (image {number}, counted from 0)" for number in numbers.values()])
    blocks = torch.arange(len(same)).tensor_split(_FOLDS)
    folds = torch.cat([torch.full_like(block, fold) for fold, block in enumerate(blocks)])
    return FacePairs(pixels, indices[0::2], indices[1::2], torch.tensor(same), folds)


class _Refused(Exception):
    """The pickle asks for something that a pack does not need."""


def _unpickle(content: bytes) -> object:
    """Carry out those instructions of a pickle that build plain data."""
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
            raise _Refused(f"it has more than {_STEPS:,} instructions")
        match opcode.name:
            case "PROTO" | "FRAME":
                pass
            case "BININT" | "BININT1" | "BININT2" | "SHORT_BINBYTES" | "BINBYTES" | "BINBYTES8":
                stack.append(argument)
            case "BYTEARRAY8":  # copied once here, however often the file refers to it
                stack.append(bytes(argument))
            case "BINUNICODE":  # to encode; left as text it is refused later
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
            case "GLOBAL" if argument == "_codecs encode":
                stack.append(_ENCODE)
            case "REDUCE" if stack[-2:-1] == [_ENCODE] and _is_text(stack[-1]):
                text, _ = stack.pop()
                encoded += len(text)
                # One text may be encoded again and again, to fill the memory.
                if encoded > len(content):
                    raise _Refused("it encodes more text than it holds")
                stack[-1] = text.encode("latin1")
            case "STOP":
                return stack.pop()
            case name:
                asked = "" if argument is None else f" {str(argument)[:60]!r}"
                raise _Refused(f"at byte {place} it has the pickle instruction {name}{asked}")
    raise AssertionError("genops ends with STOP or raises")


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"items are appended to {type(value).__name__}")
    return value


def _is_text(arguments: object) -> bool:
    match arguments:
        case (str(), "latin1"):
            return True
    return False


def _checked(found: object, path: Path) -> tuple[list[bytes], list[bool]]:
    match found:
        case ([*images], [*same]):
            pass
        case _:
            raise ValueError(f"{path} is no pack of insightface: it does not hold two lists, of images and of flags.")
    if not same or len(images) != 2 * len(same):
        raise ValueError(
            f"{path} has {len(images):,} images for {len(same):,} flags, but a pack has two images a flag, and a flag."
        )
    for place, image in enumerate(images):
        if not isinstance(image, bytes):
            raise ValueError(
                f"{path}: image {place}, counted from 0, is {_name(image)}, but it must be the bytes of an image file."
            )
    for place, flag in enumerate(same):
        if not isinstance(flag, int) or flag not in (0, 1):
            raise ValueError(f"{path}: flag {place}, counted from 0, is {_name(flag)}, but it must be a bool.")
    return images, [bool(flag) for flag in same]


def _name(value: object) -> str:
    return str(value) if isinstance(value, int) else f"of type {type(value).__name__}"
