"""Find duplicate images: the same pixels, or nearly the same look and nearly the same embedding."""

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float32, Int64
from PIL import Image
from torch import Tensor
from tqdm import tqdm

from proxemic.data.reading import cut_thin
from proxemic.metrics import Distance, pair_distances
from proxemic.retrieval.curation.scores import nearest_others

_SIDE, _LIGHT, _COLOUR = 32, 8, 3
_DETAIL = 64  # pixels per side: compression changes finer detail
LENGTH = _LIGHT**2 - 1 + 2 * _COLOUR**2
_FAINT = 1.0  # least standard deviation of the grey levels of an image with structure


def content_hash(image: Image.Image) -> bytes:
    """Hash the size and the decoded pixels of an image: lossless copies in other formats have the same hash.

    >>> picture = Image.new("L", (4, 3), 7)
    >>> content_hash(picture) == content_hash(picture.convert("RGB")) != content_hash(picture.resize((3, 4)))
    True
    """
    colours = image.convert("RGB")
    return hashlib.blake2b(b"%d %d " % colours.size + colours.tobytes(), digest_size=16).digest()


def signature(image: Image.Image) -> Float32[np.ndarray, " numbers"]:
    """Compute low frequencies, scaled to unit length, that recompression, resizing and brightening hardly change.

    As in the perceptual hash pHash, they come from the discrete cosine transform of the image at 32 by 32 pixels: the
    64 lowest of the luminance without its mean, and the 9 lowest of each chrominance, so that a shirt in two colours
    makes two signatures. They are compared by correlation, not as bits: in drawings and symmetric images, many are
    nearly 0, and rounding would decide their bits. An image without structure has zeros, which resemble nothing.

    >>> ramp = Image.linear_gradient("L")
    >>> round(float(signature(ramp) @ signature(ramp.resize((90, 70)).point(lambda grey: grey * 0.8))), 2)
    1.0
    """
    from scipy.fft import dctn  # a tenth of a second

    small = cut_thin(image).convert("YCbCr").resize((_SIDE, _SIDE), Image.Resampling.BILINEAR)
    planes = np.asarray(small, np.float32) - np.array([0, 128, 128], np.float32)
    frequencies: Any = dctn(planes, axes=(0, 1), norm="ortho")
    light, blue, red = np.moveaxis(frequencies, 2, 0)
    parts = [light[:_LIGHT, :_LIGHT].ravel()[1:], *(plane[:_COLOUR, :_COLOUR].ravel() for plane in (blue, red))]
    numbers = np.concatenate(parts)
    norm = np.linalg.norm(numbers)
    return numbers / norm if norm >= _FAINT * _SIDE else np.zeros_like(numbers)


def mirrored(signatures: Float32[np.ndarray, "rows numbers"]) -> Float32[np.ndarray, "rows numbers"]:
    """Return the signatures of the same images, mirrored left to right.

    Mirroring changes the sign of the frequencies that are odd from left to right.

    >>> ramp = Image.linear_gradient("L").rotate(30)
    >>> other = signature(ramp.transpose(Image.Transpose.FLIP_LEFT_RIGHT))
    >>> bool(np.allclose(mirrored(signature(ramp)[None])[0], other, atol=1e-3))
    True
    """
    return signatures * _MIRROR


def reduced(image: Image.Image) -> Image.Image:
    """Return a grey copy for `difference`, of at most 64 pixels in width and in height."""
    image = cut_thin(image)
    size = min(image.width, _DETAIL), min(image.height, _DETAIL)
    return image.convert("L").resize(size, Image.Resampling.BICUBIC)


def difference(first: Image.Image, second: Image.Image) -> float:
    """Compute 1 minus the correlation of two results of `reduced`, at three quarters of the smaller size.

    At the full smaller size, resampling the other image would count: on Glyphs that costs half of the recall.

    >>> ramp = Image.linear_gradient("L")
    >>> round(difference(reduced(ramp), reduced(ramp.resize((40, 40)))), 2)
    0.0
    """
    width, height = (max(1, round(0.75 * min(both))) for both in zip(first.size, second.size, strict=True))
    one, other = (
        np.asarray(value.resize((width, height), Image.Resampling.BICUBIC), dtype=np.float64).ravel()
        for value in (first, second)
    )
    one, other = one - one.mean(), other - other.mean()
    norms = np.sqrt((one @ one) * (other @ other))
    return max(0.0, 1 - float(one @ other / norms)) if norms > 0 else 1.0


_SIGNS = [np.tile((-1.0) ** np.arange(count), count) for count in (_LIGHT, _COLOUR, _COLOUR)]
_MIRROR = np.concatenate([_SIGNS[0][1:], *_SIGNS[1:]]).astype(np.float32)


ALIKE = 0.04  # most 1 - correlation of two signatures to compare their images
SAME = 0.016  # most `difference` of duplicates
OF_VECTORS = 0.001  # most distance of duplicate vectors, as a fraction of the median of random pairs
_PAIRS, _CELLS, _LISTED = 100_000, 2**25, 10

Kind = Literal["exact", "near", "mirrored"]


@dataclass(frozen=True)
class Match:
    """A row that repeats the row `of`; `look` is their `difference`, None for vectors."""

    row: int
    of: int
    kind: Kind
    look: float | None
    distance: float


def copies_of(hashes: Sequence[Hashable], order: Sequence[int]) -> Int64[Tensor, " rows"]:
    """Return, for each row, the first row in `order` with the same hash.

    >>> copies_of("abab", [3, 2, 1, 0]).tolist()
    [2, 3, 2, 3]
    """
    first: dict[Hashable, int] = {}
    for row in order:
        first.setdefault(hashes[row], row)
    return torch.tensor([first[digest] for digest in hashes], dtype=torch.int64)


def exact_matches(first: Int64[Tensor, " rows"]) -> list[Match]:
    """Return a match for each row that is a copy of an earlier one, by `copies_of`."""
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
    """Match each row with at most one earlier row in `order` that looks the same and has a near embedding.

    A match in another split is preferred, then the most similar one. For each row, `differ` compares the ten rows with
    the most similar signatures closely. The embedding alone does not suffice, because a network may map all images of a
    class to one point. Neither does the look: the distance of the two must also be below the median of random pairs.
    With `mirror`, rows are compared with the mirror images of others.
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
    begins = range(0, len(rows), step)
    for begin in tqdm(begins, "looking for copies", unit="block", leave=False, disable=None, delay=2):
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
    """Match each vector with at most one earlier vector that is nearly equal."""
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
    """Find groups of rows connected by matches, numbered from 0; rows without a match get -1.

    >>> groups_of([Match(1, 0, "exact", 0.0, 0.0), Match(4, 1, "near", 0.01, 0.1)], 5).tolist()
    [0, 0, -1, -1, 0]
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if not matches:
        return torch.full((rows,), -1)
    pairs = np.array([(match.row, match.of) for match in matches]).T
    _, group = connected_components(coo_array((np.ones(len(matches)), pairs), (rows, rows)), directed=False)
    several = np.bincount(group) > 1
    return torch.from_numpy(np.where(several, several.cumsum() - 1, -1)[group])


def _random_distances(embeddings: Float32[Tensor, "rows dim"], distance: Distance) -> Tensor:
    """Compute the distances of random pairs of different rows, with a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    count = min(_PAIRS, len(embeddings) ** 2)
    first = torch.randint(len(embeddings), (count,), generator=generator)
    second = (first + torch.randint(1, max(2, len(embeddings)), (count,), generator=generator)) % len(embeddings)
    return pair_distances(embeddings[first], embeddings[second], distance=distance)
