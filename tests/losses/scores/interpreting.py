"""Runs the Triton kernels on every loss in Triton's interpreter, which a process has from its start or not at all.

Prints the largest errors, against the same loss in float64 without kernels, and what went wrong; with an argument, of
the checks alone whose names have it inside.
"""

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import product
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from losses.test_losses import CASES, make
from proxemic.losses import MeanProxyNorm, ProxyLoss
from proxemic.losses.scores import fused
from proxemic.losses.scores.products import Precision, Products
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import dense_scores
from proxemic.losses.scores.streaming import streamed_scores

WITHOUT = {"curricular-face", "smoothed", "euclidean", "warped", "warped-functions", "hist"}
"""Losses that the kernels do not know: of transformed scores, or of no cosines."""
BOUNDS: dict[Precision, float] = {"float32": 1e-5, "half": 3e-3}
OF_ALL: tuple[tuple[int, Precision], ...] = ((1, "float32"), (3, "float32"), (3, "half"))
PATHS = ("soft-triple", "mpa", "sub-center")
"""Data-wise, class-wise, and with a pooling that chooses."""

Results = tuple[Tensor, ...]


@contextmanager
def counted() -> Iterator[list[str]]:
    """The kernels that are started within."""
    names: list[str] = []

    def launch(kernel: Any, *arguments: Any, **constants: Any) -> None:
        names.append(kernel.__name__)
        started(kernel, *arguments, **constants)

    started = fused.launch
    with patch.object(fused, "launch", launch):
        yield names


def results(loss: ProxyLoss, x: Tensor, y: Tensor, **keywords: Any) -> Results:
    """The value and three times its gradients, of the same sampled classes in every call."""
    torch.manual_seed(1)
    x = x.detach().requires_grad_()
    value = loss(x, y, **keywords)
    grads = torch.autograd.grad(3 * value, (x, loss.proxies))
    return value.detach(), *(grad.to_dense() if grad.is_sparse else grad for grad in grads)


def check(found: Results, want: Results, bound: float) -> str:
    """The largest relative error, which is within its bound, and that of NaN is not."""
    errors = [float((got - right).norm() / right.norm()) for got, right in zip(found, want, strict=True)]
    assert all(error <= bound for error in errors), errors
    return f"{max(errors):.1e}"


def compare(
    case: str,
    proxies: int,
    precision: Precision,
    *,
    batch: int = 70,
    classes: int = 100,
    dim: int = 70,
    chunk: int = 70,
    **options: Any,
) -> str:
    """A loss in two chunks and its dense definition; no size is that of a tile."""
    torch.manual_seed(0)
    loss = make(case, classes, dim, proxies, chunk_size=chunk, products=precision, **options)
    x, y = CASES[case].length * torch.randn(batch, dim), torch.randint(classes, (batch,))
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    if case in WITHOUT:
        want = results(loss, x, y)
    else:
        loss.chunk_size = None  # so that it is dense
        want = results(loss.double(), x.double(), y)
    loss.float().load_state_dict(before)
    loss.compile_chunks, loss.chunk_size = "triton", chunk
    with counted() as names:
        found = results(loss, x, y)
    assert set(names) == (set() if case in WITHOUT else {"log_sums", "slopes"}), names
    if case in WITHOUT:
        assert all(torch.equal(got, same) for got, same in zip(found, want, strict=True))
        return "–"
    return check(found, want, BOUNDS[precision])


def large_tiles() -> str:
    """More than one tile of each axis, in half precision too."""
    return max(
        compare(case, proxies, "half", batch=150, classes=400, chunk=300)
        for case, proxies in (("softmax", 1), ("proxy-anchor", 1), ("soft-triple", 5))
    )


def margins(case: str, rate: float) -> str:
    """Margins per class, which are added to the logits, with sampled classes too."""
    options: dict[str, Any] = {"margin": torch.linspace(0.05, 0.3, 100).tolist(), "sample_rate": rate}
    return max(compare(case, proxies, "float32", **options) for proxies in (1, 3))


