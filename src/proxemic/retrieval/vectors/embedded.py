"""Embeddings of those images of a sequence that can be read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float32, Int64

from proxemic.lazy import Tensor, torch


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings of the images at `places`, and the reasons, by place, why the others could not be read."""

    vectors: Float32[np.ndarray, "readable dim"]
    places: list[int]
    unreadable: dict[int, str] = field(default_factory=dict)
    known: int = 0
    """How many of the embeddings were in the cache."""
    engine: str | None = None
    """The engine that computed the others."""

    def __len__(self) -> int:
        return len(self.places) + len(self.unreadable)

    @property
    def embeddings(self) -> Float32[Tensor, "readable dim"]:
        """The vectors as a tensor, which shares their memory."""
        return torch.from_numpy(self.vectors)

    @classmethod
    def join(cls, parts: Sequence["Embedded"], dim: int) -> "Embedded":
        """Concatenate parts."""
        vectors = [part.vectors for part in parts if part.places] or [np.empty((0, dim), np.float32)]
        return cls(
            vectors[0] if len(vectors) == 1 else np.concatenate(vectors),
            [place for part in parts for place in part.places],
            {place: why for part in parts for place, why in part.unreadable.items()},
            sum(part.known for part in parts),
            next((part.engine for part in parts if part.engine), None),
        )

    def at(self, places: Int64[np.ndarray, " chosen"]) -> "Embedded":
        """Return the embeddings of the images at the given places."""
        unreadable = {int(places[place]): why for place, why in self.unreadable.items()}
        return replace(self, places=places[self.places].tolist(), unreadable=unreadable)

    def in_order(self) -> "Embedded":
        """Return the embeddings ordered by place."""
        if self.places == sorted(self.places):
            return self
        order = np.argsort(self.places, kind="stable")
        return replace(self, vectors=self.vectors[order], places=np.array(self.places)[order].tolist())
