"""Vectors of many pictures, those that cannot be read left out."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float32
from torch import Tensor
from tqdm import tqdm

from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.pictures import Pictures


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings of the pictures at `places`, and why others could not be read, by their places."""

    embeddings: Float32[Tensor, "readable dim"]
    places: list[int]
    unreadable: dict[int, str] = field(default_factory=dict)


def embed_pictures(
    embedder: Embedder, pictures: Pictures, *, batch_size: int = 64, workers: int = 0, description: str = "embedding"
) -> Embedded:
    """Embed all pictures that can be read, in order, with a progress bar on terminals."""
    parts, places, unreadable = [torch.empty(0, embedder.dim)], [], {}
    with tqdm(total=len(pictures), desc=description, unit="image", leave=False, disable=None) as bar:
        for embeddings, kept, failures in embedder.embed_readable(
            pictures.pixels, batch_size=batch_size, workers=workers
        ):
            parts.append(embeddings)
            places += kept
            unreadable |= failures
            bar.update(len(kept) + len(failures))
    return Embedded(torch.cat(parts), places, unreadable)
