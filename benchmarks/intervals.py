"""Do intervals over test classes cover the truth, and are p-values honest, with few classes?

Test sets are drawn from one population of classes, some of them harder than others; `retrieval_metrics` evaluates.
The truth is the mean over all test sets of as many classes. Beside the bootstrap over classes stands the interval of
Student's t with the linearised variance of the mean over classes. For p-values two equally good models, the same
embeddings with independent noise, are compared.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from scipy.stats import t as student
from torch import Tensor

from measure import command, print_header, print_row
from proxemic.metrics import Interval, bootstrap_intervals, paired_differences, retrieval_metrics

METRICS = ("recall@1", "map@r")
IMAGES, DIM, LEVEL = 10, 8, 0.95


def draw(classes: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw embeddings of a test set before a model's noise: centres in all directions, and images around them."""
    centers = torch.randn(classes, 1, DIM, generator=generator)
    spread = torch.randn(classes, 1, 1, generator=generator).mul(0.5).exp()
    images = centers + spread * torch.randn(classes, IMAGES, DIM, generator=generator)
    return images.flatten(0, 1), torch.arange(classes).repeat_interleave(IMAGES)


def evaluate(points: Tensor, labels: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
    """Evaluate each query for a model that adds noise of its own."""
    noisy = points + 0.5 * torch.randn(points.shape, generator=generator)
    found = retrieval_metrics(noisy, labels, recall_at=(1,)).per_query
    return {name: found[name] for name in METRICS}


def student_interval(values: Tensor, labels: Tensor) -> Interval:
    """Return the mean and Student's t times the deviation of sums over classes."""
    classes, mean = int(labels.max()) + 1, float(values.mean())
    rest = torch.zeros(classes, dtype=torch.float64).index_add_(0, labels, values - mean)
    deviation = float((rest.square().sum() * classes / (classes - 1)).sqrt()) / len(values)
    reach = float(student.ppf((1 + LEVEL) / 2, classes - 1)) * deviation
    return Interval(mean, mean - reach, mean + reach)


def simulate(classes: int, trials: int) -> None:
    """Print coverage and widths of both intervals, and how often equal models differ at the 5% level."""
    generator = torch.Generator().manual_seed(classes)
    intervals = defaultdict[str, list[tuple[Interval, Interval]]](list)
    p_values = defaultdict[str, list[float]](list)
    for _ in range(trials):
        points, labels = draw(classes, generator)
        first, second = (evaluate(points, labels, generator) for _ in range(2))
        drawn = bootstrap_intervals(first, labels, level=LEVEL)
        paired = paired_differences(first, second, labels, resamples=500)
        for name in METRICS:
            intervals[name].append((drawn[name], student_interval(first[name], labels)))
            p_values[name].append(paired[name].p_value)
    for name, found in intervals.items():
        truth = sum(interval.value for interval, _ in found) / trials
        shares = [truth]
        for kind in zip(*found, strict=True):
            shares.append(sum(interval.low <= truth <= interval.high for interval in kind) / trials)
            shares.append(sum(interval.high - interval.low for interval in kind) / trials)
        shares.append(sum(p <= 0.05 for p in p_values[name]) / trials)
        print_row(classes, name, *(f"{100 * share:.1f}" for share in shares))


def main(*, classes: Sequence[int] = (2, 5, 10, 20, 50, 100), trials: int = 1000, smoke: bool = False) -> None:
    """Print two rows for each number of classes, of so many test sets."""
    print(f"all in %, level {LEVEL:.0%}")
    print_header("classes", "metric", "truth", "bootstrap", "width", "Student t", "width", "p<=5%")
    for number in (3,) if smoke else classes:
        simulate(number, 5 if smoke else trials)


if __name__ == "__main__":
    command(main)
