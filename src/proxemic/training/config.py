"""Sections of a recipe: batches, epochs, annealing, averages, plateaus and cached features."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from proxemic.data.samplers import MakesBatches
from proxemic.ranges import check_fields

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger
else:  # recognised by some of their methods: importing Lightning takes seconds, and only training needs it

    @runtime_checkable
    class Callback(Protocol):
        """A callback of Lightning."""

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None: ...

        def load_state_dict(self, state_dict: Any) -> None: ...

    @runtime_checkable
    class Logger(Protocol):
        """A logger of Lightning."""

        def log_metrics(self, metrics: Any, step: Any = None) -> None: ...

        def finalize(self, status: str) -> None: ...


TrainingPrecision = Literal["auto", "32-true", "bf16-mixed", "16-mixed"]


def require(condition: bool, message: str) -> None:
    """Raise `ValueError` unless a value of a recipe is allowed."""
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class BatchConfig:
    """How images are gathered into batches.

    Args:
        size: Images per training batch, of all processes together.
        images_per_class: m images of each of size/m classes; null draws at random.
        workers: Processes that load images, up to 256; 0 loads in the training process, best for small images in
            memory. Each process of a run has as many.
        micro_batches: The network takes the batch in this many micro-batches and keeps nothing of them until their
            gradients are made, in a second pass: the memory of one micro-batch and the loss of the whole batch, at the
            price of one more forward pass. Batch norm sees the micro-batches.
        sampler: Any `proxemic.data.Batches`, also a class of your own, instead of ``images_per_class``; of ``labels``,
            ``num_images``, ``batch_size``, ``seed`` and ``categories``, what its constructor takes is filled in.

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
    """The γ of the pooling over the proxies of a class goes from ``begin`` to that of the recipe, epoch by epoch.

    While γ is large, all proxies of a class take part in its score and move alike; as it falls, each is left with the
    images that it is nearest to. γ is the same in all steps of an epoch, and its logarithm changes evenly. The loss
    that is saved has the γ of the recipe.

    Args:
        begin: γ > 0 in the first epoch.
        epochs: The epochs, at least 2; the last of them has the γ of the recipe, as have all after it.

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
        """γ in an epoch, counted from 0, if it ends at ``end``."""
        return end if epoch >= self.epochs - 1 else self.begin * (end / self.begin) ** (epoch / (self.epochs - 1))


@dataclass(frozen=True)
class Averaging:
    """An average of the network's weights, which stands for selection beside the weights themselves.

    It is evaluated after each epoch, and the better of the two stands for selection; where nothing is selected, the
    average is kept. The statistics of batch norm are averaged as the weights are. The loss and its proxies are not
    averaged: they are kept as they are after the chosen epoch.

    Args:
        decay: Of an exponential average of the weights after each step, the share that it keeps of itself, in (0, 1),
            such as 0.999; it looks back over about 1/(1 − decay) steps. Null is the average of the weights after each
            epoch, all alike.
        begins: The first epoch, from 1, whose weights are averaged.

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
        """Return the weight of the new weights in their average with ``averaged`` earlier ones.

        >>> Averaging(decay=None).share(3), Averaging(decay=0.75).share(3)
        (0.25, 0.25)
        """
        return 1 / (averaged + 1) if self.decay is None else 1 - self.decay


@dataclass(frozen=True)
class UntilPlateau:
    """A phase ends before its epochs are over where evaluation.metric on the validation classes no longer grows.

    Args:
        patience: Epochs without an improvement after which the phase ends, at least 1.
        min_improvement: By more than this the metric, in [0, 1], must exceed the best of the phase so far; 0 or more.

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
        """Return after how many epochs the metric's values have reached a plateau; None if they have not."""
        best, since = -math.inf, 0
        for epoch, value in enumerate(values, start=1):
            if value > best + self.min_improvement:
                best, since = value, epoch
            elif epoch - since >= self.patience:
                return epoch
        return None


@dataclass(frozen=True)
class FeatureConfig:
    """Whether the pooled features of a frozen backbone are computed once, for all epochs and runs.

    Training and validation then read features instead of images, and an epoch takes seconds; the final test goes
    through the whole model. The features are computed in `evaluation.precision` and kept as float32: those of 1,000
    images with 1,280 features take 5 MB, and as much for each copy.

    Cached features are reused if the image files (their paths, sizes and modification times, and boxes; the pixels of
    images that are in no files), the preprocessing, the precision, the backbone and its weights are the same; copies,
    if the augmentation and the recipe's seed are, too. What changes is computed anew, and old caches are not deleted;
    fewer or more copies share those that there are. A killed run goes on after the last batch that it had written.

    Args:
        cache: Whether they are; `model.train` must be `head`, and the pooling have no trained power (`gem`).
        copies: Augmented copies of each training image, of which each step draws one by the sample's seed; 1 to 10,000.
            Null trains on the features of the images as evaluation sees them, without augmentation.
        folder: Folder of the caches; null for the user's cache folder.

    Raises:
        ValueError: If the number of copies is out of its range, or there are copies without a cache.
    """

    cache: bool = False
    copies: int | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "features", copies="[1, 10000]")
        require(
            self.copies is None or self.cache,
            f"features.copies is {self.copies}, but features.cache is false, so that every epoch augments images "
            "anew: set features.cache to true, or leave features.copies null.",
        )


