"""How training vectors are varied."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from proxemic.data.vectors.stores import Vectors

Fetch = Callable[[Sequence[int], Sequence[int]], Float32[Tensor, "batch dim"]]


@dataclass(frozen=True)
class VectorAugmentation:
    r"""How training vectors are varied, each by a seed of its own; every field at its default does nothing.

    $$x' = \lambda x + (1 - \lambda) \tilde x + \text{noise} \cdot \lVert x \rVert \, \epsilon / \sqrt{D}$$

    with another vector x̃ of the same class, λ drawn from Beta(mix, mix), and ε from a standard normal distribution.

    Args:
        noise: Norm of the noise, as a part of that of the vector that it is added to; 0 or more.
        mix: Parameter of the Beta distribution, above 0: at 1 all mixtures are equally likely, towards 0 one of the two
            vectors prevails; null does not mix.

    Raises:
        ValueError: If a value is out of its range.

    >>> from proxemic.data.vectors import VectorArray
    >>> vectors = Vectors(VectorArray(torch.tensor([[0.0], [1.0], [5.0]])))
    >>> fetch = VectorAugmentation(mix=1.0).training(vectors, torch.tensor([0, 0, 1]))
    >>> mixed = fetch([0, 1, 2], [7, 8, 9])
    >>> bool(0 < mixed[0] < 1), bool(0 < mixed[1] < 1), float(mixed[2])
    (True, True, 5.0)
    """

    noise: float = 0.0
    mix: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.noise < math.inf:
            raise ValueError(f"vectors.noise is {self.noise}, but must be a number of 0 or more, for example 0.1.")
        if self.mix is not None and not 0 < self.mix < math.inf:
            raise ValueError(f"vectors.mix is {self.mix}, but must be a number above 0, or null for no mixing.")

    def training(self, vectors: Vectors, labels: Int64[Tensor, " vectors"]) -> Fetch:
        """Make the function that reads the vectors of a batch by their indices, varied by a seed of each."""
        partner = None if self.mix is None else _Partners(labels)

        def fetch(indices: Sequence[int], seeds: Sequence[int]) -> Float32[Tensor, "batch dim"]:
            batch = vectors.fetch(indices, seeds)
            if self.mix is not None and partner is not None:
                generators = [random.Random(seed) for seed in seeds]
                share = torch.tensor([generator.betavariate(self.mix, self.mix) for generator in generators])
                others = [partner.draw(index, each) for index, each in zip(indices, generators, strict=True)]
                batch = torch.lerp(vectors.fetch(others, seeds), batch, share[:, None])
            if self.noise:
                batch = batch + self.noise / math.sqrt(vectors.dim) * batch.norm(dim=1, keepdim=True) * _normal(
                    seeds, vectors.dim
                )
            return batch

        return fetch


def _normal(seeds: Sequence[int], dim: int) -> Float32[Tensor, "batch dim"]:
    """A row of standard normal numbers for each seed."""
    generator, noise = torch.Generator(), torch.empty(len(seeds), dim)
    for row, seed in zip(noise, seeds, strict=True):
        row.normal_(generator=generator.manual_seed(seed))
    return noise


class _Partners:
    """Another vector of the same class for each, or itself where it is alone."""

    def __init__(self, labels: Int64[Tensor, " vectors"]) -> None:
        self._labels = labels.numpy()
        self._by_class = self._labels.argsort(kind="stable")
        self._ends = np.bincount(self._labels).cumsum()

    def draw(self, index: int, generator: random.Random) -> int:
        label = self._labels[index]
        first, end = int(self._ends[label - 1]) if label else 0, int(self._ends[label])
        if end - first == 1:
            return index
        drawn = first + generator.randrange(end - first - 1)
        # The last one stands for the vector itself.
        other = int(self._by_class[drawn])
        return int(self._by_class[end - 1]) if other == index else other
