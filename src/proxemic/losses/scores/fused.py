"""A chunk of classes by two Triton kernels, which multiply twice and write no scores."""

import importlib.util
import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.losses.scores.plan import Plan
from proxemic.losses.scores.pooling import MaxPooling, MeanPooling, SoftmaxPooling
from proxemic.losses.scores.products import Products
from proxemic.losses.scores.scoring import Scoring
from proxemic.losses.scores.similarity import Cosine

Units = Float[Tensor, "rows dim"]

_ROWS = 128  # proxies of a tile, those included that K is padded with
_MOST = 64  # proxies per class
_CACHE = 1.0  # of a GPU's cache, which the gradient of a chunk's scores fits into
_TOP = 2.0**13  # the largest factor: a pooling of K proxies makes at most 1 + ln K of it, and float16 ends at 2^16


class Factors(NamedTuple):
    """Of exponentials, one per sample or per class: ``values · unit``, of which the kernels take the values."""

    values: Float[Tensor, " kept"]
    unit: Float[Tensor, ""]

    @classmethod
    def of(cls, factors: Float[Tensor, " kept"]) -> "Factors":
        """The unit is such that their products are in the range of half precision."""
        unit = torch.linalg.vector_norm(factors, torch.inf).clamp(min=1e-30).div(_TOP)
        return cls(factors / unit, unit)


def fits(scoring: Scoring, embeddings: Tensor, proxies: Tensor, products: Products) -> bool:
    """Whether the kernels compute this: float32 cosines, pooled as those of this package are, without a transform.

    Where they do, but cannot run, a warning says so once.
    """
    known = type(scoring.similarity) is Cosine and scoring.transform is None and products.precision != "split"
    pooled = proxies.shape[1] == 1 or type(scoring.pooling) in (SoftmaxPooling, MeanPooling, MaxPooling)
    sizes = len(embeddings) > 0 and proxies.shape[1] <= _MOST
    if not (known and pooled and sizes and proxies.dtype == torch.float32):
        return False
    if lacking := lacking_on(proxies.device.type):
        _warn(lacking)
    return not lacking


