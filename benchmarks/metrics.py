"""Measure speed and memory of the retrieval metrics, relative to the bare matrix product of all pairs.

    python benchmarks/metrics.py                     # N = 5,000 … 60,502, tens of minutes on two cores
    python benchmarks/metrics.py --sizes 20000
    python benchmarks/metrics.py --memory            # peak memory
    python benchmarks/metrics.py --peers             # beside pytorch-metric-learning and torchmetrics
    python benchmarks/metrics.py --large             # 100,000 to 1,000,000 × 128, with peak memory
    python benchmarks/metrics.py --smoke             # small sizes, seconds

The bare product is X Xᵀ of N × 512 float32 numbers, tile by tile into one buffer: writing all of it would be slower.
A column is a median time divided by that of the bare product in the same rounds. Embeddings are unit rows around random
class centres, 5.3 per class as in Stanford Online Products. For MAP and MRR over the whole list, they are so far from
their centres that nearly all relevant items must be searched in the whole list. With ``--large``, at most 50,000 of
the items are queries, as time grows with their number.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from measure import command, medians, print_header, print_row, resident_peak
from proxemic.metrics import RetrievalMetrics, retrieval_metrics

DIM, TILE, FAR = 512, (2048, 8192), 4.0
LARGE, LARGE_DIM, QUERIES = (100_000, 300_000, 1_000_000), 128, 50_000


def embeddings(n: int, device: str = "cpu", noise: float = 1.5, dim: int = DIM) -> tuple[Tensor, Tensor]:
    """Draw unit rows and labels."""
    generator = torch.Generator().manual_seed(0)
    classes = round(n / 5.3)
    labels = torch.randint(classes, (n,), generator=generator)
    points = torch.randn(classes, dim, generator=generator)[labels] + noise * torch.randn(n, dim, generator=generator)
    return torch.nn.functional.normalize(points, dim=1).to(device), labels.to(device)


def bare(points: Tensor, queries: int | None = None) -> None:
    """Compute every product of the first queries, or of all items, and keep none."""
    buffer = points.new_empty(TILE)
    for rows in points[:queries].split(TILE[0]):
        for columns in points.split(TILE[1]):
            torch.mm(rows, columns.T, out=buffer[: len(rows), : len(columns)])


def evaluate(points: Tensor, labels: Tensor, *more: int, map: bool = False, mrr: bool = False) -> RetrievalMetrics:  # noqa: A002
    """Compute the metrics of one call."""
    return retrieval_metrics(points, labels, recall_at=(1, 10, 100, *more), ndcg_at=(10, 100), map=map, mrr=mrr)


def table(sizes: Sequence[int], rounds: int, device: str, deep: int) -> None:
    """Print time and multiples of the bare product."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device}, D = {DIM}")
    print_header("N", "bare s", "ours s", "ours", f"+ R@{deep}", "+ MRR", "+ MAP")
    for n in sizes:
        points, labels = embeddings(n, device)
        far, _ = embeddings(n, device, FAR)
        calls: dict[str, Callable[[], object]] = {
            "bare": partial(bare, points),
            "ours": partial(evaluate, points, labels),
            "deep": partial(evaluate, points, labels, deep),
            "mrr": partial(evaluate, far, labels, mrr=True),
            "map": partial(evaluate, far, labels, map=True),
        }
        bare_time, *times = medians(calls, rounds, cuda=device == "cuda").values()
        print_row(n, f"{bare_time:.4g}", f"{times[0]:.4g}", *(f"{seconds / bare_time:.2f}" for seconds in times))


