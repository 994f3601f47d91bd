"""Errors of a loss and its gradients by the precision of its products, against float64.

    python benchmarks/precision.py                     # ArcFace, B 1024, D 512, C 20,000: some minutes on a core
    python benchmarks/precision.py --smoke             # small sizes, seconds

Once with random embeddings and proxies, and once after 150 steps on embeddings that lie about a centre per
class, so that the scores of target classes stand out. An error is that of the loss, or of a row of the gradients of
embeddings (dX) and proxies (dW), over the length of that row. Half precision rounds operands to float16; bfloat16,
which is no choice, is beside it for comparison.
"""

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Literal, get_args
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from measure import command, print_header, print_row
from proxemic.losses import ArcFaceLoss, ProxyLoss
from proxemic.losses.scores.products import Operand, Precision, Products
from proxemic.optim import step_rows

SPREAD = 0.6  # length of what is added to the centre of a class, itself of length 1


def draw(centers: Tensor, batch: int) -> tuple[Tensor, Tensor]:
    """Draw embeddings about the centre of a class each, and their labels."""
    labels = torch.randint(len(centers), (batch,), device=centers.device)
    noise = normalize(torch.randn(batch, centers.shape[1], device=centers.device))
    return centers[labels] + SPREAD * noise, labels


def train(loss: ProxyLoss, centers: Tensor, batch: int, steps: int) -> None:
    """Move the proxies towards their classes, those of the batch and a tenth of the others in each step."""
    optimizer = step_rows(torch.optim.SGD(loss.parameters(), lr=batch / 50))
    loss.products, loss.sample_rate = None, 0.1
    for _ in range(steps):
        optimizer.zero_grad()
        loss(*draw(centers, batch)).backward()
        optimizer.step()
    loss.sample_rate = 1.0


def results(loss: ProxyLoss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the value and its gradients, in float64."""
    x = x.detach().requires_grad_()
    value = loss(x, y)
    dx, dw = torch.autograd.grad(value, (x, loss.proxies))
    return value.detach().double(), dx.double(), dw.flatten(0, 1).double()


def errors(loss: ProxyLoss, x: Tensor, y: Tensor) -> Iterator[tuple[str, list[float]]]:
    """By precision, the error of the loss, then median and largest of the rows of dX and of dW."""
    value, *expected = results(copy.deepcopy(loss).double(), x.double(), y)
    for precision in (*get_args(Precision), "bfloat16"):
        # The operands that the losses would round to 11 bits keep 8.
        half = patch.object(Products, "operand", lambda _, x: Operand(x.bfloat16().float()))
        loss.products = "tf32" if precision == "bfloat16" else precision
        with half if precision == "bfloat16" else nullcontext():
            found, *gradients = results(loss, x, y)
        row = [float((found - value).abs() / value.abs())]
        for gradient, right in zip(gradients, expected, strict=True):
            lengths = right.norm(dim=1)
            error = ((gradient - right).norm(dim=1) / lengths)[lengths > 0]
            row += [float(error.median()), float(error.max())]
        yield precision, row


def main(*, device: Literal["cpu", "cuda"] = "cpu", smoke: bool = False) -> None:
    """Print a row for each state and precision."""
    batch, dim, classes, steps = (64, 32, 200, 10) if smoke else (1024, 512, 20_000, 150)
    torch.manual_seed(0)
    loss = ArcFaceLoss(classes, dim, chunk_size=classes // 4).to(device)  # few are not streamed
    centers = normalize(torch.randn(classes, dim, device=device))
    print_header("proxies", "products", "loss", "dX, median", "largest", "dW, median", "largest")
    x, y = torch.randn(batch, dim, device=device), torch.randint(classes, (batch,), device=device)
    for state in ("random", "trained"):
        if state == "trained":
            train(loss, centers, batch, steps)
            x, y = draw(centers, batch)
        for precision, row in errors(loss, x, y):
            print_row(state, precision, *(f"{error:.1e}" for error in row))
    own = cosine_similarity(x, loss.proxies[y, 0]).mean()
    print(f"\nafter {steps} steps the cosine of an embedding and its proxy is {own:.2f} on average")


if __name__ == "__main__":
    command(main)
