"""Sections of a recipe: batches, epochs, annealing, averages and plateaus."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from proxemic.data.samplers import MakesBatches
from proxemic.ranges import check_fields
from proxemic.training.callbacks.callback import Callback
from proxemic.training.parts.loggers import Logger

TrainingPrecision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]


def require(condition: bool, message: str) -> None:
    """Raise `ValueError` unless a value of a recipe is allowed."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class BatchConfig:
    """How batches are formed.

    Args:
        size: Images per training batch, of all processes together.
        images_per_class: m images of each of size/m classes; null draws images at random.
        workers: Processes that load images, up to 256, for each process of a run; 0 loads in the training process,
            which is fastest for small images in memory.
        micro_batches: The network computes the batch in this many micro-batches, and once more for the gradients. This
            takes the memory of one micro-batch and gives the loss of the whole batch, at the cost of a second forward
            pass. Batch norm takes its statistics from each micro-batch.
        sampler: Any `proxemic.data.Batches`, also a class of your own, instead of ``images_per_class``. Its constructor
            is passed those arguments that it has among ``labels``, ``num_images``, ``batch_size``, ``seed`` and
            ``categories``.

    Raises:
        ValueError: If a count is not allowed, or both ``images_per_class`` and ``sampler`` are given.
    """

    size: int = 128
    images_per_class: int | None = None
    workers: int = 0
    micro_batches: int = 1
    sampler: MakesBatches | None = None

    def __post_init__(self) -> None:
        check_fields(self, "batches", size="[1, inf)", workers="[0, 256]", micro_batches=f"[1, {self.size}]")
        count = self.images_per_class
        require(
            count is None or (count >= 1 and self.size % count == 0),
            f"batches.images_per_class is {count}, but must divide batches.size, which is {self.size}: "
            "a batch is made of size/images_per_class classes.",
        )
        require(
            count is None or self.sampler is None,
            "batches.images_per_class and batches.sampler are both given: leave one of them out (null).",
        )


@dataclass(frozen=True)
class GammaAnnealing:
    """Moves the γ of the pooling over a class's proxies from ``begin`` to the recipe's γ, epoch by epoch.

    While γ is large, all proxies of a class contribute to its score and move alike; as it falls, each is left with the
    images nearest to it. γ is constant within an epoch, and its logarithm changes evenly. The saved loss has the
    recipe's γ.

    Args:
        begin: γ > 0 in the first epoch.
        epochs: Number of epochs, at least 2; from the last of them on, γ is the recipe's.

    Raises:
        ValueError: If a number is out of its range.

    >>> [round(GammaAnnealing(begin=1.0, epochs=3).gamma(epoch, end=0.01), 4) for epoch in range(4)]
    [1.0, 0.1, 0.01, 0.01]
    """

    begin: float
    epochs: int

    def __post_init__(self) -> None:
        check_fields(self, "training.anneal_gamma", begin="(0, inf)", epochs="[2, inf)")

    def gamma(self, epoch: int, end: float) -> float:
        """Return γ in an epoch, counted from 0, if the last γ is ``end``."""
        return end if epoch >= self.epochs - 1 else self.begin * (end / self.begin) ** (epoch / (self.epochs - 1))


@dataclass(frozen=True)
class Averaging:
    """An average of the network's weights, which may be selected instead of the weights themselves.

    Both are evaluated after each epoch, and the better one enters model selection; without model selection, the average
    is kept. The statistics of batch norm are averaged like the weights. The loss and its proxies are not averaged: the
    run keeps those of the selected epoch.

    Args:
        decay: Decay of an exponential average over steps, in (0, 1), such as 0.999, which covers about 1/(1 − decay)
            steps. Null takes the plain average of the weights after each epoch.
        begins: The first epoch, counted from 1, whose weights are averaged.

    Raises:
        ValueError: If a number is out of its range.

    Source: Izmailov et al. 2018, Averaging weights leads to wider optima and better generalization (null), and Polyak
    and Juditsky 1992 (exponential averages), by `torch.optim.swa_utils.AveragedModel`.
    """

    decay: float | None = 0.999
    begins: int = 1

    def __post_init__(self) -> None:
        check_fields(self, "training.average", decay="(0, 1)", begins="[1, inf)")

    def share(self, averaged: int) -> float:
        """Return the fraction of the newest weights in an average that already contains ``averaged`` others.

        >>> Averaging(decay=None).share(3), Averaging(decay=0.75).share(3)
        (0.25, 0.25)
        """
        return 1 / (averaged + 1) if self.decay is None else 1 - self.decay