def sharded(case: str, precision: Precision) -> str:
    """The scores of two shards, each of which has labels of the other, against the dense definition of all."""
    torch.manual_seed(0)
    scoring = make(case).scoring
    x, w, y = torch.randn(70, 40), torch.randn(150, 3, 40), torch.randint(150, (70,))
    weights = torch.rand(150) + 0.5

    def both(scores: Callable[..., Any], dtype: torch.dtype, *shards: slice, **options: Any) -> Results:
        queries, proxies = (each.to(dtype).requires_grad_() for each in (x, w))
        parts = []
        for shard in shards:
            sampling = SamplingWeights(150, weights[shard].to(dtype))
            parts.append(scores(queries, proxies[shard], y - shard.start, scoring, sampling=sampling, **options))
        positive, negative = (torch.stack([part[place] for part in parts]) for place in (0, 1))
        negative = negative.logsumexp(0) if scoring.class_reduction is None else negative.sum()
        value = (positive.sum(0) * torch.linspace(1, 2, 70)).sum() + (negative * 3).sum()
        return value.detach(), *torch.autograd.grad(value, (queries, proxies))

    kernels: dict[str, Any] = {"chunk_size": 50, "products": Products(precision), "compiled": "triton"}
    with counted() as names:
        found = both(streamed_scores, torch.float32, slice(0, 60), slice(60, 150), **kernels)
    assert names
    return check(found, both(dense_scores, torch.float64, slice(0, 150)), BOUNDS[precision])


def of_two_processes() -> str:
    """A loss whose classes are sharded over two processes, against one process."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = [(rank, f"file://{folder}/store") for rank in range(2)]
        with get_context("fork").Pool(2) as pool:
            return max(pool.starmap(of_one_process, arguments, chunksize=1))


def of_one_process(rank: int, store: str) -> str:
    """This process's part of the joined batch and of the classes."""
    dist.init_process_group("gloo", store, rank=rank, world_size=2)
    torch.manual_seed(0)
    loss = make("mpa-ap", 150, 40, 3, sample_rate=0.5)
    x, y = torch.randn(60, 40), torch.randint(150, (60,))
    want = results(make_double(loss), x.double(), y)
    # The network's gradients are averaged over the processes.
    want = want[0], 2 * want[1][30 * rank : 30 * rank + 30], want[2][75 * rank : 75 * rank + 75]
    loss.sample_rate, loss.compile_chunks, loss.chunk_size = 1.0, "triton", 50
    loss.distribute(sharded=True)
    part = slice(30 * rank, 30 * rank + 30)
    with counted() as names:
        found = results(loss, x[part], y[part])
    assert names
    dist.destroy_process_group()
    return check(found, want, BOUNDS["float32"])


def make_double(loss: ProxyLoss) -> ProxyLoss:
    """The same loss of all classes, in float64."""
    other = make("mpa-ap", 150, 40, 3).double()
    other.load_state_dict(loss.state_dict())
    return other


def weighted() -> str:
    """Samples with weights, of which some are 0."""
    torch.manual_seed(0)
    loss = make("arc-face", 150, 40, 3, chunk_size=60, regularizers=(MeanProxyNorm(0.5),))
    x, y, weights = torch.randn(30, 40), torch.randint(150, (30,)), torch.arange(30.0) % 4
    want = results(loss.double(), x.double(), y, weights=weights.double())
    loss.float().compile_chunks = "triton"
    return check(results(loss, x, y, weights=weights), want, 1e-5)


def second_backward(case: str) -> str:
    """Of a retained graph: the same bits again."""
    torch.manual_seed(0)
    loss = make(case, 150, 40, 3, chunk_size=60, compile_chunks="triton")
    x, y = torch.randn(30, 40, requires_grad=True), torch.randint(150, (30,))
    value = loss(x, y)
    first = torch.autograd.grad(3 * value, (x, loss.proxies), retain_graph=True)
    second = torch.autograd.grad(3 * value, (x, loss.proxies))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return "0"


def one_class(case: str) -> str:
    """A batch of one class, which has no negatives: its sum over the batch is empty."""
    torch.manual_seed(0)
    loss = make(case, 20, 33, 3, chunk_size=8)
    x, y = torch.randn(5, 33), torch.full((5,), 9)
    want = results(loss.double(), x.double(), y)
    loss.float().compile_chunks = "triton"
    return check(results(loss, x, y), want, 1e-5)


