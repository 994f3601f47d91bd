"""Pictures that are there twice: the same pixels, or nearly the same look and the same place in the embedding."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from proxemic.metrics import Distance, pair_distances
from proxemic.retrieval.curation.signatures import mirrored
from proxemic.retrieval.curation.suspects import nearest_others

ALIKE = 0.04  # 1 - correlation of the signatures of pictures that are compared
SAME = 0.016  # their `difference` where they are duplicates
OF_VECTORS = 0.001  # of the median distance of random pairs, where there are vectors alone
_PAIRS, _CELLS, _LISTED = 100_000, 2**25, 10

Kind = Literal["exact", "near", "mirrored"]


@dataclass(frozen=True)
class Match:
    """A row that repeats another, `of`; `look` is their `difference`, None of vectors."""

    row: int
    of: int
    kind: Kind
    look: float | None
    distance: float


def copies_of(hashes: Sequence[Hashable], order: Sequence[int]) -> Int64[Tensor, " rows"]:
    """For each row the first one in `order` of the same hash.

    >>> copies_of("abab", [3, 2, 1, 0]).tolist()
    [2, 3, 2, 3]
    """
    first: dict[Hashable, int] = {}
    for row in order:
        first.setdefault(hashes[row], row)
    return torch.tensor([first[each] for each in hashes], dtype=torch.int64)


def exact_matches(first: Int64[Tensor, " rows"]) -> list[Match]:
    """A match for each row that is not the first of `copies_of`."""
    return [Match(row, of, "exact", 0.0, 0.0) for row, of in enumerate(first.tolist()) if row != of]


def near_matches(
    signatures: Float32[np.ndarray, "rows numbers"],
    embeddings: Float32[Tensor, "rows dim"],
    differ: Callable[[int, int], float],
    order: Sequence[int],
    splits: Sequence[str | None],
    *,
    distance: Distance = "cosine",
    mirror: bool = False,
) -> list[Match]:
    """Match each row with at most one earlier one in `order` that looks the same and is near in the embedding.

    Of several it is one of another split where there is one, and among these the most similar. Of the pairs whose
    signatures are alike, the ten most alike of each row are looked at closely (`differ`). The embedding alone would not
    do: it may let all pictures of a class coincide. Nor would the look: the two must also be nearer than half of all
    pairs are. With `mirror`, rows are compared with the mirror images of others.
    """
    if len(embeddings) < 2:
        return []
    limit = float(_random_distances(embeddings, distance).median())
    rows = torch.as_tensor(order)
    ordered = torch.from_numpy(signatures)[rows]
    looks = torch.from_numpy(mirrored(signatures))[rows] if mirror else ordered
    kind: Kind = "mirrored" if mirror else "near"
    matches: list[Match] = []
    step = max(1, _CELLS // len(rows))
    for begin in range(0, len(rows), step):
        part = looks[begin : begin + step]
        alike = part @ ordered[: begin + len(part)].T
        alike[torch.arange(alike.shape[1]) >= torch.arange(begin, begin + len(part))[:, None]] = -1.0
        correlation, before = alike.topk(min(_LISTED, alike.shape[1]), dim=1)
        later, at = (correlation >= 1 - ALIKE).nonzero().unbind(1)
        row, of = rows[later + begin], rows[before[later, at]]
        near = pair_distances(embeddings[row], embeddings[of], distance=distance) if len(row) else torch.empty(0)
        best: dict[int, tuple[bool, float, int, float]] = {}
        for one, other, far in zip(row.tolist(), of.tolist(), near.tolist(), strict=True):
            if far <= limit and (look := differ(one, other)) <= SAME:
                candidate = (splits[one] == splits[other], look, other, far)
                best[one] = min(best.get(one, candidate), candidate)
        matches += [Match(one, other, kind, look, far) for one, (_, look, other, far) in best.items()]
    return matches


def near_vectors(embeddings: Float32[Tensor, "rows dim"], *, distance: Distance = "cosine") -> list[Match]:
    """For each vector at most one match with an earlier one that nearly equals it."""
    if len(embeddings) < 2:
        return []
    limit = OF_VECTORS * float(_random_distances(embeddings, distance).median())
    distances, places = nearest_others(embeddings, min(_LISTED, len(embeddings) - 1), distance)
    earlier = (places < torch.arange(len(embeddings))[:, None]) & (distances <= limit)
    return [
        Match(
            row, int(places[row, at]), "exact" if distances[row, at] == 0 else "near", None, float(distances[row, at])
        )
        for row, at in enumerate(earlier.int().argmax(1).tolist())
        if earlier[row, at]
    ]


def groups_of(matches: Sequence[Match], rows: int) -> Int64[Tensor, " rows"]:
    """Number what is connected by matches from 0; -1 for rows without any.

    >>> groups_of([Match(1, 0, "exact", 0.0, 0.0), Match(4, 1, "near", 0.01, 0.1)], 5).tolist()
    [0, 0, -1, -1, 0]
    """
    root = [*range(rows)]

    def find(row: int) -> int:
        while root[row] != row:
            root[row] = row = root[root[row]]
        return row

    for match in matches:
        one, other = sorted((find(match.row), find(match.of)))
        root[other] = one
    roots = torch.tensor([find(row) for row in range(rows)], dtype=torch.int64)
    known, number, counts = roots.unique(return_inverse=True, return_counts=True)
    several = counts > 1
    numbers = torch.where(several, several.cumsum(0) - 1, -1)
    return numbers[number] if len(known) else roots


def _random_distances(embeddings: Float32[Tensor, "rows dim"], distance: Distance) -> Tensor:
    """Distances of random pairs of different rows, always the same."""
    generator = torch.Generator().manual_seed(0)
    count = min(_PAIRS, len(embeddings) ** 2)
    first = torch.randint(len(embeddings), (count,), generator=generator)
    second = (first + torch.randint(1, max(2, len(embeddings)), (count,), generator=generator)) % len(embeddings)
    return pair_distances(embeddings[first], embeddings[second], distance=distance)
