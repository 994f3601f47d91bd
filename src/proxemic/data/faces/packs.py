"""The sets of pairs that faces are verified on, above all the `.bin` packs of insightface.

A pack is a pickle of encoded images in pairs, which is read without trusting it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from proxemic.data.faces.pairs import FacePairs, read_lfw_pairs
from proxemic.data.faces.plain_pickle import Array, Kind, Refused, unpickle
from proxemic.data.pixels import Pixels
from proxemic.data.pixels.reading import UnreadableImageError, describe, read_image
from proxemic.data.pixels.stores import Indices
from proxemic.image_formats import ENDINGS

_FOLDS = 10
_PAGE = "https://github.com/deepinsight/insightface/wiki/Dataset-Zoo"
_MAX_BYTES = 4 * 2**30  # published packs have up to 0.2 GB


@dataclass(frozen=True, eq=False)
class EncodedPixels(Pixels):
    """Images held in memory as the content of PNG or JPEG files, and decoded on access; errors call them by `names`."""

    encoded: tuple[bytes, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.encoded)

    def __getitem__(self, index: int) -> Image.Image:
        try:
            return read_image(self.encoded[index])
        except UnreadableImageError as error:
            raise UnreadableImageError(self.names[index], error.reason) from error

    def select(self, indices: Indices) -> "EncodedPixels":
        return EncodedPixels(
            tuple(self.encoded[index] for index in indices), tuple(self.names[index] for index in indices)
        )


def read_face_pack(path: str | Path) -> FacePairs:
    """Read a pack of insightface, such as `lfw.bin`, `cfp_fp.bin` or `agedb_30.bin`, without running what it holds.

    A pack is a pickle of `(images, same)`, with two encoded images and one bool per pair; its folds are ten blocks of
    consecutive pairs. An image may also be a NumPy array of its bytes, and the flags one of bools. Anything but these,
    lists, tuples, bytes, integers and bools is refused.

    Args:
        path: The pack, of pickle protocol 2 to 5, written by Python 2 or 3.

    Raises:
        ValueError: If the file is missing, damaged, no pack, or asks for more than a pack needs.

    >>> import pickle, tempfile
    >>> path = Path(tempfile.mkdtemp(), "two.bin")
    >>> _ = path.write_bytes(pickle.dumps(([b"a", b"b", b"c", b"d"], [True, False])))
    >>> read_face_pack(path).same.tolist()
    [True, False]
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise ValueError(f"{path} has {size:,} bytes, but a pack has at most {_MAX_BYTES:,}.")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {describe(error)}.") from error
    try:
        data = unpickle(content)
    except Refused as error:
        raise ValueError(
            f"{path} is refused: {error}, but a pack needs no more than protocols 2 to 5 write for lists, tuples, "
            "bytes, integers, bools and NumPy arrays of one dimension of uint8 or bool; if you trust where it comes "
            "from, write it anew with each image as bytes and each flag as a bool, by protocol 2 or later."
        ) from None
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged or no pickle of protocol 2 to 5 ({describe(error)}): fetch it again."
        ) from error
    images, same = _checked(data, path)
    numbers: dict[bytes, int] = {}  # of the first image with each content
    for number, image in enumerate(images):
        numbers.setdefault(image, number)
    places = {image: place for place, image in enumerate(numbers)}
    indices = torch.tensor([places[image] for image in images])
    names = tuple(f"{path} (image {number}, counted from 0)" for number in numbers.values())
    blocks = torch.arange(len(same)).tensor_split(_FOLDS)
    folds = torch.cat([torch.full_like(block, fold) for fold, block in enumerate(blocks)])
    return FacePairs(EncodedPixels(tuple(numbers), names), indices[0::2], indices[1::2], torch.tensor(same), folds)