def lengths() -> str:
    """Proxies of very unequal lengths, one of which has no direction: half precision knows directions alone."""
    torch.manual_seed(0)
    loss = make("softmax", 150, 40, 2, chunk_size=60)
    length = torch.logspace(-9, 9, 300).view(150, 2, 1)
    with torch.no_grad():
        loss.proxies.copy_(torch.nn.functional.normalize(torch.randn(150, 2, 40), dim=2) * length)
        loss.proxies[3, 1] = 0
    x, y = torch.randn(30, 40), torch.randint(150, (30,))
    want = results(loss.double(), x.double(), y)
    loss.float().compile_chunks, loss.products = "triton", "half"
    found = results(loss, x, y)
    assert (found[2][3, 1] == 0).all()
    of_directions, wanted = ((value, dx, dw * length) for value, dx, dw in (found, want))
    return check(of_directions, wanted, 3e-3)


def as_planned() -> str:
    """Chunks of a size that fits a cache, which keep no scores."""
    torch.manual_seed(0)
    loss = make("softmax", 300, 500, 1, compile_chunks="triton")
    x, y = torch.randn(20, 500), torch.randint(300, (20,))
    with patch.object(fused, "_CACHE", 200_000 / 2**25), counted() as names:
        found = results(loss, x, y)
    assert names == ["log_sums"] * 3 + ["slopes"] * 3, names
    loss.compile_chunks = False
    return check(found, results(loss.double(), x.double(), y), 1e-5)


def left_alone() -> str:
    """What the kernels do not compute is computed as before: float64, three products, and too many proxies."""
    torch.manual_seed(0)
    double = make("softmax", 20, 8, 2, chunk_size=8, compile_chunks="triton").double()
    split = make("softmax", 20, 8, 2, chunk_size=8, compile_chunks="triton", products="split")
    many = make("softmax", 20, 8, 65, chunk_size=8, compile_chunks="triton")
    with counted() as names:
        for loss in (double, split, many):
            results(loss, torch.randn(5, 8).to(loss.proxies), torch.arange(5))
    assert not names
    return "0"


def main() -> None:
    """Run all."""
    assert "triton" not in sys.modules, "a loss without kernels has imported Triton"
    os.environ["TRITON_INTERPRET"] = "1"
    warnings.filterwarnings("ignore", "divide by zero", RuntimeWarning)  # NumPy's, of the logarithm of an empty sum
    checks: dict[str, Callable[[], str]] = {
        f"{case}, K = {proxies}, {precision}": partial(compare, case, proxies, precision)
        for case in CASES
        for proxies, precision in OF_ALL
    }
    several = product(PATHS, (10, 64))
    checks |= {f"{case}, K = {proxies}": partial(compare, case, proxies, "float32") for case, proxies in several}
    checks |= {f"{case}, sampled": partial(compare, case, 3, "half", sample_rate=0.3) for case in PATHS}
    checks |= {f"{case}, sharded, {each}": partial(sharded, case, each) for case, each in product(PATHS, BOUNDS)}
    checks |= {f"{case}, smallest": partial(compare, case, 2, "float32", batch=1, classes=2, dim=3) for case in PATHS}
    checks |= {f"{case}, one chunk": partial(compare, case, 3, "float32", chunk=100) for case in PATHS}
    checks |= {f"{case}, one class": partial(one_class, case) for case in PATHS}
    checks |= {f"{case}, second backward": partial(second_backward, case) for case in PATHS}
    rates = product(("mpa", "mpa-dw"), (1.0, 0.3))
    checks |= {f"{case}, margins, {rate}": partial(margins, case, rate) for case, rate in rates}
    checks |= {
        "large tiles": large_tiles,
        "two processes": of_two_processes,
        "weights": weighted,
        "lengths": lengths,
        "planned": as_planned,
        "left alone": left_alone,
    }
    checks = {name: each for name, each in checks.items() if all(part in name for part in sys.argv[1:])}
    faults = 0
    for name, each in checks.items():
        try:
            print(f"{name}: {each()}", flush=True)
        except Exception as error:
            faults += 1
            print(f"{name}: {type(error).__name__} {error}", flush=True)
    print(f"{len(checks)} checks, {faults} faults")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
