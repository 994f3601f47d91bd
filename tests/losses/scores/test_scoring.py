"""Scores computed at once: the number of operations on a GPU, and equality with the streamed scores."""

import importlib.util
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from losses.test_losses import gradients, make
from proxemic import losses
from proxemic.losses.scores.plan import Plan

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("name", "proxies", "most"),
    [
        ("NormalizedSoftmaxLoss", 1, 40),
        ("ArcFaceLoss", 1, 55),
        ("ProxyAnchorLoss", 1, 55),
        ("SoftTripleLoss", 10, 60),
        ("MultiProxyAnchorLoss", 10, 75),
    ],
)
def test_a_step_takes_few_operations_on_a_gpu(name: str, proxies: int, most: int) -> None:
    with patch.object(sys, "path", [str(BENCHMARKS), *sys.path]):
        operations = importlib.import_module("operations")
    assert operations.count(name, 180, 512, 100, proxies).total() <= most


@pytest.mark.parametrize("precision", [None, "float32", "tf32", "half", "split"])
@pytest.mark.parametrize("case", ["softmax", "arc-face", "proxy-anchor", "mpa", "mpa-ap"])
def test_the_dense_path_of_a_gpu_equals_the_chunks(case: str, precision: str | None) -> None:
    torch.manual_seed(0)
    loss = make(case, 60, 32, 2, products=precision)
    x, y = torch.randn(16, 32, requires_grad=True), torch.arange(16) * 7 % 60
    with patch.object(Plan, "of", lambda *_, **__: Plan(60, keep=False, dense=True)):
        value = loss(x, y)
        found = value, *gradients(value, x, loss.proxies)
    loss.chunk_size = 25
    value = loss(x, y)
    tolerance = 5e-3 if precision in ("tf32", "half") else 1e-4
    for got, right in zip(found, (value, *gradients(value, x, loss.proxies)), strict=True):
        assert (got - right).norm() <= tolerance * right.norm()


def test_a_gpu_holds_all_scores_up_to_512_mebibytes() -> None:
    scoring, distances = losses.NormalizedSoftmaxLoss(2, 2).scoring, losses.EuclideanSoftmaxLoss(2, 2).scoring
    memory = 80 * 10**9
    assert Plan.of(scoring, 2**10, 2**17, 1, 512, memory) == Plan(2**17, keep=False, dense=True)
    assert Plan.of(scoring, 2**10, 2**17 + 1, 1, 512, memory) == Plan(2**17, keep=False)
    assert Plan.of(scoring, 2**10, 2**17, 1, 512, 2**33) == Plan(2**16, keep=False)  # of a small GPU
    assert Plan.of(distances, 2**10, 2**10, 1, 512, memory) == Plan(2**10, keep=True)


@pytest.mark.parametrize("case", ["proxy-anchor", "mpa"])
def test_sums_without_the_maximum_are_exact_at_the_extremes(case: str) -> None:
    """Sums without subtracting the maximum equal sums with it."""
    x, y = torch.randn(3, 4, requires_grad=True), torch.ones(3, dtype=torch.int64)
    for alpha in (32.0, 300.0):
        loss = make(case, 3, 4, 2, alpha=alpha)
        value = loss(x, y)
        slopes = gradients(value, x, loss.proxies)
        loss.chunk_size = 2
        expected = loss(x, y)
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(slopes, gradients(expected, x, loss.proxies), rtol=1e-4, atol=1e-6)
        assert value.isfinite()
