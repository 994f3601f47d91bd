"""RecordIO files of MXNet: many encoded images with labels in a `.rec` file, and the offset of each in an `.idx` file.

A record is the word 0xced7230a, a word of 3 bits for the kind of part and 29 for its length, the bytes, and zeros up to
a multiple of 4. Kind 0 is a whole record. If the bytes contain 0xced7230a at a multiple of 4, as happens in a few of
millions of images, the writer omits it and begins another part: 1 is the first of several parts, 2 a middle one, 3 the
last. The bytes begin with a header: a count of labels, a label, and an unused number of 128 bits. If the count is above
0, that number of labels follows, and the header's label is ignored. The rest is the image. Every number is
little-endian, every label a float32.

Source: dmlc-core, `include/dmlc/recordio.h` and `src/recordio.cc`; MXNet, `python/mxnet/recordio.py`.
"""

import codecs
import io
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int64
from tqdm import tqdm

from proxemic.data.pixels import EncodedPixels
from proxemic.data.reading import describe

_MAGIC = 0xCED7230A
_FRAME = struct.Struct("<II")  # magic, kind and length
_HEADER = struct.Struct("<IfQQ")  # count of labels, label, number
_LENGTH = 2**29 - 1  # the bits of the length
_WHOLE, _FIRST, _MIDDLE, _LAST = range(4)
_TOGETHER = 2**17  # records between two steps of the progress bar


@dataclass(frozen=True, eq=False)
class RecordPixels(EncodedPixels):
    """Images in a RecordIO file, decoded on access; the file is not kept open, so any process can read it.

    The `.idx` file gives each record a key; `starts` and `ends` are the byte positions of each record.
    """

    per_image = ("keys", "starts", "ends")
    path: Path
    keys: Int64[np.ndarray, " images"]
    starts: Int64[np.ndarray, " images"]
    ends: Int64[np.ndarray, " images"]

    def encoded(self, index: int) -> bytes:
        start, length = int(self.starts[index]), int(self.ends[index] - self.starts[index])
        # Unbuffered, `read` is one system call, which may return less; a buffer would read more than is needed.
        with self.path.open("rb", buffering=length) as file:
            file.seek(start)
            content = _content(file.read(length))
        return content[_HEADER.size + 4 * _HEADER.unpack_from(content)[0] :]

    def place(self, index: int) -> str:
        return f"{self.path}, record {self.keys[index]},"


@dataclass(frozen=True, eq=False)
class RecordIndex:
    """The records of a file in the order of their keys, with their first two labels; NaN for a missing label.

    `labels_follow` tells which records have labels after the header; records without an image do.
    """

    pixels: RecordPixels
    labels: Float32[np.ndarray, "records 2"]
    labels_follow: np.ndarray

    @property
    def bare(self) -> np.ndarray:
        """Whether each record has two labels and no image, as the records of identities do."""
        return self.pixels.ends - self.pixels.starts == _FRAME.size + _HEADER.size + 8