@lru_cache
def lacking_on(device: str) -> str | None:
    """Why the kernels cannot run on a type of device; ``None`` if they can."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    from triton import knobs

    if device == "cuda" or knobs.runtime.interpret:
        return None
    return f"its proxies are on a device of type {device}"


@lru_cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"The loss runs without Triton's kernels, as {reason}: leave out compile_chunks='triton', or train on a GPU "
        "where Triton is installed.",
        stacklevel=2,
    )


def plan_for_kernels(plan: Plan, batch: int, proxies: Float[Tensor, "classes proxies dim"], products: Products) -> Plan:
    """The same without scores that are kept, in chunks whose gradient of scores fits the cache of a GPU."""
    _, per_class, dim = proxies.shape
    cache = torch.cuda.get_device_properties(proxies.device).L2_cache_size if proxies.is_cuda else 2**25
    rows = int(_CACHE * cache) // (_operands(products).itemsize * max(batch, dim))  # which are multiplied, too
    return Plan(min(max(rows // per_class, 1), plan.chunk), keep=False, dense=plan.dense)


def _operands(products: Products) -> torch.dtype:
    return torch.float16 if products.precision == "half" else torch.float32


def tiles(proxies: int, dim: int, batch: int, dtype: torch.dtype) -> dict[str, int]:
    """The sizes of a tile, as large as registers allow, and how a kernel is compiled; `benchmarks/kernels.py` tells."""
    padded = 1 << (proxies - 1).bit_length()
    half = dtype == torch.float16
    most = 128 if half and proxies == 1 else 64
    return {
        "D": dim,
        "K": proxies,
        "PADDED": padded,
        "CLASSES": _ROWS // padded,
        "BATCH": min(max(1 << (batch - 1).bit_length(), 16), most),
        "DEPTH": 64 if half else 32,
        "num_warps": 8,
        "num_stages": 3,
    }


class Fused:
    """The kernels on the chunks of a walk.

    Args:
        queries: Unit embeddings.
        labels: Target classes.
        scoring: Of which `fits` holds.
        products: Their precision.
        classes: Of a chunk, at most.
        proxies: K.
    """

    def __init__(
        self,
        queries: Units,
        labels: Int[Tensor, " batch"],
        scoring: Scoring,
        products: Products,
        classes: int,
        proxies: int,
    ) -> None:
        self.queries = queries.to(_operands(products)).contiguous()
        self.labels, self.proxies = labels.contiguous(), proxies
        batch, dim = queries.shape
        self.tiles: dict[str, Any] = tiles(proxies, dim, batch, self.queries.dtype)
        tf32 = queries.is_cuda and torch.backends.cuda.matmul.fp32_precision == "tf32"
        self.tiles["PRECISION"] = "tf32" if tf32 else "ieee"
        self.tiles["AXIS"] = 0 if scoring.class_reduction is None else 1
        self.tiles["NEAREST"] = isinstance(scoring.pooling, MaxPooling)
        sharpness = 1 / scoring.pooling.gamma if isinstance(scoring.pooling, SoftmaxPooling) else 0.0
        self.numbers = float(scoring.scale), sharpness
        self.units = self.queries.new_empty(classes * proxies, dim)
        # Data-wise losses add up each tile of a chunk over the chunks, and the tiles at the end.
        added_up = 0 if scoring.class_reduction else self._count(classes, "CLASSES")
        self.sums = queries.new_full((added_up, batch), -torch.inf)

    def multiplied(self, rows: Units, measures: Float[Tensor, "rows 1"]) -> Units:
        """Unit proxies as the kernels take them, in memory that the next chunk uses again."""
        return torch.mul(rows, measures, out=self.units[: len(rows)])

    def log_sums(
        self, units: Units, first: int, offsets: Float[Tensor, " classes"] | None
    ) -> Float[Tensor, "tiles kept"]:
        """Binary logarithms of sums of a chunk that begins at class ``first``, still to be added up over the tiles."""
        from proxemic.losses.scores.triton_kernels import log_sums

        classes, batch = len(units) // self.proxies, len(self.queries)
        sums = self.sums
        if self.tiles["AXIS"] == 1:
            sums = sums.new_full((self._count(batch, "BATCH"), classes), -torch.inf)
        self._run(log_sums, units, first, offsets, sums)
        return sums

    def slopes(
        self,
        units: Units,
        first: int,
        offsets: Float[Tensor, " classes"] | None,
        normalizers: Float[Tensor, " kept"],
        factors: Float[Tensor, " kept"],
    ) -> tuple[Float[Tensor, "rows batch"], Float[Tensor, " rows"]]:
        """The gradient g of the cosines of a chunk, from binary logarithms of sums and factors, and ``Σ g cos``."""
        from proxemic.losses.scores.triton_kernels import slopes

        batch = len(self.queries)
        grad = self.queries.new_empty(len(units), batch)
        along = factors.new_empty(self._count(batch, "BATCH"), len(units))
        self._run(slopes, units, first, offsets, normalizers, factors, grad, along)
        return grad, along.sum(0)

    def _run(self, kernel: Any, units: Tensor, first: int, *tensors: Tensor | None) -> None:
        classes, batch = len(units) // self.proxies, len(self.queries)
        programs = self._count(classes, "CLASSES") * self._count(batch, "BATCH")
        sizes = first, classes, batch, *self.numbers
        launch(kernel, programs, self.queries, units, self.labels, *tensors, *sizes, **self.tiles)

    def _count(self, length: int, tile: str) -> int:
        return -(-length // self.tiles[tile])


def launch(kernel: Callable[..., Any], programs: int, *arguments: Any, **constants: Any) -> None:
    """Start a kernel on the GPU that has its first argument."""
    with torch.cuda.device_of(arguments[0]):
        kernel[programs,](*arguments, **constants, enable_fp_fusion=True)  # type: ignore[index]
