"""Matrix products of float32 in a chosen precision: as they are, or with operands that a GPU multiplies faster."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.losses.checks import shown
from proxemic.precision import matmul_precision

Precision = Literal["float32", "tf32", "half", "split"]
"""Of the operands of a product; sums are always float32.

* ``"float32"``: all 24 bits.
* ``"tf32"``: 11 bits and the range of float32.
* ``"half"``: float16, 11 bits, scaled by a power of 2 so that the largest number is near the top of its range.
* ``"split"``: the sum of two float16 numbers, 22 bits, in three products.

On a CPU, which has no such products, operands are rounded and multiplied in float32: the errors are those of a GPU, the
time is not.
"""

_TOP = 13  # a power of 2: the largest operands are below 2^14, of the 2^16 of float16
_LOW = 11  # bits of float16; the second number of "split" is as much smaller


def check_products(products: Any) -> Precision | None:
    """Return a valid precision, or ``None``; else raise a `ValueError` that names the allowed ones."""
    for allowed in (None, *get_args(Precision)):
        if products is allowed or (isinstance(products, str) and products == allowed):
            return allowed
    raise ValueError(
        f"products is {shown(products)}, but must be float32, tf32, half or split, or None for the run's precision."
    )


class Operand(NamedTuple):
    """A matrix as a product takes it: ``(high + low · 2^-11) / scale``; ``None`` is 0 and 1."""

    high: Tensor
    low: Tensor | None = None
    scale: Tensor | None = None

    def transposed(self) -> "Operand":
        """Return the transposed matrix, of the same memory."""
        return Operand(self.high.T, None if self.low is None else self.low.T, self.scale)


@dataclass(frozen=True)
class Products:
    """Products in one precision, the one place that decides it.

    Args:
        precision: As chosen; ``None`` is that of the process, see `torch.set_float32_matmul_precision`.
        cancels: Whether the similarity loses digits by cancellation; its products are in full precision, unless another
            one was chosen.
    """

    precision: Precision | None = None
    cancels: bool = False

    @classmethod
    def of_run(cls, chosen: Precision | None, device: torch.device) -> "Products":
        """Take what was chosen, or half precision if a GPU runs in automatic mixed precision."""
        mixed = device.type == "cuda" and torch.is_autocast_enabled("cuda")
        return cls(chosen or ("half" if mixed else None))

    @property
    def rounds(self) -> bool:
        """Whether operands lose bits of float32 by choice."""
        return self.precision not in (None, "float32")

    @property
    def inexact(self) -> bool:
        """Whether the scores of target classes, and their gradients, are computed apart, from the samples alone."""
        return self.cancels or self.rounds

    def context(self) -> AbstractContextManager[None]:
        """Compute the products within in this precision."""
        wanted = {"float32": "ieee", "tf32": "tf32", None: "ieee" if self.cancels else None}.get(self.precision)
        return matmul_precision(wanted)

    def operand(self, x: Float[Tensor, "rows columns"]) -> Operand:
        """Prepare a matrix to be multiplied: a copy, unless it is taken as it is, as float64 always is."""
        if not self.rounds or x.dtype == torch.float64 or (self.precision == "tf32" and x.is_cuda):
            return Operand(x)
        if self.precision == "tf32":
            # 13 of the 24 bits go, to the nearest: what a carry makes of the exponent is right, too.
            return Operand((x.contiguous().view(torch.int32) + 0x1000).bitwise_and_(~0x1FFF).view(torch.float32))
        # A power of 2, from the largest number, so that nothing but float16's own rounding changes the operands.
        largest = torch.linalg.vector_norm(x, torch.inf)
        scale = torch.where(largest > 0, _TOP - largest.log2().floor(), 0).clamp_(-125, 125).exp2()
        scaled = x * scale
        high = scaled.half()
        low = None
        if self.precision == "split":
            low = scaled.sub_(high).mul_(2**_LOW).half()
        if x.is_cuda:
            return Operand(high, low, scale)
        # A CPU multiplies float32, in which the scale can be taken back.
        high, low = (None if value is None else value.float().div_(scale) for value in (high, low))
        assert high is not None
        return Operand(high, low)

    def multiply(self, a: Operand, b: Operand, out: Float[Tensor, "rows columns"] | None = None) -> Tensor:
        """Return ``a b``, written to ``out`` if that is given."""
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
    """Multiply both parts of each operand, without the product of the low ones, which is below the last bit."""
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