def _checked(data: object, path: Path) -> tuple[list[bytes], list[bool]]:
    same: Sequence[object]
    match data:
        case ([*images], [*same] | Array(Kind.BOOL, same)):
            pass
        case _:
            raise ValueError(f"{path} is no pack of insightface: it does not hold two lists, of images and of flags.")
    if not same or len(images) != 2 * len(same):
        raise ValueError(
            f"{path} has {len(images):,} images for {len(same):,} flags, but a pack has two images per flag, and at "
            "least one flag."
        )
    encoded: list[bytes | bytearray] = []
    for place, image in enumerate(images):
        content = image.content if isinstance(image, Array) and image.kind is Kind.UINT8 else image
        if not isinstance(content, bytes | bytearray):
            raise ValueError(
                f"{path}: image {place}, counted from 0, is {_name(image)}, but it must be the bytes of an image file."
            )
        encoded.append(content)
    for place, flag in enumerate(same):
        if not isinstance(flag, int) or flag not in (0, 1):
            raise ValueError(f"{path}: flag {place}, counted from 0, is {_name(flag)}, but it must be a bool.")
    # A bytearray is copied once, however often the file refers to it.
    copies = {identity: bytes(content) for identity, content in {id(content): content for content in encoded}.items()}
    return [copies[id(content)] for content in encoded], [bool(flag) for flag in same]


def _name(value: object) -> str:
    if isinstance(value, Array):
        return f"a NumPy array of {value.kind.name.lower()}"
    return str(value) if isinstance(value, int) else f"of type {type(value).__name__}"


@dataclass(frozen=True)
class VerificationSet:
    """A published set of pairs, in ten folds."""

    title: str
    pairs: int


VERIFICATION_SETS = {
    "lfw": VerificationSet("LFW", 6000),
    "cfp_fp": VerificationSet("CFP-FP", 7000),
    "agedb_30": VerificationSet("AgeDB-30", 6000),
    "calfw": VerificationSet("CALFW", 6000),
    "cplfw": VerificationSet("CPLFW", 6000),
}
"""The sets by name, in the order of the papers' tables; a pack is the file `NAME.bin`."""


def read_verification_set(name: str, folder: str | Path) -> tuple[FacePairs, tuple[str, ...]]:
    """Read a published set of pairs from its pack or, for LFW, from its images and its list of pairs.

    Args:
        name: One of `VERIFICATION_SETS`.
        folder: Holds `NAME.bin`, or for LFW `pairs.txt` and the images of a person in `lfw/PERSON`, all of which have
            the same ending.

    Raises:
        ValueError: If there is no set of that name, it is not in the folder, or it is damaged or refused.

    >>> read_verification_set("lfw", "faces_emore")
    Traceback (most recent call last):
        ...
    ValueError: lfw is not in faces_emore: there is no lfw.bin, and no pairs.txt with a folder lfw of images; ...
    """
    if name not in VERIFICATION_SETS:
        raise ValueError(f"{name!r} is no set of pairs that is known here: give {', '.join(VERIFICATION_SETS)}.")
    folder = Path(folder)
    pack, pairs_list, images = folder / f"{name}.bin", folder / "pairs.txt", folder / "lfw"
    if pack.exists():
        source, pairs = pack, read_face_pack(pack)
    elif name == "lfw" and pairs_list.exists() and images.is_dir():
        suffix = next((ending for ending in ENDINGS if any(images.glob(f"*/*_0001{ending}"))), ENDINGS[0])
        source, pairs = pairs_list, read_lfw_pairs(pairs_list, images, suffix=suffix)
    else:
        other = ", and no pairs.txt with a folder lfw of images" if name == "lfw" else ""
        raise ValueError(
            f"{name} is not in {folder}: there is no {pack.name}{other}; the packs come with the training sets of "
            f"{_PAGE}."
        )
    published = VERIFICATION_SETS[name]
    if len(pairs) == published.pairs:
        return pairs, ()
    return pairs, (
        f"{source} has {len(pairs):,} pairs, but {published.title} was published with {published.pairs:,}: its figures "
        "are not comparable.",
    )
