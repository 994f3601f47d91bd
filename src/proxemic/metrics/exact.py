"""Distances that always have the same bits.

A floating-point matrix product gives slightly different bits for equal rows, depending on their position and the shape
of the product, so equal distances would be ranked arbitrarily. Here each row is rounded once, to at least 20 bits below
its largest coordinate (about the precision of float32), and multiplied in float64. Every partial sum is then a whole
number of steps below 2^53: the products are exact in any order, chunk and device.
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
    """Embeddings in float32, whose coordinates `integers` rounds to whole numbers of steps.

    An MPS device has no float64, so embeddings on it are copied to the CPU.
    """

    def __init__(self, embeddings: Float[Tensor, "rows ..."], name: str) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] == 0:
            raise ValueError(
                f"{name} has shape {tuple(embeddings.shape)} but must be [rows, dim], with at least one dimension"
            )
        rows = embeddings.detach().float()
        check_finite(name, rows)
        self.rows: Float32[Tensor, "rows dim"] = rows.cpu() if rows.device.type == "mps" else rows
        # With b bits below the largest coordinate, products are at most 2^2b steps, and sums must stay within 2^53.
        bits = min(24, (53 - math.ceil(math.log2(rows.shape[1]))) // 2)
        self.steps = self.rows.new_empty(len(rows), dtype=torch.float64)
        self.squares = torch.empty_like(self.steps)
        for part in self.parts():
            largest = self.rows[part].abs().amax(1).double()
            largest = torch.where(largest > 0, largest, 1.0)
            # Dividing by the mantissa leaves exactly a power of two, which pow() does not guarantee.
            self.steps[part] = largest / torch.frexp(largest).mantissa * 2.0**-bits
            self.squares[part] = self.integers(part).square_().sum(1) * self.steps[part].square()

    def __len__(self) -> int:
        return len(self.rows)

    def parts(self) -> Iterator[slice]:
        """Yield slices of rows that are small enough for float64."""
        yield from (slice(start, start + _ROWS) for start in range(0, len(self), _ROWS))

    def integers(self, where: slice | Int64[Tensor, "chosen"]) -> Float64[Tensor, "chosen dim"]:
        """Return the coordinates of some rows in whole steps."""
        return self.rows[where].double().div_(self.steps[where, None]).round_()


def row_distances(
    left: ExactRows,
    right: ExactRows,
    left_rows: Int64[Tensor, "pairs"],
    right_rows: Int64[Tensor, "pairs"],
    distance: Distance,
) -> Float64[Tensor, "pairs"]:
    """Compute the distance of each given row of one set to a row of another, with the bits of `distance_block`."""
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
    """Compute the distances of some rows of one set to successive rows of another."""
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
    # The root of the rounded square of a number is that number, so equal rows are at distance 0 and none is below:
    # products² is at most the product of the squares, and rounding keeps order. A zero vector has products of 0.
    squares = left_squares * right_squares
    return 1.0 - products.div_(squares.masked_fill_(squares == 0, 1.0).sqrt_())