@dataclass(frozen=True)
class UntilPlateau:
    """Ends a phase early once evaluation.metric on the validation classes no longer improves.

    Args:
        patience: Epochs without an improvement after which the phase ends, at least 1.
        min_improvement: Only an increase of the metric, which is in [0, 1], by more than this counts; 0 or more.

    Raises:
        ValueError: If a number is out of its range.

    Source: realigned softmax warping, appendix D-A1 ("until validation accuracy plateaus"); it states no patience.

    >>> UntilPlateau(patience=2, min_improvement=0.01).reached([0.5, 0.6, 0.605, 0.61, 0.7])
    4
    """

    patience: int = 5
    min_improvement: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "training.until_plateau", patience="[1, inf)", min_improvement="[0, inf)")

    def reached(self, values: Sequence[float]) -> int | None:
        """Return the number of epochs after which the metric reached a plateau; None if it has not."""
        best, since = -math.inf, 0
        for epoch, value in enumerate(values, start=1):
            if value > best + self.min_improvement:
                best, since = value, epoch
            elif epoch - since >= self.patience:
                return epoch
        return None


@dataclass(frozen=True)
class TrainingConfig:
    """How long, from which start and on which hardware a run trains.

    Args:
        epochs: Passes over the training images in both phases together, at least 1.
        until_plateau: Ends a phase early once evaluation.metric on the validation classes no longer improves; epochs is
            then the maximum. Null trains all epochs.
        warmup_epochs: Number of first epochs in which only head and proxies are trained, and not the backbone.
        start_from: A run whose selected weights, of the network and of the loss, initialise this run. If the two runs
            have different images, only the proxies of classes with the same names are taken from the loss.
        start_proxies: The initial proxies: `drawn` by the loss's ``init``; `class_means`, the mean embedding of each
            class by the initial network, for pretrained networks and one proxy per class; or `k_means`, the centres of
            K clusters of the embeddings of each class. At most 16,384 training images are used, drawn by the seed;
            classes without any of these images keep the drawn proxies. Not with ``start_from``.
        spread_after: With `k_means`, the proxies of a class move alike for this many epochs and are then spread over
            the clusters of its embeddings by the network at that time; 0 spreads them before the first step.
        anneal_gamma: How the γ of the pooling over proxies changes in the first epochs to the γ of the loss; null for
            no change.
        precision: 32-true, or float32 weights with autocast to bfloat16 (bf16-mixed) or, on CUDA GPUs, to float16 with
            a scaled loss (16-mixed). `auto` chooses and reports the fastest: on a CPU it times two steps of 32-true and
            of bf16-mixed; on a CUDA GPU it takes bf16-mixed if the GPU computes in bfloat16, else 16-mixed. A resumed
            run keeps its choice; name a precision for runs that are to be compared.
        compile: Whether to compile the loss by `torch.compile`, which changes the last digits of results. `auto` does
            so on a CUDA GPU in one process, for a loss of this package that looks at all classes, if the run has at
            least 20,000 steps, as compiling takes about a minute.
        checkpoint_minutes: Longest time between two checkpoints; one is also written after every epoch.
        accelerator: cpu, cuda, mps, or auto for the best one there is.
        threads: CPU threads of torch in each process; the last digits of results depend on it. Null lets torch choose
            (``OMP_NUM_THREADS`` or the number of processors) in ``proxemic train``, and takes 1 in the runs of a
            comparison, of tuning or of a reality check.
        sync_batch_norm: Whether batch norm takes the statistics of the whole batch if several processes train on GPUs.
            On CPUs each process takes the statistics of its own part, and the first process's are kept.
        average: An average of the network's weights, which may be selected instead of the weights after an epoch; null
            for none.
        label_noise: Fraction, in [0, 1), of training images that get a wrong label, drawn uniformly by the recipe's
            ``seed``, to measure the effect of wrong labels. Validation and test labels stay correct.
        callbacks: Classes derived from `proxemic.training.Callback`; the values of such as
            `proxemic.training.DistanceToProxy` are added to the history.
        loggers: `proxemic.training.CSVLog`, `proxemic.training.TensorBoardLog`, or any class with
            ``log_metrics(metrics, step)``; null takes these two, in the run directory's ``logs``.

    Raises:
        ValueError: If a number is out of its range.
    """

    epochs: int = 10
    until_plateau: UntilPlateau | None = None
    warmup_epochs: int = 0
    start_from: Path | None = None
    start_proxies: Literal["drawn", "class_means", "k_means"] = "drawn"
    spread_after: int = 0
    anneal_gamma: GammaAnnealing | None = None
    checkpoint_minutes: float = 10.0
    precision: TrainingPrecision = "32-true"
    compile: Literal["auto"] | bool = "auto"
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: int | None = None
    sync_batch_norm: bool = True
    average: Averaging | None = None
    label_noise: float = 0.0
    callbacks: list[Callback] | None = None
    loggers: list[Logger] | None = None

    def __post_init__(self) -> None:
        check_fields(
            self,
            "training",
            epochs="[1, inf)",
            warmup_epochs="[0, inf)",
            spread_after=f"[0, {self.epochs})",
            threads="[1, inf)",
            label_noise="[0, 1)",
        )
        require(
            self.spread_after == 0 or self.start_proxies == "k_means",
            f"training.spread_after is {self.spread_after}, but training.start_proxies is {self.start_proxies}: "
            "set that to k_means, or spread_after to 0.",
        )
        require(
            self.average is None or self.average.begins <= self.epochs,
            f"training.average.begins is {self.average and self.average.begins}, but must be "
            f"one of the {self.epochs} epochs.",
        )
