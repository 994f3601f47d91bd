"""A recipe: every value that a training run depends on, typed."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from proxemic.data import Augmentation, CacheConfig, ImageSource, Preprocessing, Splits, VectorAugmentation
from proxemic.data.samplers import MakesBatches
from proxemic.data.splits import check_fraction, check_seed, flip_labels
from proxemic.errors import UserError
from proxemic.losses.class_weights import check_beta
from proxemic.losses.user_defined import MakesLoss
from proxemic.models import ModelConfig
from proxemic.published import PublishedRow
from proxemic.runs.evaluate import EvaluationConfig
from proxemic.training.annealing import GammaAnnealing
from proxemic.training.averaging import Averaging
from proxemic.training.features.config import FeatureConfig
from proxemic.training.parameter_groups import Optimization
from proxemic.training.phases import SecondPhase, UntilPlateau

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger
else:  # known by some of their methods: to import Lightning takes seconds, and only training needs it

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


MOST_WORKERS = 256


@dataclass(frozen=True)
class BatchConfig:
    """How images are gathered into batches.

    Args:
        size: Images a training batch, of all processes together.
        images_per_class: m images of each of size/m classes; null draws at random.
        workers: Processes that load images, up to 256; 0 loads in the training process, best for small images in
            memory. Each process of a run has as many.
        micro_batches: The network takes the batch in this many micro-batches and keeps nothing of them until their
            gradients are made, in a second pass: the memory of one micro-batch and the loss of the whole batch, at the
            price of one more forward pass. Batch norm sees the micro-batches.
        sampler: Any `proxemic.data.Batches`, also a class of your own, in place of ``images_per_class``; of ``labels``,
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
        if not 1 <= self.micro_batches <= max(self.size, 1):
            raise ValueError(
                f"batches.micro_batches is {self.micro_batches}, but must be from 1 to batches.size, which is "
                f"{self.size}."
            )
        if self.size < 1:
            raise ValueError(f"batches.size is {self.size}, but a batch needs at least 1 image.")
        if not 0 <= self.workers <= MOST_WORKERS:
            raise ValueError(
                f"batches.workers is {self.workers}, but must be from 0 to {MOST_WORKERS} processes: no more than this "
                "machine has processors is usual."
            )
        each = self.images_per_class
        if each is not None and (each < 1 or self.size % each):
            raise ValueError(
                f"batches.images_per_class is {each}, but must divide batches.size, which is {self.size}: "
                "a batch is made of size/images_per_class classes."
            )
        if each is not None and self.sampler is not None:
            raise ValueError(
                "batches.images_per_class and batches.sampler are both given: leave one of them out (null)."
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
        if self.epochs < 1:
            raise ValueError(f"training.epochs is {self.epochs}, but must be at least 1.")
        if self.warmup_epochs < 0:
            raise ValueError(f"training.warmup_epochs is {self.warmup_epochs}, but must be 0 or more.")
        if not 0 <= self.spread_after < self.epochs:
            raise ValueError(
                f"training.spread_after is {self.spread_after}, but must be 0 or more, and less than training.epochs, "
                f"which is {self.epochs}."
            )
        if self.spread_after > 0 and self.start_proxies != "k_means":
            raise ValueError(
                f"training.spread_after is {self.spread_after}, but training.start_proxies is {self.start_proxies}: "
                "set that to k_means, or spread_after to 0."
            )
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"training.threads is {self.threads}, but must be at least 1, or null for torch's own.")
        if not all(0 < share < 1 for share in self.interpolate):
            raise ValueError(
                f"training.interpolate is {[*self.interpolate]}, but must be shares above 0 and below 1: 0 is the "
                "start, 1 the chosen epoch."
            )
        if self.average is not None and self.average.begins > self.epochs:
            raise ValueError(
                f"training.average.begins is {self.average.begins}, but must be one of the epochs, of which there are "
                f"{self.epochs}."
            )
        if self.class_balance is not None:
            check_beta("training.class_balance", self.class_balance)
        check_fraction("training.label_noise", self.label_noise)


