"""Matrix products of float32 in a chosen precision: in full, or with operands that a GPU multiplies faster."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.checks import shown
from proxemic.precision import matmul_precision

Precision = Literal["float32", "tf32", "half", "split"]
"""Precision of the operands of a product; sums are always float32.

* ``"float32"``: all 24 bits.
* ``"tf32"``: 11 bits and the range of float32.
* ``"half"``: float16, 11 bits, scaled by a power of 2 so that the largest number is near the top of its range.
* ``"split"``: the sum of two float16 numbers, 22 bits, in three products.

A CPU has no such products. It rounds the operands and multiplies in float32: with the errors of a GPU, not its speed.
"""

_TOP = 13  # a power of 2: the largest operands are below 2^14, of the 2^16 of float16
_LOW = 11  # bits of float16; the second number of "split" is smaller by this factor


def check_products(products: Any) -> Precision | None:
    """Return `products` if it is a precision or ``None``; otherwise raise `ValueError`."""
    for allowed in (None, *get_args(Precision)):
        if products is allowed or (isinstance(products, str) and products == allowed):
            return allowed
    raise ValueError(
        f"products is {shown(products)}, but must be float32, tf32, half or split, or None for the run's precision."
    )


class Operand(NamedTuple):
    """A matrix prepared for a product: ``(high + low · 2^-11) / scale``, where None stands for 0 and 1."""

    high: Tensor
    low: Tensor | None = None
    scale: Tensor | None = None

    def transposed(self) -> "Operand":
        """Return a view of the transposed matrix."""
        return Operand(self.high.T, None if self.low is None else self.low.T, self.scale)


@dataclass(frozen=True)
class Products:
    """Matrix products in one precision; the only place that decides it.

    Args:
        precision: The chosen precision; ``None`` follows `torch.set_float32_matmul_precision`.
        cancels: Whether the similarity loses digits by cancellation: without a chosen precision, its products are then
            computed in full precision.
    """

    precision: Precision | None = None
    cancels: bool = False

    @classmethod
    def of_run(cls, chosen: Precision | None, device: torch.device) -> "Products":
        """Use the chosen precision, or half precision if a GPU runs in automatic mixed precision."""
        mixed = device.type == "cuda" and torch.is_autocast_enabled("cuda")
        return cls(chosen or ("half" if mixed else None))

    @property
    def rounds(self) -> bool:
        """Whether the chosen precision rounds float32 operands."""
        return self.precision not in (None, "float32")

    @property
    def inexact(self) -> bool:
        """Whether the scores of target classes and their gradients are computed separately, to keep them exact."""
        return self.cancels or self.rounds

    def context(self) -> AbstractContextManager[None]:
        """Return a context in which matrix products have this precision."""
        wanted = {"float32": "ieee", "tf32": "tf32", None: "ieee" if self.cancels else None}.get(self.precision)
        return matmul_precision(wanted)

    def operand(self, x: Float[Tensor, "rows columns"]) -> Operand:
        """Prepare a matrix for a product: round it into a copy if need be; float64 is never rounded."""
        if not self.rounds or x.dtype == torch.float64 or (self.precision == "tf32" and x.is_cuda):
            return Operand(x)
        if self.precision == "tf32":
            # Rounds 13 of the 24 bits away, to the nearest; a carry into the exponent is right as well.
            return Operand((x.contiguous().view(torch.int32) + 0x1000).bitwise_and_(~0x1FFF).view(torch.float32))
        # A power of 2 below the largest number, so that only float16's own rounding changes the operands.
        largest = torch.linalg.vector_norm(x, torch.inf)
        scale = torch.where(largest > 0, _TOP - largest.log2().floor(), 0).clamp_(-125, 125).exp2()
        scaled = x * scale
        high = scaled.half()
        low = None
        if self.precision == "split":
            low = scaled.sub_(high).mul_(2**_LOW).half()
        if x.is_cuda:
            return Operand(high, low, scale)
        # A CPU multiplies in float32, where the scale can be undone at once.
        high, low = (None if value is None else value.float().div_(scale) for value in (high, low))
        assert high is not None
        return Operand(high, low)

    def multiply(self, a: Operand, b: Operand, out: Float[Tensor, "rows columns"] | None = None) -> Tensor:
        """Return ``a b``; write it to ``out`` if given."""
        if a.low is None and (a.scale is None or b.scale is None):
            return torch.mm(a.high, b.high, out=out)
        value = _sum(a, b)
        if a.scale is not None and b.scale is not None:
            value.div_(a.scale * b.scale)
        return value if out is None else out.copy_(value)

    def add(self, into: Float[Tensor, "rows columns"], a: Operand, b: Operand) -> Tensor:
        """Add ``a b`` to a matrix, in place."""
        if a.scale is not None and b.scale is not None:
            return into.addcdiv_(_sum(a, b), a.scale * b.scale)
        return into.addmm_(a.high, b.high) if a.low is None else into.add_(_sum(a, b))


def _sum(a: Operand, b: Operand) -> Tensor:
    """Multiply both parts of each operand, except for the product of the low parts, which is below the last bit."""
    high = _multiply(a.high, b.high)
    if a.low is None or b.low is None:
        return high
    low = _multiply(a.high, b.low).add_(_multiply(a.low, b.high))
    return high.add_(low, alpha=2**-_LOW)


def _multiply(a: Float[Tensor, "rows inner"], b: Float[Tensor, "inner columns"]) -> Float[Tensor, "rows columns"]:
    """Multiply matrices of float16, or of float32, in float32."""
    if a.dtype == torch.float32:
        return torch.mm(a, b)
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
