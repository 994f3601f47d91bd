"""Distances that always have the same bits.

A floating-point matrix product gives slightly different bits for equal embeddings, depending on their position and the
shape of the product, so equal distances would be ranked arbitrarily. Here each embedding is rounded once, to at least
20 bits below its largest coordinate (about the precision of float32), and multiplied in float64. Every partial sum is
then a whole number of steps below 2^53: the products are exact in any order, chunk and device.

Euclidean distances far from the origin would lose digits, as |a|² + |b|² - 2ab cancels. `comparable_rows` therefore
subtracts the gallery's mean, which is the same in every chunk, order and process.
"""

import math
from collections.abc import Iterator
from typing import Literal, get_args

import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from proxemic.metrics.arrays import check_finite

Distance = Literal["cosine", "euclidean"]
_ROWS = 1024  # rows turned into float64 at a time


def check_distance(distance: str) -> None:
    """Raise `ValueError` unless the distance is known."""
    if distance not in get_args(Distance):
        raise ValueError(f"distance is {distance!r} but must be 'cosine' or 'euclidean'")


class ExactRows:
    """Embeddings in float32, whose coordinates, relative to an origin, `integers` rounds to whole numbers of steps.

    An MPS device has no float64, so embeddings on it are copied to the CPU.
    """

    def __init__(
        self,
        embeddings: Float[Tensor, "rows ..."],
        name: str,
        origin: Float64[Tensor, " dim"] | Literal["mean"] | None = None,
    ) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] == 0:
            raise ValueError(
                f"{name} has shape {tuple(embeddings.shape)} but must be [samples, dim], with at least one dimension"
            )
        rows = embeddings.detach().float()
        check_finite(name, rows)
        self.rows: Float32[Tensor, "rows dim"] = rows.cpu() if rows.device.type == "mps" else rows
        if isinstance(origin, str):
            origin = self._near_mean()
        self.origin = None if origin is None else origin.to(self.rows.device)
        # With b bits below the largest coordinate, products are at most 2^2b steps, and sums must stay within 2^53.
        bits = min(24, (53 - math.ceil(math.log2(rows.shape[1]))) // 2)
        self.steps = self.rows.new_empty(len(rows), dtype=torch.float64)
        self.squares = torch.empty_like(self.steps)
        for part in self.parts():
            largest = self._points(part).abs_().amax(1)
            largest = torch.where(largest > 0, largest, 1.0)
            # Dividing by the mantissa leaves exactly a power of two, which pow() does not guarantee.
            self.steps[part] = largest / torch.frexp(largest).mantissa * 2.0**-bits
            self.squares[part] = self.integers(part).square_().sum(1) * self.steps[part].square()

    def __len__(self) -> int:
        return len(self.rows)

    def parts(self) -> Iterator[slice]:
        """Yield slices of the embeddings that are small enough for float64."""
        yield from (slice(start, start + _ROWS) for start in range(0, len(self), _ROWS))

    def integers(self, where: slice | Int64[Tensor, "chosen"]) -> Float64[Tensor, "chosen dim"]:
        """Return the coordinates of some embeddings in whole steps."""
        return self._points(where).div_(self.steps[where, None]).round_()

    def _points(self, where: slice | Int64[Tensor, "chosen"]) -> Float64[Tensor, "chosen dim"]:
        points = self.rows[where].double()
        return points if self.origin is None else points.sub_(self.origin)

    def _near_mean(self) -> Float64[Tensor, " dim"]:
        """Return the mean embedding, rounded to the spread of the embeddings, with the same bits in any order of them.

        Rounding leaves embeddings around the origin unchanged, and whole numbers whole, so that equal distances stay
        equal.
        """
        largest = max((float(self.rows[part].abs().max()) for part in self.parts()), default=0.0)
        step = _power_of_two(largest) * 2.0**-24
        # A sum of whole numbers below 2^53 is exact in any order.
        total = torch.zeros(self.rows.shape[1], dtype=torch.float64, device=self.rows.device)
        for part in self.parts():
            total += self.rows[part].double().div_(step).round_().sum(0)
        mean = total * (step / max(len(self), 1))
        spread = max((float(self.rows[part].double().sub_(mean).abs_().max()) for part in self.parts()), default=0.0)
        unit = _power_of_two(spread)
        return mean if spread == 0 else mean.div_(unit).round_().mul_(unit)


def _power_of_two(value: float) -> float:
    """Return the smallest power of two above a value."""
    return math.ldexp(1.0, math.frexp(value)[1])


def comparable_rows(
    queries: Float[Tensor, "queries ..."],
    gallery: Float[Tensor, "gallery ..."],
    distance: Distance,
    names: tuple[str, str] = ("queries", "gallery"),
) -> tuple[ExactRows, ExactRows]:
    """Prepare embeddings for `row_distances` and `distance_block`: for Euclidean distances, move them near the origin.

    The result is one object twice if both are the same tensor.
    """
    itself = queries is gallery
    found = ExactRows(gallery, names[0 if itself else 1], "mean" if distance == "euclidean" else None)
    return found if itself else ExactRows(queries, names[0], found.origin), found


def all_distances(
    queries: Float[Tensor, "queries dim"], gallery: Float[Tensor, "gallery dim"], distance: Distance
) -> Float32[Tensor, "queries gallery"]:
    """Compute the distances of all queries to all gallery items."""
    left, right = comparable_rows(queries, gallery, distance)
    result = torch.empty(len(left), len(right), device=right.rows.device)
    for start in range(0, len(left), _ROWS):
        some = torch.arange(start, min(start + _ROWS, len(left)), device=right.rows.device)
        result[some] = distance_block(left, right, some, slice(None), distance).float()
    return result.to(queries.device)


def row_distances(
    left: ExactRows,
    right: ExactRows,
    left_rows: Int64[Tensor, "pairs"],
    right_rows: Int64[Tensor, "pairs"],
    distance: Distance,
) -> Float64[Tensor, "pairs"]:
    """Compute the distance of each given item of one set to an item of another, with the bits of `distance_block`."""
    result = torch.empty(len(left_rows), dtype=torch.float64, device=left.rows.device)
    for start in range(0, len(left_rows), _ROWS):
        pairs = slice(start, start + _ROWS)
        one, other = left_rows[pairs], right_rows[pairs]
        products = left.integers(one).mul_(right.integers(other)).sum(1).mul_(left.steps[one]).mul_(right.steps[other])
        result[pairs] = _finish(products, left.squares[one], right.squares[other], distance)
    return result


def distance_block(
    left: ExactRows, right: ExactRows, left_rows: Int64[Tensor, "queries"], right_rows: slice, distance: Distance
) -> Float64[Tensor, "queries gallery"]:
    """Compute the distances of some items of one set to successive items of another."""
    products = left.integers(left_rows) @ right.integers(right_rows).T
    products.mul_(left.steps[left_rows, None]).mul_(right.steps[right_rows])
    return _finish(products, left.squares[left_rows, None], right.squares[right_rows], distance)


def _finish(
    products: Float64[Tensor, "*rows"],
    left_squares: Float64[Tensor, "*#rows"],
    right_squares: Float64[Tensor, "*#rows"],
    distance: Distance,
) -> Float64[Tensor, "*rows"]:
    # Every operation rounds correctly, so the same pair always has the same bits.
    if distance == "euclidean":
        return products.mul_(-2.0).add_(left_squares).add_(right_squares).clamp_(min=0.0).sqrt_()
    # The root of the rounded square of a number is that number, so equal embeddings are at distance 0 and none is
    # below: products² is at most the product of the squares, and rounding keeps order. A zero vector has products of 0.
    squares = left_squares * right_squares
    return 1.0 - products.div_(squares.masked_fill_(squares == 0, 1.0).sqrt_())
