"""The typed recipe, with every value that a training run depends on."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from operator import methodcaller
from typing import Any, Literal

from proxemic.data import Augmentation, CacheConfig, ImageSource, Preprocessing, Splits, VectorAugmentation
from proxemic.data.splits import flip_labels
from proxemic.errors import UserError
from proxemic.losses.user_defined import LossFactory
from proxemic.models import ModelConfig
from proxemic.published import PublishedRow
from proxemic.ranges import SEEDS, check_fields
from proxemic.runs.evaluate import EvaluationConfig
from proxemic.training.config import BatchConfig, TrainingConfig, require
from proxemic.training.parameter_groups import Optimization
from proxemic.training.phases import SecondPhase


@dataclass(frozen=True)
class Recipe:
    """Everything that a training run depends on; a YAML file in the package or the user's own.

    Args:
        data: Where images come from and how classes are split.
        model: The embedding network.
        loss: Any proxy loss, `PairwiseLoss`, or a module of your own from embeddings and labels to a scalar. The number
            of classes and the embedding size are passed to it if it has arguments for them.
        optim: How the weights are optimised.
        cache: Whether to decode and shrink images once, for all epochs and runs.
        images: How all images are preprocessed.
        augment: How training images are augmented.
        vectors: How training vectors are augmented if ``model.backbone`` is none; ``cache``, ``images`` and
            ``augment`` must then keep their defaults.
        batches: How batches are formed.
        training: How long, from which start and on which hardware a run trains.
        evaluation: How embeddings are evaluated.
        second_phase: What changes for the last epochs; null for nothing.
        proxies: Whether each of several processes holds all proxies (replicated) or only those of its classes
            (sharded), with their optimiser state.
        seed: Seed of initial weights, order of images and augmentation.
        published: The rows of the papers' tables that this recipe reproduces; ``--against paper`` compares them with
            its results. Null for none. A recipe that extends another does not inherit them.

    Raises:
        ValueError: If parts of the recipe contradict each other, such as a second phase that takes all epochs.
    """

    data: ImageSource
    model: ModelConfig
    loss: LossFactory
    optim: Optimization
    cache: CacheConfig = field(default_factory=CacheConfig)
    images: Preprocessing = field(default_factory=Preprocessing)
    augment: Augmentation = field(default_factory=Augmentation)
    vectors: VectorAugmentation = field(default_factory=VectorAugmentation)
    batches: BatchConfig = field(default_factory=BatchConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    second_phase: SecondPhase | None = None
    proxies: Literal["replicated", "sharded"] = "replicated"
    seed: int = 0
    published: list[PublishedRow] | None = None

    def __post_init__(self) -> None:
        check_fields(self, seed=SEEDS)
        training, second, cache = self.training, self.second_phase, self.cache
        require(
            second is None or second.epochs < training.epochs,
            f"second_phase.epochs is {second and second.epochs}, but must be less than training.epochs, which is "
            f"{training.epochs} and counts both phases.",
        )
        select_on = self.evaluation.select_on
        require(
            training.until_plateau is None or select_on == "validation",
            "training.until_plateau waits for evaluation.metric on validation classes, but evaluation.select_on is "
            f"{select_on}: set it to validation, or training.until_plateau to null.",
        )
        annealing = training.anneal_gamma
        require(
            annealing is None or annealing.epochs <= self.lengths[0],
            f"training.anneal_gamma.epochs is {annealing and annealing.epochs}, but the "
            f"{'training' if second is None else 'first phase'} has {self.lengths[0]} epochs: lower it.",
        )
        self._check_sections()
        side, resize = cache.shorter_side, self.images.shorter_side or self.images.size
        require(
            side != "auto" or self.images.reduce,
            "cache.shorter_side is auto, which keeps what images.reduce makes of large images, but that is false: "
            "set images.reduce to true, or cache.shorter_side to null or a number of pixels.",
        )
        require(
            not isinstance(side, int) or side >= resize,
            f"cache.shorter_side is {side}, but images are resized to {resize} pixels, so that they would be "
            f"enlarged: give {resize} or more.",
        )

    def _check_sections(self) -> None:
        """Raise `ValueError` if a section about images is changed for vectors, or the other way round."""
        other, instead = ("vectors", "images") if self.model.takes_vectors else ("images", "vectors")
        for section in ("cache", "images", "augment") if self.model.takes_vectors else ("vectors",):
            for item in fields(getattr(self, section)):
                value = getattr(getattr(self, section), item.name)
                require(
                    (list(value) if isinstance(value, tuple) else value)
                    == (list(item.default) if isinstance(item.default, tuple) else item.default),
                    f"{section}.{item.name} is {value}, but model.backbone is {self.model.backbone_name}, which "
                    f"takes {other}, not {instead}: leave it out.",
                )

    def load(self) -> Splits:
        """Load the images, from the cache if there is one; raise `UserError` if they cannot be read."""
        return self.add_noise(self.load_clean(methodcaller("load")))

    def load_clean(self, load: Callable[[ImageSource], Splits]) -> Splits:
        """Load the images by a function of the source, without label noise; raise `UserError` likewise."""
        try:
            return self.cache.apply(load(self.data), self.images.reduced_side, self.images.bits)
        except ValueError as error:
            raise UserError(str(error)) from error

    def add_noise(self, splits: Splits) -> Splits:
        """Give some training images wrong labels, as ``training.label_noise`` says."""
        try:
            return replace(splits, train=flip_labels(splits.train, self.training.label_noise, self.seed))
        except ValueError as error:
            raise UserError(str(error)) from error

    @property
    def kind(self) -> Literal["images", "vectors"]:
        """The word for the network's inputs in messages."""
        return "vectors" if self.model.takes_vectors else "images"

    @property
    def preprocessing(self) -> dict[str, Any]:
        """The preprocessing for ``model.json``; None for vectors."""
        return {} if self.model.takes_vectors else self.images.as_dict()

    @property
    def lengths(self) -> tuple[int, ...]:
        """The largest number of epochs of each phase."""
        epochs, second = self.training.epochs, self.second_phase
        return (epochs,) if second is None else (epochs - second.epochs, second.epochs)