def read_record_index(path: Path) -> RecordIndex:
    """Read the `.idx` of a RecordIO file (lines of key, tab, offset) and the header of every record, but no image.

    The records must fill the file without gaps; this detects truncated files and an `.idx` of another file.
    """
    try:
        size = path.stat().st_size
        words = np.memmap(path, "<u4", "r", shape=(size // 4,)) if size >= 4 else np.empty(0, "<u4")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {describe(error)}.") from error
    keys, starts = _read_offsets(path.with_suffix(".idx"))
    try:
        if size % 4:
            raise ValueError(f"it has {size:,} bytes, but a RecordIO file has a multiple of 4")
        if starts[0] != 0 or starts[-1] + _FRAME.size + _HEADER.size > size:
            raise ValueError(f"its index goes from byte {starts[0]:,} to {starts[-1]:,}, but it has {size:,}, from 0")
        ends = np.append(starts[1:], size)
        labels, labels_follow = np.full((len(keys), 2), np.nan, np.float32), np.zeros(len(keys), bool)
        for first in tqdm(range(0, len(keys), _TOGETHER), f"reading {path.name}", leave=False, disable=None):
            chunk = slice(first, first + _TOGETHER)
            part = RecordPixels(path, keys[chunk], starts[chunk], ends[chunk])
            _read_headers(part, words, labels[chunk], labels_follow[chunk])
    except ValueError as error:
        raise ValueError(
            f"{path} is damaged, cut short or does not match its .idx: {error}; get both files again."
        ) from error
    order = np.argsort(keys, kind="stable")
    pixels = RecordPixels(path, keys[order], starts[order], ends[order])
    return RecordIndex(pixels, labels[order], labels_follow[order])


def _read_offsets(path: Path) -> tuple[Int64[np.ndarray, " records"], Int64[np.ndarray, " records"]]:
    try:
        content = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        if not content.strip():
            raise ValueError("it is empty")
        table = np.loadtxt(io.BytesIO(content), np.int64, comments=None, ndmin=2, encoding="ascii")
        if table.shape[1] != 2:
            raise ValueError(f"its lines have {table.shape[1]} numbers")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {describe(error)}; it belongs next to the .rec file.") from error
    except ValueError as error:
        why = str(error).partition(";")[0].rstrip(".")
        raise ValueError(f"{path} is not an index of records, lines of key, tab, offset: {why}.") from error
    keys, starts = table[np.argsort(table[:, 1], kind="stable")].T.copy()
    if starts[0] < 0 or (starts % 4).any() or not (np.diff(starts) > 0).all():
        raise ValueError(f"{path} is damaged: its offsets must be multiples of 4 from 0, none of them twice.")
    if keys.min() < 0 or len(np.unique(keys)) < len(keys):
        raise ValueError(f"{path} is damaged: its keys must be numbers from 0, none of them twice.")
    return keys, starts


def _read_headers(
    records: RecordPixels, words: np.ndarray, labels: Float32[np.ndarray, "chunk 2"], labels_follow: np.ndarray
) -> None:
    """Check the frames of records, and write their labels into the given arrays."""
    starts, ends = records.starts, records.ends
    # The smallest record has eight words; labels are the two after it, which the last record may lack.
    places = np.minimum(starts[:, None] // 4 + np.arange(10), len(words) - 1)
    heads = np.asarray(words[places])
    kind, length, count = heads[:, 1] >> 29, (heads[:, 1] & _LENGTH).astype(np.int64), heads[:, 2].astype(np.int64)
    floats = np.ascontiguousarray(heads).view("<f4")
    labels_follow[:] = count > 0
    labels[:, 0] = np.where(labels_follow, floats[:, 8], floats[:, 3])
    labels[:, 1] = np.where(count > 1, floats[:, 9], np.nan)
    whole = (heads[:, 0] == _MAGIC) & (kind == _WHOLE) & (starts + _FRAME.size + (length + 3) // 4 * 4 == ends)
    sound = whole & (length >= _HEADER.size + 4 * count)
    for place in (~sound).nonzero()[0].tolist():  # few bytes, or an error at once
        try:
            content = _content(words[starts[place] // 4 : ends[place] // 4].tobytes())
            count, label, *_ = _HEADER.unpack_from(content)
            stored = struct.unpack_from(f"<{min(count, 2)}f", content, _HEADER.size) if count else (label,)
            if len(content) < _HEADER.size + 4 * count:
                raise ValueError("it is shorter than its labels")
        except (ValueError, struct.error) as error:
            why = str(error) if isinstance(error, ValueError) else "it is too short"
            raise ValueError(f"record {records.keys[place]} at byte {starts[place]:,} cannot be read: {why}") from error
        labels_follow[place], labels[place] = count > 0, (*stored, np.nan)[:2]


def _content(raw: bytes) -> bytes:
    """Return the content of the single record in the given bytes, with its parts joined."""
    parts: list[bytes] = []
    place, kind = 0, _FIRST
    while kind in (_FIRST, _MIDDLE):
        if len(raw) < place + _FRAME.size:
            raise ValueError("its last part is missing" if parts else "it is too short")
        magic, word = _FRAME.unpack_from(raw, place)
        kind, length = word >> 29, word & _LENGTH
        if magic != _MAGIC or kind not in ((_MIDDLE, _LAST) if parts else (_WHOLE, _FIRST)):
            raise ValueError("a part of it does not begin with RecordIO's magic number")
        place += _FRAME.size
        parts.append(raw[place : place + length])
        place += (length + 3) // 4 * 4
    if place != len(raw):
        raise ValueError(f"it has {place:,} bytes, but the next begins, or the file ends, after {len(raw):,}")
    return _MAGIC.to_bytes(4, "little").join(parts)