@dataclass(frozen=True)
class TrainingConfig:
    """How long and on what.

    Args:
        epochs: Passes over the training images, at least 1; of both phases, where there are two.
        until_plateau: A phase ends before its epochs are over where evaluation.metric on the validation classes no
            longer grows: epochs are then the most that there may be. Null trains all of them.
        warmup_epochs: In the first of these the backbone stands still; only head and proxies are trained.
        start_from: A run whose chosen weights this one begins with: those of the network, and of the loss; with other
            images, the proxies of the classes that have the same names.
        start_proxies: Where proxies begin: `drawn`, by the loss's ``init``; `class_means`, at the mean embeddings of
            the classes by the network as it begins, for pretrained networks and one proxy a class; or `k_means`, at the
            centres of K clusters of the embeddings of each class. Of more than 16,384 training images the seed draws as
            many, and classes of none keep the drawn proxies. Not with ``start_from``.
        spread_after: With `k_means`, the epochs in which the proxies of a class move as one, which are then spread over
            the clusters of the embeddings by the network of that time; 0 spreads them before the first step.
        anneal_gamma: The γ of the pooling over proxies falls over the first epochs to that of the loss; null for none.
        start_phase: 2 begins with the second phase: only its epochs are trained, usually with ``start_from`` set to a
            run of the first.
        precision: Lightning's name of the precision: 32-true, bf16-mixed or 16-mixed. `auto` takes the fastest and says
            so: on a CPU, of the first two, by two steps of each at the start; on a CUDA GPU bf16-mixed where that
            computes in bfloat16, else 16-mixed. A run keeps what it took; for runs to be compared, name one.
        compile: Whether `torch.compile` compiles the loss, on which the last digits depend. `auto` does so on a CUDA
            GPU in one process, for a loss of this package that looks at all classes, if the run has at least 20,000
            steps: compiling takes about a minute.
        checkpoint_minutes: Longest time between two checkpoints; one is also written after every epoch.
        accelerator: cpu, cuda, mps, or auto for the best one there is.
        threads: CPU threads of torch in each process, on which the last digits depend; null takes what torch finds,
            ``OMP_NUM_THREADS`` or the processors, in ``proxemic train``, and 1 in the runs of a comparison, a search or
            a reality check.
        sync_batch_norm: Of several processes with GPUs, batch norm takes the statistics of the joined batch. On CPUs,
            each process takes those of its part of the batch, and the first one's are evaluated and kept.
        average: An average of the network's weights, which stands for selection beside the weights after each epoch;
            null for none.
        interpolate: After the last epoch, the network is also evaluated with weights at these shares, in (0, 1), of the
            way from the start to the chosen epoch, such as [0.2, 0.4, 0.6, 0.8]; the best is kept where it is better.
        class_balance: β in [0, 1] of `proxemic.losses.class_balanced_weights`, by which images are weighed: at 1 all
            classes weigh alike, near it (0.999) those of few images more than the others; null weighs images alike.
        label_noise: Part, in [0, 1), of the training images that are given the label of another class, each as likely,
            to measure what wrong labels do; the recipe's ``seed`` draws them. Validation and test keep theirs.
        callbacks: Lightning callbacks, such as `proxemic.training.DistanceToProxy`, whose values join the history.
        loggers: Lightning loggers; null is TensorBoard and CSV in the run directory's ``logs``.

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
    start_phase: Literal[1, 2] = 1
    checkpoint_minutes: float = 10.0
    precision: TrainingPrecision = "32-true"
    compile: Literal["auto"] | bool = "auto"
    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: int | None = None
    sync_batch_norm: bool = True
    average: Averaging | None = None
    interpolate: Sequence[float] = ()
    class_balance: float | None = None
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
            class_balance="[0, 1]",
            label_noise="[0, 1)",
        )
        require(
            self.spread_after == 0 or self.start_proxies == "k_means",
            f"training.spread_after is {self.spread_after}, but training.start_proxies is {self.start_proxies}: "
            "set that to k_means, or spread_after to 0.",
        )
        require(
            all(0 < share < 1 for share in self.interpolate),
            f"training.interpolate is {[*self.interpolate]}, but must be shares above 0 and below 1: 0 is the "
            "start, 1 the chosen epoch.",
        )
        require(
            self.average is None or self.average.begins <= self.epochs,
            f"training.average.begins is {self.average and self.average.begins}, but must be one of the epochs, of "
            f"which there are {self.epochs}.",
        )
