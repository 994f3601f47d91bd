"""The nearest items in float32, with a bound on the error of their distances.

Both distances are ranked by the squared Euclidean distance v = |q - g|²; for the cosine distance, of unit vectors.
Subtracting the mean embedding changes no difference, but makes the products and so their rounding errors smaller.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float32, Float64, Int64, Shaped
from torch import Tensor

from proxemic.metrics.exact import Distance, ExactRows
from proxemic.precision import matmul_precision

_TILE = 2**24  # scores held at once: 64 MB


@dataclass(frozen=True)
class Shortlist:
    """The k gallery items with the smallest v for each query, nearest first.

    `values` are scaled v, infinite for excluded items. Two items of a query are in the right order, also as float32
    distances, if their values differ by more than `uncertainty`. The v of an item that is not listed is at least the
    last value less half of `uncertainty`.
    """

    values: Float64[Tensor, "queries k"]
    indices: Int64[Tensor, "queries k"]
    uncertainty: Float64[Tensor, "queries"]

    def certain(self, k: int, gallery: int) -> Bool[Tensor, "queries"]:
        """Return for each query whether no unlisted item can be among the first k."""
        if self.values.shape[1] == gallery:
            return torch.ones_like(self.uncertainty, dtype=torch.bool)
        # A list that ends with an excluded item contains all others.
        return self.values[:, -1].isinf() | (self.values[:, -1] - self.values[:, k - 1] > self.uncertainty)


class ShortlistSearch:
    """Search over tiles of queries and gallery that keeps a running list of the nearest items.

    Pass the same object as `queries` and `gallery` if the queries search themselves.
    """

    def __init__(self, queries: ExactRows, gallery: ExactRows, distance: Distance) -> None:
        self.queries, self.gallery, self.distance = queries, gallery, distance
        total = sum(self._points(gallery, part).sum(0) for part in gallery.parts())
        self._mean = total / len(gallery)
        self._scale = 1.0
        largest = [self._largest(gallery), 0.0 if queries is gallery else self._largest(queries)]
        # A power of two that keeps sums of squares far from the limits of float32.
        self._scale = 2.0 ** -math.frexp(max(largest))[1]
        self._reach = largest[0] * self._scale
        self._flat = torch.empty_like(gallery.rows)
        self._heights = torch.empty_like(gallery.squares)
        for part in gallery.parts():
            self._flat[part], self._heights[part] = self._flatten(gallery, part)
        self._bias = self._heights.neg().float()
        self._buffer = torch.empty(0, device=self._flat.device)

    def nearest(
        self,
        rows: Int64[Tensor, "queries"],
        k: int,
        itself: Int64[Tensor, "queries"] | None,
        sequences: tuple[Int64[Tensor, "queries"], Int64[Tensor, "gallery"]] | None = None,
    ) -> Shortlist:
        """List the k nearest gallery items; the query itself and its sequence come last."""
        flat, heights = self._flatten(self.queries, rows)
        width = min(max(1, _TILE // len(rows)), len(self._flat))
        if len(self._buffer) < len(rows) * width:
            self._buffer = flat.new_empty(len(rows) * width)
        scores = flat.new_empty(len(rows), 0)
        indices = torch.empty_like(scores, dtype=torch.int64)
        with matmul_precision("ieee"):
            for start in range(0, len(self._flat), width):
                part = slice(start, min(start + width, len(self._flat)))
                tile = self._buffer[: len(rows) * (part.stop - start)].view(len(rows), -1)
                torch.addmm(self._bias[part], flat, self._flat[part].T, out=tile)
                if itself is not None:
                    excluded = ((itself >= start) & (itself < part.stop)).nonzero().squeeze(1)
                    tile[excluded, itself[excluded] - start] = -torch.inf
                if sequences is not None:
                    tile.masked_fill_(sequences[0][:, None] == sequences[1][part], -torch.inf)
                # Scores that are not better than those of a full list need not be found.
                best, places = largest(tile, k, scores.amin(1) if scores.shape[1] == k else None)
                scores, indices = torch.cat([scores, best], 1), torch.cat([indices, places + start], 1)
                if scores.shape[1] > k:
                    scores, chosen = scores.topk(k, sorted=False)
                    indices = indices.gather(1, chosen)
        scores, order = scores.sort(1, descending=True)
        values = heights[:, None].mul(2.0) - 2.0 * scores.double()
        return Shortlist(values, indices.gather(1, order), self._uncertainty(heights))

    def free(self) -> None:
        """Free the memory of the scores until the next search."""
        self._buffer = self._buffer.new_empty(0)

    def distances(self, values: Float64[Tensor, "*rows"]) -> Float64[Tensor, "*rows"]:
        """Compute distances from scaled v."""
        values = values / self._scale**2
        return values.div_(2.0) if self.distance == "cosine" else values.clamp_(min=0.0).sqrt_()

    def _uncertainty(self, heights: Float64[Tensor, "queries"]) -> Float64[Tensor, "queries"]:
        """Compute twice the bound on the error of v, plus the rounding of distances to float32."""
        # |fl(x·y) - x·y| <= γ_n |x||y| with γ_n = nu / (1 - nu) for any order of summing n products (Higham, Accuracy
        # and Stability of Numerical Algorithms, 2002, section 3.1).
        unit = 2.0**-24
        terms = (self._flat.shape[1] + 2) * unit
        length, height = heights.mul(2.0).sqrt_(), float(self._heights.max())
        error = 2.0 * terms / (1.0 - terms) * (length * self._reach + height)
        error += 5.0 * unit * length * self._reach + 2.0 * unit * height  # rounding points and heights to float32
        # Products and points too small for float32 may be lost if one point is far from all others.
        error += 4.0 * self._flat.shape[1] * 2.0**-126 * (1.0 + length + self._reach)
        if self.distance == "cosine":
            error += 64.0 * 2.0**-53 * self._scale**2  # dividing by the norms
        return 2.0 * error + 2.0**-20 * (length + math.sqrt(2.0 * height)).square()

    def _points(self, rows: ExactRows, where: slice | Int64[Tensor, "chosen"]) -> Float64[Tensor, "chosen dim"]:
        points = rows.integers(where).mul_(rows.steps[where, None])
        if self.distance == "cosine":
            squares = rows.squares[where, None]
            points /= torch.where(squares > 0, squares, 1.0).sqrt_()
        return points

    def _flatten(
        self, rows: ExactRows, where: slice | Int64[Tensor, "chosen"]
    ) -> tuple[Float32[Tensor, "chosen dim"], Float64[Tensor, "chosen"]]:
        """Return centred and scaled points, and half of their squared lengths."""
        points = self._points(rows, where).sub_(self._mean).mul_(self._scale)
        heights = points.square().sum(1).div_(2.0)
        if self.distance == "cosine":
            # A zero vector is at distance 1 from all others.
            heights += (rows.squares[where] == 0) * (self._scale**2 / 2.0)
        return points.float(), heights

    def _largest(self, rows: ExactRows) -> float:
        norms = [self._points(rows, part).sub_(self._mean).square_().sum(1).max() for part in rows.parts()]
        return math.sqrt(float(torch.stack(norms).max()))


def largest(
    values: Shaped[Tensor, "rows columns"], k: int, floor: Shaped[Tensor, "rows"] | None = None
) -> tuple[Shaped[Tensor, "rows found"], Int64[Tensor, "rows found"]]:
    """Select the k largest values of each row, or all if there are fewer, with their columns and in any order.

    Values up to the row's `floor` may be left out. This is faster than `topk`: the k largest values are in the k groups
    of columns with the largest maxima, and a group whose maximum is not above the floor is not needed.
    """
    width = values.shape[1]
    size = max(1, math.isqrt(width // k)) if floor is None else 8
    count = width // size
    if size < 4 or count == 0:
        return values.topk(min(k, width), sorted=False)
    maxima = values[:, : size * count].unflatten(1, (size, count)).amax(1)
    groups = min(k, count) if floor is None else min(k, int((maxima > floor[:, None]).sum(1).max()))
    if 2 * groups > count:
        return values.topk(min(k, width), sorted=False)
    members = torch.arange(size, device=values.device)[:, None] * count
    places = (maxima.topk(groups, sorted=False).indices[:, None] + members).flatten(1)
    rest = torch.arange(size * count, width, device=values.device)
    places = torch.cat([places, rest.expand(len(values), -1)], 1)
    best, chosen = values.gather(1, places).topk(min(k, places.shape[1]), sorted=False)
    return best, places.gather(1, chosen)