def measure_memory(n: int, deep: int) -> None:
    """Print the peak of resident memory beyond the embeddings, and the documented limit."""
    points, labels = embeddings(n, noise=FAR)
    bare(points[:100])  # creates the workspaces of the matrix library
    for k, more, whole in ((100, (), False), (deep, (deep,), False), (100, (), True)):
        peak = resident_peak(partial(evaluate, points, labels, *more, map=whole, mrr=whole))
        allowed, name = 12 * n * k + 256e6, f"k={k}{' with MAP and MRR' if whole else ''}"
        print(f"N={n}, {name}: {peak / 1e6:.0f} MB, allowed {allowed / 1e6:.0f} MB", flush=True)


def measure_large(sizes: Sequence[int], most: int) -> None:
    """Print time beside the bare products, and the peak of resident memory beyond the embeddings."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, D = {LARGE_DIM}")
    print_header("N", "queries", "bare s", "ours s", "ours", "MB")
    for n in sizes:
        points, labels = embeddings(n, dim=LARGE_DIM)
        queries = torch.arange(min(n, most))
        one = partial(retrieval_metrics, recall_at=(1, 10, 100), ndcg_at=(10, 100))
        call = partial(one, points, labels)
        if len(queries) < n:
            call = partial(one, points[queries], labels[queries], points, labels, exclude=queries)
        bare(points, 100)  # creates the workspaces of the matrix library
        start = time.perf_counter()
        bare(points, len(queries))
        between = time.perf_counter()
        peak = resident_peak(call)
        seconds, ours = between - start, time.perf_counter() - between
        print_row(n, len(queries), f"{seconds:.4g}", f"{ours:.4g}", f"{ours / seconds:.2f}", f"{peak / 1e6:.0f}")


def compare_peers(size: int, small: int, rounds: int) -> None:
    """Print times beside other libraries at the same k, torchmetrics at a size that it can hold."""
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN
    from torchmetrics.retrieval import RetrievalHitRate, RetrievalMAP, RetrievalNormalizedDCG

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k=100, knn_func=CustomKNN(CosineSimilarity(), batch_size=2048))

    def with_torchmetrics(points: Tensor, labels: Tensor) -> None:
        n = len(points)
        others = torch.arange(n - 1).expand(n, -1) + (torch.arange(n - 1) >= torch.arange(n)[:, None])
        scores, relevant = (points @ points.T).gather(1, others), labels[others] == labels[:, None]
        indexes = torch.arange(n)[:, None].expand_as(others)
        metrics = [kind(top_k=k) for kind in (RetrievalHitRate, RetrievalNormalizedDCG) for k in (1, 10, 100)]
        for metric in (*metrics, RetrievalMAP()):
            metric(scores.flatten(), relevant.flatten(), indexes.flatten())

    print_header("N", "", "s", "times the bare product")
    for n, name, peer in (
        (size, "pytorch-metric-learning", calculator.get_accuracy),
        (small, "torchmetrics", with_torchmetrics),
    ):
        points, labels = embeddings(n)
        calls = {"bare": partial(bare, points)}
        calls |= {"ours": partial(evaluate, points, labels), name: partial(peer, points, labels)}
        seconds = medians(calls, rounds)
        for way, value in seconds.items():
            print_row(n, way, f"{value:.3f}", f"{value / seconds['bare']:.2f}")


def main(
    *,
    memory: bool = False,
    peers: bool = False,
    large: bool = False,
    sizes: Sequence[int] = (5_000, 10_000, 20_000, 40_000, 60_502),
    rounds: int = 3,
    device: Literal["cpu", "cuda"] = "cpu",
    smoke: bool = False,
) -> None:
    """Print the table of speed, or of memory or other libraries."""
    sizes, rounds, deep = ((1_200,), 1, 300) if smoke else (sizes, rounds, 1000)
    if memory:
        measure_memory(max(sizes), deep)
    elif large:
        measure_large(*(((900, 1_200), 1_000) if smoke else (LARGE, QUERIES)))
    elif peers:
        compare_peers(*((500, 200) if smoke else (20_000, 2_000)), rounds)
    else:
        table(sizes, rounds, device, deep)


if __name__ == "__main__":
    command(main)
