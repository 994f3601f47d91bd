"""Embedding that goes on where it was killed: in parts, each of which is a file in a working folder when it is done."""

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

_IMAGES = 1024  # of a part, or one batch where that is larger
_FORMAT = 1
_UNREADABLE = "unreadable"


class Parts:
    """The pictures in parts of whole batches, so that they are embedded in the batches in which all at once would be.

    The name of a part's file is a checksum of all that its content depends on, above all names, sizes and times of its
    pictures: what was embedded is found again by whoever wants the same, and by nobody else.
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
        """A checksum of all that is embedded, and how."""
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
        """Embed some parts, in ascending order; `advance` is told of each batch how many pictures it had.

        Raises:
            ValueError: If the model gives numbers that are not finite.
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
        """Return the pictures of a part, by paths from the root, as other machines need them."""
        chosen = self.pictures.take(range(self._ends[number], self._ends[number + 1]))
        pixels = chosen.pixels
        if isinstance(pixels, FilePixels):
            paths = [path.absolute() if isinstance(path, Path) else path for path in pixels.paths]
            pixels = FilePixels(paths, pixels.boxes)
        return replace(chosen, pixels=pixels)

    def write(self, number: int, part: Embedded) -> None:
        """Keep a part, whose places count from its own first picture."""
        arrays = {"embeddings": part.embeddings.contiguous(), "places": torch.tensor(part.places, dtype=torch.int64)}
        with write_atomically(self._paths[number]) as temporary:
            safetensors.torch.save_file(arrays, temporary, {_UNREADABLE: json.dumps(part.unreadable)})

    def read(self, number: int) -> Embedded:
        """Read a part that exists; places count from the first picture of all."""
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
        """Remove the parts of which not all could be read, to try again: behind an address, a change is not seen."""
        for number, path in enumerate(self._paths):
            if self.read(number).unreadable:
                path.unlink()

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _moved(part: Embedded, by: int) -> Embedded:
    """Count the places of a part from another picture."""
    unreadable = {place + by: why for place, why in part.unreadable.items()}
    return Embedded(part.embeddings, [place + by for place in part.places], unreadable)


def _described(embedder: Embedder) -> str:
    """Describe how pictures are prepared; a transform without a description never equals another one."""
    text = repr(embedder.transform)
    return text if isinstance(embedder.transform, Preprocessing) or " at 0x" not in text else os.urandom(16).hex()
