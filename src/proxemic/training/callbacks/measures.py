"""Values measured during training, as columns of ``history.csv``, and snapshots of embeddings for plots."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import safetensors.torch
import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.gap import gap_bounds, softmax_form, squared_gaps
from proxemic.errors import UserError
from proxemic.files import write_atomically
from proxemic.losses import ProxyLoss
from proxemic.losses.scores.similarity import Cosine, unit
from proxemic.losses.user_defined import Loss, loss_name
from proxemic.metrics.proxies import average_distance_to_proxy
from proxemic.ranges import check_range
from proxemic.training.beginning import embed_training_images
from proxemic.training.callbacks.callback import Callback
from proxemic.training.data import TrainingData
from proxemic.training.state import TrainingState


class EpochMeasure(Callback, ABC):
    """Measures something before the first epoch and after each epoch.

    The values are columns of ``history.csv`` and are logged by ``training.loggers``; those before the first epoch are
    in ``measured-before.json`` of the run directory, and in ``metrics.json`` as ``measured_before``.

    In a recipe: ``training: {callbacks: [{class_path: proxemic.training.DistanceToProxy}]}``.

    Attributes:
        latest: The last values, by the names in ``names``; empty before the first.
        before: The values before the first epoch; empty in a run that is resumed.
    """

    names: ClassVar[tuple[str, ...]]
    """The names of the values; ``measure`` gives all of them."""

    def __init__(self) -> None:
        self.latest: dict[str, float] = {}
        self.before: dict[str, float] = {}

    @abstractmethod
    def check(self, loss: Loss) -> None:
        """Raise `UserError` if this cannot be measured for a loss; called with each phase's loss before training."""

    @abstractmethod
    def measure(self, task: TrainingState, data: TrainingData) -> Mapping[str, float]:
        """Return the values for the present weights, by the names in ``names``."""

    def on_train_start(self, training: TrainingState) -> None:
        if training.step == 0:
            self.before = self._measure(training)

    def on_epoch_end(self, training: TrainingState) -> None:
        self.latest = self._measure(training)

    def _measure(self, training: TrainingState) -> dict[str, float]:
        training.check_weights()  # this error is clearer than one of the measure
        values = self.measure(training, training.data)
        return {name: float(values[name]) for name in self.names}


class ProxyGap(EpochMeasure):
    """Logs how far from their proxies the softmax loss wants embeddings to be, and the bounds of the mean-proxy paper.

    It takes `NormalizedSoftmaxLoss` and `ProxyNCAPlusPlusLoss` with one proxy per class. The columns are: ``gap``, the
    mean over classes of ``‖x_c − ŵ_c‖²`` at σ = 1, as in the paper; its bounds ``gap_lower`` and ``gap_upper`` by
    `GapBounds`; ``gap_at_scale``, the same at the loss's own σ; ``mean_proxy_norm``, ``‖w̄‖``.
    """

    names = ("gap", "gap_at_scale", "gap_lower", "gap_upper", "mean_proxy_norm")

    def check(self, loss: Loss) -> None:
        try:
            softmax_form(loss)
        except ValueError as error:
            raise UserError(f"ProxyGap is among training.callbacks: {error}") from None

    def measure(self, task: TrainingState, data: TrainingData) -> Mapping[str, float]:
        proxies, scale = softmax_form(task.loss)
        bounds = gap_bounds(proxies)
        return {
            "gap": float(squared_gaps(proxies).mean()),
            "gap_at_scale": float(squared_gaps(proxies, scale=scale).mean()),
            "gap_lower": bounds.lower,
            "gap_upper": bounds.upper,
            "mean_proxy_norm": bounds.mean_proxy_norm,
        }


class DistanceToProxy(EpochMeasure):
    """Logs ``avg_dtp``, the average distance of the training images to their target proxy (warping paper, equation 9).

    The images are not augmented. For losses that compare cosines, embeddings and proxies are scaled to unit length.
    """

    names = ("avg_dtp",)

    def check(self, loss: Loss) -> None:
        if not isinstance(loss, ProxyLoss):
            raise UserError(
                f"DistanceToProxy is among training.callbacks, but the loss, {loss_name(loss)}, has no proxies: "
                "leave it out, or take a proxy loss."
            )

    def measure(self, task: TrainingState, data: TrainingData) -> Mapping[str, float]:
        embeddings, proxies = _places(task)
        assert proxies is not None
        task.check_embeddings(embeddings, "training")
        return {"avg_dtp": average_distance_to_proxy(embeddings, data.images.labels, proxies)}


class Snapshots(Callback):
    """Saves the embeddings of the training images, and the proxies, before training and after every n-th epoch.

    A snapshot is a file such as ``snapshots/epoch-0007.safetensors`` in the run directory, with ``embeddings``
    ``[N, D]``, ``labels`` ``[N]`` and ``proxies`` ``[C, K, D]``; ``proxemic analyze toy`` makes an animation of the
    snapshots.

    Args:
        every_n_epochs: At least 1.

    Raises:
        ValueError: If ``every_n_epochs`` is below 1.
    """

    def __init__(self, every_n_epochs: int = 1) -> None:
        check_range("every_n_epochs", every_n_epochs, "[1, inf)")
        self.every_n_epochs = every_n_epochs

    def on_train_start(self, training: TrainingState) -> None:
        if training.step == 0:
            self._save(training, 0)

    def on_epoch_end(self, training: TrainingState) -> None:
        if (training.epoch + 1) % self.every_n_epochs == 0:
            self._save(training, training.epoch + 1)

    def _save(self, training: TrainingState, epoch: int) -> None:
        embeddings, proxies = _places(training)
        if training.rank > 0:
            return
        content = {"embeddings": embeddings, "labels": training.data.images.labels}
        if proxies is not None:
            content["proxies"] = proxies
        with write_atomically(training.run.path / "snapshots" / f"epoch-{epoch:04d}.safetensors") as temporary:
            temporary.write_bytes(safetensors.torch.save(content))


def as_compared(
    loss: Loss, embeddings: Float[Tensor, "images dim"]
) -> tuple[Float[Tensor, "images dim"], Float[Tensor, "classes proxies dim"] | None]:
    """Return embeddings and proxies, of unit length if the loss compares cosines; None if it has no proxies."""
    if not isinstance(loss, ProxyLoss):
        return embeddings, None
    proxies = loss.proxies.detach().float().cpu()
    if isinstance(loss.scoring.similarity, Cosine):
        embeddings, proxies = unit(embeddings), unit(proxies)
    return embeddings, proxies.clone(memory_format=torch.contiguous_format)


def _places(
    training: TrainingState,
) -> tuple[Float[Tensor, "images dim"], Float[Tensor, "classes proxies dim"] | None]:
    """Return the embeddings of all training images, and the proxies."""
    embeddings = embed_training_images(training.model, training.data.images, training.recipe)
    return as_compared(training.loss, embeddings)
