"""Measure speed and memory of the losses, forward and backward, relative to three bare matrix products.

    python benchmarks/losses.py                      # the table, some minutes on two cores
    python benchmarks/losses.py --memory             # peak memory at 200,000 classes with 4 proxies
    python benchmarks/losses.py --smoke              # small sizes, seconds
    python benchmarks/losses.py --sizes cub --losses SoftTripleLoss ProxyAnchorLoss
    python benchmarks/losses.py --alone --sizes cub   # nothing else between the products and the loss
    python benchmarks/losses.py --keep-freed-memory --sizes sop-2
    python benchmarks/losses.py --sizes tiniest tiniest-10   # what a step costs beside its arithmetic

T3 is the median time of the products X Wᵀ, G W and Gᵀ X, of 2·B·C·K·D operations each. A column is a median time
divided by T3 of the same rounds. ``dense`` is this package's loss through ordinary autograd; ``pml`` is the loss of
pytorch-metric-learning with the same name; ``sketch`` is the prototype in `loss_sketch.py`. Threads are those of
``OMP_NUM_THREADS``.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

import proxemic
import proxemic.losses as ours
from loss_sketch import make_sketch
from measure import Held, command, machine, medians, page_faults, resident_peak
from proxemic.losses.checks import check_embeddings, check_labels
from proxemic.losses.scores.plan import Plan
from proxemic.losses.scores.scoring import dense_scores, pair_scores


@dataclass(frozen=True)
class Size:
    """B, D, C, K and the number of rounds."""

    batch: int
    dim: int
    classes: int
    proxies: int
    rounds: int


SIZES = {
    "tiniest": Size(8, 8, 10, 1, 300),
    "tiniest-10": Size(8, 8, 10, 10, 300),
    "tiny": Size(16, 16, 20, 1, 200),
    "cub": Size(180, 512, 100, 10, 30),
    "cub-1": Size(180, 512, 100, 1, 60),
    "sop": Size(32, 512, 11_318, 1, 15),
    "sop-2": Size(32, 512, 11_318, 2, 11),
    "sop-180": Size(180, 512, 11_318, 1, 9),
    "faces-40": Size(128, 512, 40_000, 1, 5),
    "faces": Size(128, 512, 85_742, 1, 5),
    "faces-2": Size(128, 512, 85_742, 2, 5),
}
SMOKE = {"tiny": Size(16, 16, 20, 1, 2), "small": Size(32, 64, 3_000, 2, 2)}
MEMORY = Size(1024, 128, 200_000, 4, 1)

LOSSES: dict[str, dict[str, object]] = {
    "NormalizedSoftmaxLoss": {},
    "ArcFaceLoss": {},
    "CurricularFaceLoss": {},
    "ProxyNCALoss": {},
    "ProxyAnchorLoss": {},
    "SoftTripleLoss": {},
    "MultiProxyAnchorLoss": {},
    "DataWiseMultiProxyAnchorLoss": {},
    "AllPairMultiProxyAnchorLoss": {},
    "EuclideanSoftmaxLoss": {},
    "WarpedSoftmaxLoss": {"alpha": 20.0, "k1": 0.9, "k2": 1.2},
}


def build(name: str, size: Size) -> ours.ProxyLoss:
    """Create a loss of `LOSSES`."""
    return getattr(ours, name)(size.classes, size.dim, proxies_per_class=size.proxies, **LOSSES[name])


def peer(name: str, size: Size) -> nn.Module | None:
    """Create the loss of pytorch-metric-learning with the same name; None if there is none, or it is too large."""
    from pytorch_metric_learning import losses as pml

    if name == "SoftTripleLoss":
        if (size.classes * size.proxies) ** 2 * 4 > 2e9:  # it compares all pairs of centers
            return None
        return pml.SoftTripleLoss(size.classes, size.dim, centers_per_class=size.proxies)
    makers: dict[str, Callable[[int, int], nn.Module]] = {
        "NormalizedSoftmaxLoss": pml.NormalizedSoftmaxLoss,
        "ArcFaceLoss": pml.ArcFaceLoss,
        "ProxyNCALoss": pml.ProxyNCALoss,
        "ProxyAnchorLoss": pml.ProxyAnchorLoss,
    }
    return makers[name](size.classes, size.dim) if name in makers and size.proxies == 1 else None


def step(
    loss: nn.Module, x: Tensor, y: Tensor, compute: Callable[[Tensor, Tensor], Tensor] | None = None
) -> Callable[[], None]:
    """Return a function that runs a forward and a backward pass of a loss, or of another way to compute it."""

    def call() -> None:
        loss.zero_grad()
        x.grad = None
        (compute or loss)(x, y).backward()

    return call


def dense_loss(loss: Any, x: Tensor, y: Tensor) -> Tensor:
    """Compute one of our losses densely, through ordinary autograd."""
    check_embeddings(x, loss.embedding_size)  # as the loss itself does
    check_labels(y, len(x), loss.num_classes)
    centers = loss.centers(loss.proxies)
    own = centers.detach()[y]
    scoring = loss.step_scoring(lambda: pair_scores(loss.scoring.similarity.prepare(x.detach()), own, loss.scoring), x)
    positive, negative, terms = dense_scores(x, centers, y, scoring, list(loss.regularizers))
    return loss.objective(positive, negative, y, x).mean() + terms


def compare(name: str, size: Size, device: str, *, alone: bool = False) -> tuple[dict[str, float], int]:
    """Return the median seconds of the products, our loss, its other forms and the peer; and our page faults."""
    torch.manual_seed(0)
    b, d, rows = size.batch, size.dim, size.classes * size.proxies
    x, w, g = (torch.randn(shape, device=device) for shape in ((b, d), (rows, d), (b, rows)))
    y = torch.randint(size.classes, (b,), device=device)
    loss, other = build(name, size).to(device), None if alone else peer(name, size)
    leaf = x.clone().requires_grad_()
    calls: dict[str, Callable[[], object]] = {
        "T3": lambda: (x @ w.T, g @ w, g.T @ x),
        "ours": step(loss, leaf, y),
    }
    if not alone and b * rows * (d if "Euclidean" in name or "Warped" in name else 1) < 4e9:
        calls["dense"] = step(loss, leaf, y, partial(dense_loss, loss))
    if device == "cpu" and (sketch := make_sketch(name, loss.proxies)) is not None:
        calls["sketch"] = step(loss, leaf, y, sketch)
    if other is not None:
        calls["pml"] = step(other.to(device), leaf, y)
    return medians(calls, size.rounds, cuda=device == "cuda"), page_faults(calls["ours"])


def table(names: Sequence[str], sizes: dict[str, Size], device: str, *, alone: bool = False) -> None:
    """Print a line for each size and loss."""
    print(f"{machine()}; torch {torch.__version__}, {torch.get_num_threads()} threads, {device}")
    heads = f"{'pml/ours':>8} {'ours/sketch':>11} {'ours':>6} {'dense':>6} {'pml':>6} {'faults':>7}"
    print(f"{'B, D, C, K':24} {'loss':30} {'chunk':>6} {'T3 ms':>8} {heads}")
    for size in sizes.values():
        shape = f"{size.batch}, {size.dim}, {size.classes}, {size.proxies}"
        for name in names:
            scoring = build(name, Size(2, 2, 2, 1, 1)).scoring
            plan = Plan.of(scoring, size.batch, size.classes, size.proxies, size.dim)
            seconds, faults = compare(name, size, device, alone=alone)
            ratio = {key: value / seconds["T3"] for key, value in seconds.items()}
            columns = " ".join(f"{ratio.get(key, math.nan):6.2f}" for key in ("ours", "dense", "pml"))
            gain, beside = ratio.get("pml", math.nan) / ratio["ours"], ratio["ours"] / ratio.get("sketch", math.nan)
            shown = f"{gain:8.2f} {beside:11.2f} {columns} {faults:7}"
            line = f"{shape:24} {name:30} {plan.chunk:6} {1e3 * seconds['T3']:8.4g} {shown}"
            print(line.replace("nan", "  –"), flush=True)


def print_memory(names: Sequence[str], size: Size) -> None:
    """Print the peaks of memory beyond embeddings, proxies and their gradients, and the documented limit.

    ``tensors`` counts all tensors; ``resident`` is the memory of the process, which includes the workspaces of the
    matrix library and freed memory that the allocator keeps.
    """
    b, c, k, d = size.batch, size.classes, size.proxies, size.dim
    print(f"B={b}, D={d}, C={c}, K={k}; dense scores would take {b * c * k * 4 / 1e9:.2f} GB")
    for name in names:
        torch.manual_seed(0)
        loss = build(name, size)
        plan = Plan.of(loss.scoring, b, c, k, d)
        x, y = torch.randn(b, d, requires_grad=True), torch.randint(c, (b,))
        gradients = 4 * (x.numel() + loss.proxies.numel())
        few = build(name, Size(b, d, 2 * plan.chunk, k, 1))
        few.chunk_size = plan.chunk
        step(few, torch.randn(b, d, requires_grad=True), y % (2 * plan.chunk))()  # creates the workspaces of libraries
        del few
        with Held(x, y, *loss.parameters()) as tensors:
            torch.autograd.grad(loss(x, y), (x, loss.proxies))
        resident = resident_peak(step(loss, x, y))
        allowed = 2 * 4 * plan.chunk * k * b + 8 * 4 * (b + c * k)
        found = {"tensors": tensors.most, "resident": resident}
        peaks = ", ".join(f"{what} {(peak - gradients) / 1e6:.1f} MB" for what, peak in found.items())
        print(f"{name:30} chunk {plan.chunk}: {peaks}, allowed {allowed / 1e6:.1f} MB", flush=True)
        del loss, x


def main(
    *,
    sizes: Sequence[str] = tuple(SIZES)[2:],
    losses: Sequence[str] = tuple(LOSSES),
    memory: bool = False,
    alone: bool = False,
    keep_freed_memory: bool = False,
    device: Literal["cpu", "cuda"] = "cpu",
    smoke: bool = False,
) -> None:
    """Print the table, or the peaks of memory."""
    if keep_freed_memory:
        proxemic.keep_freed_memory()
    if memory:
        print_memory(losses, Size(64, 16, 1_000, 10, 1) if smoke else MEMORY)
    else:
        table(losses, SMOKE if smoke else {name: SIZES[name] for name in sizes}, device, alone=alone)


if __name__ == "__main__":
    command(main)
