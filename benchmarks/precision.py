"""Errors of a loss and its gradients by the precision of its products, against float64.

    python benchmarks/precision.py                     # ArcFace, B 1024, D 512, C 20,000: some minutes on a core
    python benchmarks/precision.py --smoke             # small sizes, seconds

Once with random embeddings and proxies, and once after 150 steps on embeddings that lie about a centre per
class, so that the scores of target classes stand out. An error is that of the loss, or of a row of the gradients of
embeddings (dX) and proxies (dW), over the length of that row. Half precision rounds operands to float16; bfloat16,
which is no choice, is beside it for comparison.
"""

import argparse
import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import get_args
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.losses import ArcFaceLoss, ProxyLoss
from proxemic.losses.scores.products import Operand, Precision, Products
from proxemic.optim import step_rows

SPREAD = 0.6  # length of what is added to the centre of a class, itself of length 1


@dataclass(frozen=True)
class Size:
    """B, D, C, and the steps after which proxies are trained."""

    batch: int
    dim: int
    classes: int
    steps: int


FULL, SMOKE = Size(1024, 512, 20_000, 150), Size(64, 32, 200, 10)
Results = tuple[Tensor, Tensor, Tensor]


class Clusters:
    """Embeddings about a random centre per class."""

    def __init__(self, size: Size, device: torch.device) -> None:
        self.size = size
        self.centers = normalize(torch.randn(size.classes, size.dim, device=device))

    def batch(self) -> tuple[Tensor, Tensor]:
        """Random embeddings and their labels."""
        labels = torch.randint(self.size.classes, (self.size.batch,), device=self.centers.device)
        noise = normalize(torch.randn(self.size.batch, self.size.dim, device=self.centers.device))
        return self.centers[labels] + SPREAD * noise, labels


def train(loss: ProxyLoss, clusters: Clusters) -> None:
    """Move the proxies towards their classes, those of the batch and a tenth of the others in each step."""
    optimizer = step_rows(torch.optim.SGD(loss.parameters(), lr=clusters.size.batch / 50))
    loss.products, loss.sample_rate = None, 0.1
    for _ in range(clusters.size.steps):
        optimizer.zero_grad()
        loss(*clusters.batch()).backward()
        optimizer.step()
    loss.sample_rate = 1.0


def results(loss: ProxyLoss, x: Tensor, y: Tensor) -> Results:
    """The value and its gradients, in float64."""
    x = x.detach().requires_grad_()
    value = loss(x, y)
    dx, dw = torch.autograd.grad(value, (x, loss.proxies))
    return value.detach().double(), dx.double(), dw.flatten(0, 1).double()


@contextmanager
def bfloat16() -> Iterator[None]:
    """Operands that the losses would round to 11 bits keep 8."""
    with patch.object(Products, "operand", lambda _, x: Operand(x.bfloat16().float())):
        yield


def errors(loss: ProxyLoss, x: Tensor, y: Tensor) -> Iterator[tuple[str, list[float]]]:
    """By precision: the error of the loss, then median and largest of the rows of dX and of dW."""
    value, *want = results(copy.deepcopy(loss).double(), x.double(), y)
    for precision in (*get_args(Precision), "bfloat16"):
        loss.products = "tf32" if precision == "bfloat16" else precision
        if precision == "bfloat16":
            with bfloat16():
                found, *grads = results(loss, x, y)
        else:
            found, *grads = results(loss, x, y)
        row = [float((found - value).abs() / value.abs())]
        for got, right in zip(grads, want, strict=True):
            lengths = right.norm(dim=1)
            error = ((got - right).norm(dim=1) / lengths)[lengths > 0]
            row += [float(error.median()), float(error.max())]
        yield precision, row


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes: does it run?")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args(argv)
    size, device = SMOKE if args.smoke else FULL, torch.device(args.device)
    torch.manual_seed(0)
    loss = ArcFaceLoss(size.classes, size.dim, chunk_size=size.classes // 4).to(device)  # few are not streamed
    clusters = Clusters(size, device)
    print("| proxies | products | loss | dX, median | largest | dW, median | largest |")
    print("|---|---|---:|---:|---:|---:|---:|")
    for state in ("random", "trained"):
        if state == "trained":
            train(loss, clusters)
            x, y = clusters.batch()
        else:
            x = torch.randn(size.batch, size.dim, device=device)
            y = torch.randint(size.classes, (size.batch,), device=device)
        for precision, row in errors(loss, x, y):
            print(f"| {state} | {precision} | {' | '.join(f'{each:.1e}' for each in row)} |", flush=True)
    own = torch.nn.functional.cosine_similarity(x, loss.proxies[y, 0]).mean()
    print(f"\nafter {size.steps} steps the cosine of an embedding and its proxy is {own:.2f} on average")


if __name__ == "__main__":
    main()