@dataclass(frozen=True)
class Recipe:
    """Everything that a training run depends on; a YAML file in the package or the user's own.

    Args:
        data: Where images come from and how classes are split.
        model: The embedding network.
        loss: Any proxy loss, `PairwiseLoss`, or a module of your own from embeddings and labels to a scalar; the number
            of classes and the embedding size are filled in where it takes them.
        optim: How the weights are moved.
        cache: Whether images are decoded and shrunk once, for all epochs and runs.
        images: What every image goes through.
        augment: What training images go through besides.
        vectors: How training vectors are varied, where ``model.backbone`` is none; ``cache``, ``images`` and
            ``augment`` are then left as they are.
        features: Whether the features of a frozen backbone are computed once, for all epochs and runs.
        batches: How images are gathered into batches.
        training: How long and on what.
        evaluation: How embeddings are evaluated.
        second_phase: What changes for the last epochs; null for nothing.
        proxies: Of several processes, each holds all proxies (replicated) or those of its part of the classes
            (sharded), with what the optimiser keeps of them.
        seed: Of initial weights, order of images and augmentation.
        published: The rows of the papers' tables that it stands for, which are shown beside its results by
            ``--against paper``; null for none. A recipe that extends another does not stand for its rows.

    Raises:
        ValueError: If parts of the recipe contradict each other, as a second phase that takes all epochs.
    """

    data: ImageSource
    model: ModelConfig
    loss: MakesLoss
    optim: Optimization
    cache: CacheConfig = field(default_factory=CacheConfig)
    images: Preprocessing = field(default_factory=Preprocessing)
    augment: Augmentation = field(default_factory=Augmentation)
    vectors: VectorAugmentation = field(default_factory=VectorAugmentation)
    features: FeatureConfig = field(default_factory=FeatureConfig)
    batches: BatchConfig = field(default_factory=BatchConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    second_phase: SecondPhase | None = None
    proxies: Literal["replicated", "sharded"] = "replicated"
    seed: int = 0
    published: list[PublishedRow] | None = None

    def __post_init__(self) -> None:
        check_seed("seed", self.seed)
        second = self.second_phase
        if second is None and self.training.start_phase == 2:
            raise ValueError("training.start_phase is 2, but the recipe has no second_phase: add one, or leave it 1.")
        if second is not None and self.training.start_phase == 1 and second.epochs >= self.training.epochs:
            raise ValueError(
                f"second_phase.epochs is {second.epochs}, but must be less than training.epochs, which is "
                f"{self.training.epochs} and counts both phases: or begin with it by --training.start_phase 2."
            )
        if self.training.until_plateau is not None and self.evaluation.select_on != "validation":
            raise ValueError(
                "training.until_plateau waits for evaluation.metric on validation classes, but evaluation.select_on is "
                f"{self.evaluation.select_on}: set it to validation, or training.until_plateau to null."
            )
        annealing = self.training.anneal_gamma
        if annealing is not None and annealing.epochs > self.lengths[0]:
            raise ValueError(
                f"training.anneal_gamma.epochs is {annealing.epochs}, but the "
                f"{'training' if second is None else 'first phase'} has {self.lengths[0]} epochs: lower it."
            )
        self._check_sections()
        if self.features.cache:
            self._check_features()
        if self.training.interpolate and self.evaluation.select_on == "last":
            raise ValueError(
                "training.interpolate is chosen by evaluation.metric on held-out classes, but evaluation.select_on is "
                "last: set it to validation, or training.interpolate to []."
            )
        side, resize = self.cache.shorter_side, self.images.shorter_side or self.images.size
        if side == "auto" and not self.images.reduce:
            raise ValueError(
                "cache.shorter_side is auto, which keeps what images.reduce makes of large images, but that is false: "
                "set images.reduce to true, or cache.shorter_side to null or a number of pixels."
            )
        if isinstance(side, int) and side < resize:
            raise ValueError(
                f"cache.shorter_side is {side}, but images are resized to {resize} pixels, so that they would be "
                f"enlarged: give {resize} or more."
            )

    def _check_sections(self) -> None:
        """Raise `ValueError` where a section about images is given for vectors, or the other way round."""
        other, instead = ("vectors", "images") if self.model.takes_vectors else ("images", "vectors")
        sections = ("cache", "images", "augment", "features") if self.model.takes_vectors else ("vectors",)
        for section in sections:
            given = getattr(self, section)
            for each in fields(given):
                value = getattr(given, each.name)
                if _plain(value) != _plain(each.default):
                    raise ValueError(
                        f"{section}.{each.name} is {value}, but model.backbone is {self.model.backbone_name}, which "
                        f"takes {other}, not {instead}: leave it out."
                    )

    def _check_features(self) -> None:
        """Raise `ValueError` where features change while the recipe trains, so that they cannot be kept."""
        if self.model.train != "head":
            raise ValueError(
                f"features.cache is true, but model.train is {self.model.train}, which changes the features: set it to "
                "head, or features.cache to false."
            )
        if self.model.pooling == "gem":
            raise ValueError(
                "features.cache is true, but model.pooling is gem, whose power is trained and changes the features: "
                "take cubic-gem or another pooling, or set features.cache to false."
            )

    def load(self) -> Splits:
        """The images, from the cache where there is one; `UserError` if they cannot be read."""
        try:
            splits = self.cache.apply(self.data.load(), self.images.reduced_side)
            return replace(splits, train=flip_labels(splits.train, self.training.label_noise, self.seed))
        except ValueError as error:
            raise UserError(str(error)) from error

    @property
    def kind(self) -> Literal["images", "vectors"]:
        """What the inputs of the network are called in messages."""
        return "vectors" if self.model.takes_vectors else "images"

    @property
    def preprocessing(self) -> dict[str, Any]:
        """What ``model.json`` says of the preprocessing of images; nothing for vectors."""
        return {} if self.model.takes_vectors else self.images.as_dict()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The most epochs that each phase has."""
        epochs, second = self.training.epochs, self.second_phase
        return (epochs,) if second is None else (epochs - second.epochs, second.epochs)

    def from_its_first_phase(self) -> "Recipe":
        """The recipe that is trained: of the second phase alone where ``training.start_phase`` is 2."""
        second = self.second_phase
        if second is None or self.training.start_phase == 1:
            return self
        training = replace(self.training, epochs=second.epochs, start_phase=1, warmup_epochs=0)
        return replace(self, loss=second.loss, optim=second.optim, training=training, second_phase=None)


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
