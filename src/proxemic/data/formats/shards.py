"""Samples in tar shards of WebDataset: an index of the position of each image, and reading by this index."""

import hashlib
import io
import json
import os
import tarfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import platformdirs
from jaxtyping import Int64
from tqdm import tqdm

from proxemic.data.pixels import EncodedPixels
from proxemic.data.reading import describe
from proxemic.files import readable, write_atomically
from proxemic.image_formats import ENDINGS

_VERSION = 1  # of the content of an index
_LARGEST_LABEL = 2**20  # bytes of a file with a label; JSON files may contain more than the class
_LONGEST_HEADER = 2**16  # bytes of a long name or of a POSIX header of one file
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zX": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_IMAGES = tuple(ending.removeprefix(".") for ending in ENDINGS)


@dataclass(frozen=True, eq=False)
class ShardPixels(EncodedPixels):
    """Images at offsets in tar files, read and decoded on access; no file is kept open, so any process can read."""

    per_image = ("shard", "offsets", "sizes")
    shards: tuple[Path, ...]
    shard: Int64[np.ndarray, " images"]
    offsets: Int64[np.ndarray, " images"]
    sizes: Int64[np.ndarray, " images"]

    def encoded(self, index: int) -> bytes:
        # Unbuffered: a buffer would read more than is needed.
        with self.shards[self.shard[index]].open("rb", buffering=0) as file:
            file.seek(int(self.offsets[index]))
            return file.read(int(self.sizes[index]))

    def place(self, index: int) -> str:
        return f"{readable(self.shards[self.shard[index]])}, byte {self.offsets[index]:,},"


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """Samples with an image and a label; number and first keys of the samples without one of them."""

    pixels: ShardPixels
    labels: Int64[np.ndarray, " images"]
    class_names: tuple[str, ...]
    without: int
    examples: tuple[str, ...]


def index_shards(shards: Sequence[Path], image: str | None, label: str, folder: Path | None = None) -> ShardIndex:
    """Find every sample of tar shards; the index is cached until the size or time of a shard changes.

    `image` and `label` are the endings of file names, as in `WebDatasetShards`; `folder` holds the indices, by default
    in the user's cache folder. `ValueError` if a shard is compressed, damaged, missing or not a tar file, or a label is
    malformed.
    """
    digest = hashlib.sha256(json.dumps([_VERSION, image, label]).encode())
    for shard in shards:
        try:
            facts = shard.stat()
        except OSError as error:
            raise ValueError(f"{shard} cannot be read: {describe(error)}.") from error
        digest.update(b"\0%s\0%d %d" % (os.fsencode(shard.absolute()), facts.st_size, facts.st_mtime_ns))
    path = Path(folder or platformdirs.user_cache_path("proxemic") / "shards") / f"{digest.hexdigest()[:16]}.npz"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            names = ("labels", *ShardPixels.per_image)
            labels, *places = (kept[name].astype(np.int64, casting="safe") for name in names)
            said = json.loads(bytes(kept["said"]))
            return ShardIndex(
                ShardPixels(tuple(shards), *places),
                labels,
                tuple(said["class_names"]),
                int(said["without"]),
                tuple(said["examples"]),
            )
    except (OSError, EOFError, ValueError, KeyError, TypeError, BadZipFile):
        pass  # the file is missing or damaged
    index = _build(shards, image, label)
    said = {"class_names": index.class_names, "without": index.without, "examples": index.examples}
    arrays = {name: getattr(index.pixels, name) for name in ShardPixels.per_image}
    with write_atomically(path) as temporary, temporary.open("wb") as file:
        np.savez(file, labels=index.labels, said=np.frombuffer(json.dumps(said).encode(), np.uint8), **arrays)
    return index


def _build(shards: Sequence[Path], image: str | None, label: str) -> ShardIndex:
    places, names = array("q"), dict[str, int]()
    without, examples = 0, list[str]()
    total = sum(shard.stat().st_size for shard in shards)
    with tqdm(desc="indexing shards", total=total, unit="B", unit_scale=True, leave=False, disable=None) as bar:
        for number, shard in enumerate(shards):
            try:
                for key, found, text in _samples(shard, image, label):
                    if found is None or text is None:
                        without += 1
                        examples += [f"{key} in {shard.name}"] if len(examples) < 4 else []
                    else:
                        place = names.setdefault(text, len(names))
                        places.extend((number, found.offset_data, found.size, place))
            except OSError as error:
                raise ValueError(f"{shard} cannot be read: {describe(error)}.") from error
            bar.update(shard.stat().st_size)
    shard_numbers, offsets, sizes, labels = np.array(places, np.int64).reshape(-1, 4).T.copy()
    # As everywhere, classes are numbered in the sorted order of their text.
    class_names = sorted(names)
    rank = np.empty(len(names), np.int64)
    rank[[names[name] for name in class_names]] = np.arange(len(names))
    pixels = ShardPixels(tuple(shards), shard_numbers, offsets, sizes)
    return ShardIndex(pixels, rank[labels], tuple(class_names), without, tuple(examples))


