"""What all proxy losses are: proxies, one streamed pass over them, an objective, regularisers."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from proxemic.losses.streaming import Scoring, dense_class_scores, streamed_scores
from proxemic.losses.watch import watch_proxies

__all__ = ["ProxyLoss", "check_positive", "kaiming_init"]


def kaiming_init(proxies: Tensor) -> None:
    """In place: normal with variance ``2 / (classes · proxies)``, Kaiming's for the fan-out of the proxy layer."""
    nn.init.normal_(proxies, std=math.sqrt(2 / (proxies.shape[0] * proxies.shape[1])))


class ProxyLoss(nn.Module, ABC):
    """Base of the proxy losses: ``objective(P, N) + Σ regularisers(proxies)``.

    A subclass says what is summed (`Scoring`) and writes `objective`.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D ≥ 1 of the embeddings.
        scoring: Similarity, pooling, scale, and whether negatives are summed over classes or over samples.
        proxies_per_class: K ≥ 1.
        regularizers: Modules that map the proxies ``[C, K, D]`` to a scalar.
        chunk_size: Classes whose scores are held at once; ``None`` chooses from batch, C, K and D.
        init: Fills the proxies ``[C, K, D]`` in place.

    Attributes:
        proxies: Parameter ``[C, K, D]``; give it to the optimiser, usually with a learning rate of its own.

    Raises:
        ValueError: If a size is not allowed.
    """

    proxies: nn.Parameter

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scoring: Scoring,
        proxies_per_class: int = 1,
        regularizers: Iterable[nn.Module] = (),
        chunk_size: int | None = None,
        init: Callable[[Tensor], object] = kaiming_init,
    ) -> None:
        super().__init__()
        _check_count("num_classes", num_classes, 2, "a class needs another one to be told apart from")
        _check_count("embedding_size", embedding_size, 1, "it is the dimension of the embeddings")
        _check_count("proxies_per_class", proxies_per_class, 1, "every class has a proxy; 1 is the usual choice")
        if chunk_size is not None:
            _check_count("chunk_size", chunk_size, 1, "it counts classes; None chooses it")
        self.scoring = scoring
        self.chunk_size = chunk_size
        self.proxies = nn.Parameter(torch.empty(num_classes, proxies_per_class, embedding_size))
        self.regularizers = nn.ModuleList(regularizers)
        with torch.no_grad():
            init(self.proxies)
        watch_proxies(self)

    @property
    def num_classes(self) -> int:
        """C."""
        return self.proxies.shape[0]

    @property
    def proxies_per_class(self) -> int:
        """K."""
        return self.proxies.shape[1]

    @property
    def embedding_size(self) -> int:
        """D."""
        return self.proxies.shape[2]

    @abstractmethod
    def objective(
        self,
        positive: Float[Tensor, " batch"],
        negative: Float[Tensor, " negatives"],
        labels: Int[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
    ) -> Float[Tensor, ""]:
        """The scalar loss from the positive class scores and the log-sum-exp of the scaled negatives."""

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]) -> Float[Tensor, ""]:
        """The loss of a batch.

        Args:
            embeddings: ``[B, D]``, floating; half precision is computed in float32.
            labels: ``[B]``, integers in [0, num_classes).

        Returns:
            A scalar, float32 (float64 for float64 embeddings).

        Raises:
            ValueError: If a shape, a dtype or a label is not allowed. On a GPU a label out of range fails later,
                by a device-side assertion, so that the check need not wait for the GPU.
        """
        self._check_embeddings(embeddings)
        self._check_labels(labels, len(embeddings))
        labels = labels.long()
        with torch.autocast(embeddings.device.type, enabled=False):
            x, w = self._same_dtype(embeddings)
            positive, negative = streamed_scores(x, w, labels, self.scoring, self.chunk_size)
            value = self.objective(positive, negative, labels, x)
            return value + sum(regularizer(w) for regularizer in self.regularizers)

    def class_scores(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Score of every class, without margin: cosine in [-1, 1], or minus the distance; larger is nearer."""
        self._check_embeddings(embeddings)
        with torch.autocast(embeddings.device.type, enabled=False):
            x, w = self._same_dtype(embeddings)
            return dense_class_scores(
                self.scoring.similarity.prepare(x), w, self.scoring.similarity, self.scoring.pooling
            )

    @torch.no_grad()
    def predict(self, embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
        """The nearest class of each embedding."""
        return self.class_scores(embeddings).argmax(1)

    def extra_repr(self) -> str:
        classes, proxies, dim = self.proxies.shape
        return f"num_classes={classes}, embedding_size={dim}, proxies_per_class={proxies}, {self.scoring}"

    def _same_dtype(self, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(torch.promote_types(embeddings.dtype, self.proxies.dtype), torch.float32)
        return embeddings.to(dtype), self.proxies.to(dtype)

    def _check_embeddings(self, embeddings: Tensor) -> None:
        if embeddings.ndim != 2 or embeddings.shape[1] != self.embedding_size:
            raise ValueError(
                f"embeddings have shape {list(embeddings.shape)}, but this loss takes [batch, {self.embedding_size}]: "
                "make embedding_size equal to the model's output dimension."
            )
        if not embeddings.is_floating_point():
            raise ValueError(f"embeddings are {embeddings.dtype}, but must be floating: convert with .float().")
        if len(embeddings) == 0:
            raise ValueError("embeddings hold no rows, but the mean over an empty batch is not defined.")

    def _check_labels(self, labels: Tensor, batch: int) -> None:
        if labels.ndim != 1 or len(labels) != batch:
            raise ValueError(
                f"labels have shape {list(labels.shape)}, but each of the {batch} embeddings needs one: pass [{batch}]."
            )
        if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
            raise ValueError(
                f"labels are {labels.dtype}, but must be integers, as torch.int64 is: convert with .long()."
            )
        if labels.is_cuda:
            torch._assert_async(((labels >= 0) & (labels < self.num_classes)).all())
        elif labels.min() < 0 or labels.max() >= self.num_classes:
            wrong = labels.min() if labels.min() < 0 else labels.max()
            raise ValueError(
                f"labels hold {wrong.item()}, but num_classes={self.num_classes} allows 0 to {self.num_classes - 1}: "
                "number the training classes from 0 without gaps."
            )


def check_positive(name: str, value: float) -> float:
    """``value``, if it is finite and above 0; else a `ValueError` that names it."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}, but must be a positive number.")
    return value


def _check_count(name: str, value: int, least: int, why: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value}, but must be a whole number of at least {least}: {why}.")
