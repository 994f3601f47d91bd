"""Evaluation of held-out images in a training with Lightning."""

from typing import Any

from jaxtyping import Float
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from proxemic.data import ImageSet, Preprocessing
from proxemic.data.rows import Rows
from proxemic.errors import TrainingDiverged
from proxemic.metrics import RetrievalMetrics
from proxemic.ranges import check_range
from proxemic.runs.embed import embed_dataset, embed_images
from proxemic.runs.evaluate import EvaluationConfig, evaluate_embeddings


class RetrievalCallback(Callback):
    """After each epoch, embeds held-out data with the module and logs retrieval metrics.

    It works with any `LightningModule` whose ``forward`` turns inputs, such as images ``[B, C, H, W]``, into
    embeddings ``[B, D]``. The values are logged as ``validation/recall@1`` and so on, for
    ``EarlyStopping(monitor="validation/map@r", mode="max")`` or ``ModelCheckpoint`` (with
    ``save_on_train_epoch_end=True`` if the module has validation batches of its own).

    The module is evaluated in evaluation mode and in ``evaluation.precision``, also if it is trained in another
    precision. If no query has a match, the values are NaN, with a warning. Several processes share the batches of an
    `ImageSet`; each of them embeds any other data as a whole. All processes get the same values as a single process.

    Args:
        images: Labelled images of classes that are not trained on: an `ImageSet`, or any data set or `DataLoader`
            whose samples have a label, as `embed_dataset` takes.
        preprocessing: Preprocessing of the images of an `ImageSet`; not used for other data.
        evaluation: The metrics, and the number of images per batch.
        workers: Processes that load images, for each process of the run.
        every_n_epochs: Evaluate after each n-th epoch, at least 1.
        prefix: Prefix of the names of logged values.

    Attributes:
        latest: The last metrics, with the number of queries evaluated and left out; None before the first evaluation.

    Raises:
        ValueError: If ``every_n_epochs`` is below 1, an `ImageSet` comes without ``preprocessing``, or other data have
            no labels.
        TrainingDiverged: After an epoch, if embeddings are no longer finite.

    >>> import numpy as np
    >>> from proxemic.data import ArrayPixels
    >>> images = ImageSet.from_names(ArrayPixels(np.zeros((4, 28, 28), np.uint8)), ["a", "a", "b", "b"])
    >>> evaluator = RetrievalCallback(images, Preprocessing(size=28, resize=None, channels=1, mean=(0.5,), std=(0.5,)))
    >>> evaluator.latest is None  # Trainer(callbacks=[evaluator]).fit(module, batches) changes that
    True
    """

    def __init__(
        self,
        images: ImageSet | Dataset[Any] | DataLoader[Any],
        preprocessing: Preprocessing | None = None,
        evaluation: EvaluationConfig = EvaluationConfig(),
        *,
        workers: int = 0,
        every_n_epochs: int = 1,
        prefix: str = "validation/",
    ) -> None:
        check_range("every_n_epochs", every_n_epochs, "[1, inf)")
        if isinstance(images, ImageSet) and preprocessing is None:
            raise ValueError("preprocessing is None, but an ImageSet needs one: give a proxemic.data.Preprocessing.")
        self.images, self.preprocessing, self.evaluation = images, preprocessing, evaluation
        self.workers, self.every_n_epochs, self.prefix = workers, every_n_epochs, prefix
        self.latest: RetrievalMetrics | None = None

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        self.latest = self.evaluate(trainer, pl_module)
        # The values are equal up to rounding; the maximum makes all processes log exactly the same one.
        values = {f"{self.prefix}{name}": value for name, value in self.latest.items()}
        pl_module.log_dict(values, reduce_fx="max", sync_dist=trainer.world_size > 1)

    def evaluate(self, trainer: Trainer, network: nn.Module) -> RetrievalMetrics:
        """Evaluate any network on the held-out images; all processes return the same metrics."""
        if isinstance(self.images, ImageSet):
            embeddings, images = self.embed(network), self.images
        else:
            size, precision = self.evaluation.batch_size, self.evaluation.precision
            embeddings, labels = embed_dataset(
                network, self.images, batch_size=size, workers=self.workers, precision=precision
            )
            if labels is None:
                raise ValueError(
                    "images have no labels to evaluate embeddings by: give samples of an input and a label."
                )
            names, numbers = labels.unique(return_inverse=True)
            images = ImageSet(Rows.of(embeddings), numbers, tuple(map(str, names.tolist())))
        if not embeddings.isfinite().all():  # they are the same on all processes
            raise TrainingDiverged(
                f"The embeddings of held-out images are no longer finite in epoch {trainer.current_epoch + 1}."
            )
        return evaluate_embeddings(embeddings, images, self.evaluation, or_nan=True)

    def embed(self, network: nn.Module) -> Float[Tensor, "images dim"]:
        """Embed an `ImageSet` with any network; the processes share the work, and each gets all embeddings."""
        assert isinstance(self.images, ImageSet)
        assert self.preprocessing is not None
        return embed_images(
            network,
            self.images,
            self.preprocessing,
            batch_size=self.evaluation.batch_size,
            workers=self.workers,
            description="validation",
            shared=True,
            precision=self.evaluation.precision,
        )