class _Headers(io.FileIO):
    """A tar file that refuses to read long headers; tarfile would read a name of any length into memory."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_HEADER:
            raise ValueError(f"it has a name of {size:,} bytes, but at most {_LONGEST_HEADER:,} are read")
        return super().read(size)


def read_members(path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of a tar in their order; nothing is unpacked.

    `ValueError` if the file is compressed, damaged, cut short, or not a tar.
    """
    with path.open("rb") as file:
        head, size = file.read(4), os.fstat(file.fileno()).st_size
    if compressed := next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), None):
        raise ValueError(f"{path} is compressed by {compressed}, in which no image can be found: unpack it to a .tar.")
    with _Headers(path) as file:
        try:
            with tarfile.open(fileobj=file, mode="r:", encoding="utf-8") as tar:
                while (member := tar.next()) is not None:
                    tar.members.clear()  # type: ignore[attr-defined]  # there may be millions
                    if member.size < 0 or (member.isreg() and member.offset_data + member.size > size):
                        raise ValueError(f"{member.name!r} has {member.size:,} bytes, but the file has {size:,}")
                    if member.issparse():
                        raise ValueError("it has a sparse file, as no images are")
                    if member.isreg():
                        yield member
                end = tar.offset
        # For a damaged header, tarfile may raise any error of its parser.
        except (tarfile.TarError, ValueError, OverflowError, RecursionError, AttributeError, IndexError) as error:
            raise ValueError(f"{path} is not a tar, or damaged ({error}): get it again.") from error
        file.seek(end)
        if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):  # tarfile treats a damaged header as the end
            raise ValueError(f"{path} is cut short or damaged at byte {end:,}: get it again.")


def _samples(shard: Path, image: str | None, label: str) -> Iterator[tuple[str, tarfile.TarInfo | None, str | None]]:
    """Yield the key, image and label of each sample: neighbours whose names are the same up to the first dot."""
    endings = _IMAGES if image is None else (image.lower(),)
    label_ending, _, value = label.partition(".") if label.startswith("json.") else (label.lower(), "", "")
    key, found, text, dotted = "", None, None, ""
    for member in read_members(shard):
        folder, _, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if not stem or not dot:
            continue  # systems write such hidden files, as macOS does `._1.jpg`
        if (new := f"{folder}/{stem}") != key:
            if key:
                yield key.removeprefix("/") + dotted, found, text
            key, found, text, dotted = new, None, None, ""
        ending = ending.lower()
        if ending in endings:
            if found is not None:
                raise ValueError(
                    f"{shard}: the sample {readable(key.removeprefix('/'))} has two images: name the ending of one, as "
                    "--data.image left.jpg."
                )
            found = member
        elif ending == label_ending:
            text = _read_label(shard, member, value)
        elif ending.rpartition(".")[2] in endings:
            dotted = f" (as {readable(name)} is called before its first dot)"
    if key:
        yield key.removeprefix("/") + dotted, found, text


def _read_label(shard: Path, member: tarfile.TarInfo, key: str) -> str | None:
    name = f"{shard}: {readable(member.name)}"
    if member.size > _LARGEST_LABEL:
        raise ValueError(f"{name} has {member.size:,} bytes, but a label may have {_LARGEST_LABEL:,}.")
    with shard.open("rb") as file:
        file.seek(member.offset_data)
        content = file.read(member.size)
    try:
        text = content.decode("utf-8")
        value = json.loads(text)[key] if key else text.strip()
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        why = f"it has no {key}" if isinstance(error, KeyError | TypeError) else f"it is no {'JSON' if key else 'text'}"
        raise ValueError(f"{name} holds no label: {why}.") from error
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"{name} holds no label: its {key} is {str(value)[:40]}, but must be text or a whole number.")
    return str(value).strip() or None
