"""Vectors of many pictures, those that cannot be read left out."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float32
from torch import Tensor
from tqdm import tqdm

from proxemic.data import ImageSet
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.pictures import Pictures


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings of the pictures at `places`, and why others could not be read, by their places."""

    embeddings: Float32[Tensor, "readable dim"]
    places: list[int]
    unreadable: dict[int, str] = field(default_factory=dict)


def embed_pictures(
    embedder: Embedder,
    pictures: Pictures | ImageSet,
    *,
    batch_size: int = 64,
    workers: int = 0,
    description: str = "embedding",
) -> Embedded:
    """Embed all pictures that can be read, in order, with a progress bar on terminals."""
    parts = [*embed_parts(embedder, pictures, batch_size=batch_size, workers=workers, description=description)]
    return Embedded(
        torch.cat([torch.empty(0, embedder.dim), *(part.embeddings for part in parts)]),
        [place for part in parts for place in part.places],
        {place: why for part in parts for place, why in part.unreadable.items()},
    )


def embed_parts(
    embedder: Embedder,
    pictures: Pictures | ImageSet,
    *,
    at_least: int = 1,
    batch_size: int = 64,
    workers: int = 0,
    description: str = "embedding",
) -> Iterator[Embedded]:
    """The same in parts of `at_least` pictures, but for the last, so that each can be kept when it is done."""
    parts: list[Tensor] = []
    places: list[int] = []
    unreadable: dict[int, str] = {}

    def part() -> Embedded:
        made = Embedded(torch.cat([torch.empty(0, embedder.dim), *parts]), [*places], {**unreadable})
        for each in (parts, places, unreadable):
            each.clear()
        return made

    with tqdm(total=len(pictures), desc=description, unit="image", leave=False, disable=None) as bar:
        for embeddings, kept, failures in embedder.embed_readable(
            pictures.pixels, batch_size=batch_size, workers=workers
        ):
            parts.append(embeddings)
            places += kept
            unreadable |= failures
            bar.update(len(kept) + len(failures))
            if len(places) + len(unreadable) >= at_least:
                yield part()
    if places or unreadable:
        yield part()
