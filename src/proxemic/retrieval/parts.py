"""Resumable embedding: each finished part is a file in a working folder."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from proxemic.data import FilePixels, Preprocessing
from proxemic.data.rows import Rows
from proxemic.data.sources.listing import stamps_of
from proxemic.files import write_atomically
from proxemic.retrieval.embedder import Embedded, Embedder

_IMAGES = 1024  # pictures of a part, unless a batch has more
_FORMAT = 1
_UNREADABLE = "unreadable"


class Parts:
    """Pictures in parts of whole batches, so that an interrupted embedding has the batches of an uninterrupted one.

    The name of a part's file is a checksum of everything that its content depends on, above all names, sizes and times
    of its pictures: a finished part is reused by a command that wants the same, and by no other.
    """

    def __init__(self, folder: Path, embedder: Embedder, pictures: Rows, batch_size: int) -> None:
        self.folder, self.embedder, self.pictures, self.batch_size = folder, embedder, pictures, batch_size
        size = batch_size * max(1, _IMAGES // batch_size)
        self._ends = [0, *range(size, len(pictures), size), len(pictures)]
        common = repr((_FORMAT, embedder.checksum, _described(embedder), embedder.precision, batch_size))
        common += embedder.device.type
        stamps = stamps_of(pictures)
        self._paths = [
            folder / f"{hashlib.sha256(repr((common, stamps[first:last])).encode()).hexdigest()[:32]}.safetensors"
            for first, last in pairwise(self._ends)
        ]

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def digest(self) -> str:
        """A checksum of all pictures, the model and its settings."""
        return hashlib.sha256(repr([path.name for path in self._paths]).encode()).hexdigest()

    def count(self, number: int) -> int:
        """Count the pictures of a part."""
        return self._ends[number + 1] - self._ends[number]

    def missing(self) -> list[int]:
        """List the parts that are absent or damaged."""
        return [number for number in range(len(self)) if not self._is_there(number)]

    def _is_there(self, number: int) -> bool:
        try:
            with safe_open(self._paths[number], framework="numpy") as file:
                shapes = [file.get_slice(name).get_shape() for name in ("embeddings", "places")]
                unreadable = json.loads(file.metadata()[_UNREADABLE])
        except (OSError, SafetensorError, ValueError, KeyError, TypeError):
            return False
        (rows, dim), (places,) = shapes
        return dim == self.embedder.dim and rows == places == self.count(number) - len(unreadable)

    def embed(self, numbers: Sequence[int], workers: int, advance: Callable[[int], object]) -> None:
        """Embed parts in ascending order, and call `advance` with the number of pictures of each batch.

        Raises:
            ValueError: If an embedding is not finite.
            UserError: If a part cannot be written.
        """
        if not numbers:
            return
        chosen = [place for number in numbers for place in range(self._ends[number], self._ends[number + 1])]
        pictures = self.pictures if len(chosen) == len(self.pictures) else self.pictures.take(chosen)
        waiting, first, held = iter(numbers), 0, list[Embedded]()
        number = next(waiting)
        for batch in self.embedder.embed_readable(pictures.pixels, batch_size=self.batch_size, workers=workers):
            if not batch.embeddings.isfinite().all():
                place = batch.places[int((~batch.embeddings.isfinite().all(1)).nonzero()[0])]
                raise ValueError(
                    f"{pictures.names[place]}: the model's embedding has numbers that are not finite: leave it out, or "
                    "compute with --precision 32-true."
                )
            held.append(batch)
            advance(len(batch))
            if sum(map(len, held)) == self.count(number):
                self.write(number, _moved(Embedded.join(held), -first))
                first += self.count(number)
                number = next(waiting, -1)
                held.clear()

    def pictures_of(self, number: int) -> Rows:
        """Return the pictures of a part with absolute paths, as other machines need them."""
        chosen = self.pictures.take(range(self._ends[number], self._ends[number + 1]))
        pixels = chosen.pixels
        if isinstance(pixels, FilePixels):
            paths = [path.absolute() if isinstance(path, Path) else path for path in pixels.paths]
            pixels = FilePixels(paths, pixels.boxes)
        return replace(chosen, pixels=pixels)

    def write(self, number: int, part: Embedded) -> None:
        """Write a part, whose places count from its own first picture."""
        arrays = {"embeddings": part.embeddings.contiguous(), "places": torch.tensor(part.places, dtype=torch.int64)}
        with write_atomically(self._paths[number]) as temporary:
            safetensors.torch.save_file(arrays, temporary, {_UNREADABLE: json.dumps(part.unreadable)})

    def read(self, number: int) -> Embedded:
        """Read a part; its places count from the first picture of all parts."""
        with safe_open(self._paths[number], framework="pt") as file:
            unreadable = {int(place): why for place, why in json.loads(file.metadata()[_UNREADABLE]).items()}
            part = Embedded(file.get_tensor("embeddings"), file.get_tensor("places").tolist(), unreadable)
        return _moved(part, self._ends[number])

    def known(self) -> tuple[list[int], dict[int, str]]:
        """List the positions of all embedded pictures, and why others cannot be read, without reading embeddings."""
        places: list[int] = []
        unreadable: dict[int, str] = {}
        for number in range(len(self)):
            part = self.read(number)
            places += part.places
            unreadable |= part.unreadable
        return places, unreadable

    def chunks(self, rows: int) -> Iterator[Float32[np.ndarray, "rows dim"]]:
        """Yield all embeddings in order, in chunks of equal size; the last may be smaller."""
        held: list[np.ndarray] = []
        for number in range(len(self)):
            held.append(self.read(number).embeddings.numpy())
            while sum(map(len, held)) >= rows:
                joined = np.concatenate(held)
                yield joined[:rows]
                held = [joined[rows:]]
        if sum(map(len, held)):
            yield np.concatenate(held)

    def forget_unreadable(self) -> None:
        """Remove the parts with unreadable pictures, to embed them again: changes behind an address are not noticed."""
        for number, path in enumerate(self._paths):
            if self.read(number).unreadable:
                path.unlink()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _moved(part: Embedded, by: int) -> Embedded:
    """Shift the places of a part."""
    unreadable = {place + by: why for place, why in part.unreadable.items()}
    return Embedded(part.embeddings, [place + by for place in part.places], unreadable)


def _described(embedder: Embedder) -> str:
    """Describe the preprocessing as a text; a transform without a description gets a random one."""
    text = repr(embedder.transform)
    return text if isinstance(embedder.transform, Preprocessing) or " at 0x" not in text else os.urandom(16).hex()
