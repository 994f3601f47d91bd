"""Do intervals over test classes cover the truth, and are p-values honest, with few classes?

Test sets are drawn from one population of classes, some of them harder than others; `retrieval_metrics` evaluates.
The truth is the mean over all test sets of as many classes. Beside the bootstrap over classes stands the interval of
Student's t with the linearised variance of the mean over classes. For p-values two equally good models, the same
embeddings with independent noise, are compared.
"""

import argparse
from collections.abc import Sequence

import torch
from scipy.stats import t as student
from torch import Tensor

from proxemic.metrics import Interval, bootstrap_intervals, paired_differences, retrieval_metrics

CLASSES = (2, 5, 10, 20, 50, 100)
METRICS = ("recall@1", "map@r")
IMAGES, DIM, LEVEL = 10, 8, 0.95


def draw(classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Embeddings of a test set before a model's noise: centres in all directions, and images around them."""
    centers = torch.randn(classes, 1, DIM, generator=generator)
    spread = torch.randn(classes, 1, 1, generator=generator).mul(0.5).exp()
    images = centers + spread * torch.randn(classes, IMAGES, DIM, generator=generator)
    return images.flatten(0, 1), torch.arange(classes).repeat_interleave(IMAGES)


def evaluate(points: Tensor, labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Values of each query, of a model that adds noise of its own."""
    noisy = points + 0.5 * torch.randn(points.shape, generator=generator)
    found = retrieval_metrics(noisy, labels, recall_at=(1,)).per_query
    return {name: found[name] for name in METRICS}


def student_interval(values: Tensor, labels: Tensor) -> Interval:
    """The mean and Student's t times the deviation of sums over classes."""
    classes, mean = int(labels.max()) + 1, float(values.mean())
    rest = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, values - mean)
    deviation = float((rest.square().sum() * classes / (classes - 1)).sqrt()) / len(values)
    reach = float(student.ppf((1 + LEVEL) / 2, classes - 1)) * deviation
    return Interval(mean, mean - reach, mean + reach)


def simulate(classes: int, trials: int) -> None:
    """Print coverage and widths of both intervals, and how often equal models differ at the 5% level."""
    generator = torch.Generator().manual_seed(classes)
    intervals: dict[str, list[tuple[Interval, Interval]]] = {name: [] for name in METRICS}
    p_values: dict[str, list[float]] = {name: [] for name in METRICS}
    for _ in range(trials):
        points, labels = draw(classes, generator)
        first, second = (evaluate(points, labels, generator) for _ in range(2))
        drawn = bootstrap_intervals(first, labels, level=LEVEL)
        paired = paired_differences(first, second, labels, resamples=500)
        for name in METRICS:
            intervals[name].append((drawn[name], student_interval(first[name], labels)))
            p_values[name].append(paired[name].p_value)
    for name, found in intervals.items():
        truth = sum(each.value for each, _ in found) / trials
        row = [f"{classes:7}", f"{name:8}", f"{100 * truth:6.1f}"]
        for kind in zip(*found, strict=True):
            covered = sum(each.low <= truth <= each.high for each in kind) / trials
            width = sum(each.high - each.low for each in kind) / trials
            row.append(f"{100 * covered:10.1f} {100 * width:8.1f}")
        row.append(f"{100 * sum(p <= 0.05 for p in p_values[name]) / trials:8.1f}")
        print(" ".join(row), flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="few test sets: does it run?")
    parser.add_argument("--classes", nargs="+", type=int, default=CLASSES)
    parser.add_argument("--trials", type=int, default=1000, help="test sets of each size")
    args = parser.parse_args(argv)
    print(f"classes metric    truth  bootstrap    width  Student t    width   p<=5%   (all in %, level {LEVEL:.0%})")
    for classes in (3,) if args.smoke else args.classes:
        simulate(classes, 5 if args.smoke else args.trials)


if __name__ == "__main__":
    main()
