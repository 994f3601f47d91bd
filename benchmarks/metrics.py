"""Speed and memory of the retrieval metrics, beside the bare matrix product of all pairs.

    python benchmarks/metrics.py                     # N = 5,000 … 60,502, tens of minutes on two cores
    python benchmarks/metrics.py --sizes 20000
    python benchmarks/metrics.py --memory            # peak memory
    python benchmarks/metrics.py --peers             # beside pytorch-metric-learning and torchmetrics
    python benchmarks/metrics.py --smoke             # small sizes, seconds

The bare product is X Xᵀ of N × 512 float32 numbers, tile by tile into one buffer: writing all of it would be slower.
A column is a median time over that of the bare product in the same rounds. Embeddings are unit rows about random
class centres, 5.3 a class as in Stanford Online Products; for MAP and MRR over the whole list so far about them that
nearly all relevant items must be looked for there.
"""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from measure import medians, resident_peak
from proxemic.metrics import RetrievalMetrics, retrieval_metrics

DIM = 512
SIZES = (5_000, 10_000, 20_000, 40_000, 60_502)
TILE = (2048, 8192)
FAR = 4.0


def embeddings(n: int, device: str, noise: float = 1.5) -> tuple[Tensor, Tensor]:
    """Unit rows and labels."""
    generator = torch.Generator().manual_seed(0)
    classes = round(n / 5.3)
    labels = torch.randint(classes, (n,), generator=generator)
    points = torch.randn(classes, DIM, generator=generator)[labels] + noise * torch.randn(n, DIM, generator=generator)
    return torch.nn.functional.normalize(points, dim=1).to(device), labels.to(device)


def bare(points: Tensor) -> None:
    """Every product, none kept."""
    buffer = points.new_empty(TILE)
    for rows in points.split(TILE[0]):
        for columns in points.split(TILE[1]):
            torch.mm(rows, columns.T, out=buffer[: len(rows), : len(columns)])


def evaluate(points: Tensor, labels: Tensor, *more: int, map: bool = False, mrr: bool = False) -> RetrievalMetrics:  # noqa: A002
    """The metrics of one call."""
    return retrieval_metrics(points, labels, recall_at=(1, 10, 100, *more), ndcg_at=(10, 100), map=map, mrr=mrr)


def table(sizes: Sequence[int], rounds: int, device: str, deep: int) -> None:
    """Print time and multiples of the bare product."""
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device}, D = {DIM}")
    print(f"{'N':>7} {'bare s':>8} {'ours s':>8} {'ours':>6} {f'+ R@{deep}':>8} {'+ MRR':>6} {'+ MAP':>6}")
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
        seconds = medians(calls, rounds, cuda=device == "cuda")
        t = seconds["bare"]
        times = {name: each / t for name, each in seconds.items()}
        print(
            f"{n:7} {t:8.4g} {seconds['ours']:8.4g} {times['ours']:6.2f} {times['deep']:8.2f} {times['mrr']:6.2f} "
            f"{times['map']:6.2f}",
            flush=True,
        )


def memory(sizes: Sequence[int], deep: int) -> None:
    """Print how far resident memory rises beyond the embeddings, and what the promise allows."""
    for n in sizes:
        points, labels = embeddings(n, "cpu", FAR)
        bare(points[:100])  # the matrix library makes its workspaces
        for k, more, whole in ((100, (), False), (deep, (deep,), False), (100, (), True)):
            peak = resident_peak(partial(evaluate, points, labels, *more, map=whole, mrr=whole))
            allowed, name = 12 * n * k + 256e6, f"k={k}{' with MAP and MRR' if whole else ''}"
            print(f"N={n}, {name}: {peak / 1e6:.0f} MB, allowed {allowed / 1e6:.0f} MB", flush=True)


def peers(size: int, small: int, rounds: int) -> None:
    """Print times beside those of other libraries at the same k, the last on a size that it can hold."""
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
    from pytorch_metric_learning.utils.inference import CustomKNN
    from torchmetrics.retrieval import RetrievalHitRate, RetrievalMAP, RetrievalNormalizedDCG

    names = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
    calculator = AccuracyCalculator(include=names, k=100, knn_func=CustomKNN(CosineSimilarity(), batch_size=2048))
    points, labels = embeddings(size, "cpu")
    calls: dict[str, Callable[[], object]] = {
        "bare": partial(bare, points),
        "ours": partial(evaluate, points, labels),
        "pytorch-metric-learning": lambda: calculator.get_accuracy(points, labels),
    }
    _print(size, medians(calls, rounds))

    points, labels = embeddings(small, "cpu")
    others = torch.arange(small - 1).expand(small, -1) + (torch.arange(small - 1) >= torch.arange(small)[:, None])
    indexes = torch.arange(small)[:, None].expand_as(others)

    def with_torchmetrics() -> None:
        scores = (points @ points.T).gather(1, others)
        relevant = labels[others] == labels[:, None]
        metrics = [kind(top_k=k) for kind in (RetrievalHitRate, RetrievalNormalizedDCG) for k in (1, 10, 100)]
        for metric in (*metrics, RetrievalMAP()):
            metric(scores.flatten(), relevant.flatten(), indexes.flatten())

    calls = {
        "bare": partial(bare, points),
        "ours": partial(evaluate, points, labels),
        "torchmetrics": with_torchmetrics,
    }
    _print(small, medians(calls, rounds))


def _print(n: int, seconds: dict[str, float]) -> None:
    for name, value in seconds.items():
        print(f"N={n} {name:24} {value:8.3f} s {value / seconds['bare']:8.2f}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes and few rounds: does it run?")
    parser.add_argument("--memory", action="store_true", help="peak memory instead of time")
    parser.add_argument("--peers", action="store_true", help="beside other libraries instead")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args(argv)
    sizes, rounds, deep = ((1_200,), 1, 300) if args.smoke else (args.sizes, args.rounds, 1000)
    if args.memory:
        memory(sizes if args.smoke else (max(sizes),), deep)
    elif args.peers:
        peers(*((500, 200) if args.smoke else (20_000, 2_000)), rounds)
    else:
        table(sizes, rounds, args.device, deep)


if __name__ == "__main__":
    main()
