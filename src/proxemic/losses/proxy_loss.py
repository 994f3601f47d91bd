"""What all proxy losses are: proxies, one streamed pass over them, an objective, regularisers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from proxemic.losses.checks import check_count, check_embeddings, check_labels
from proxemic.losses.initialization import kaiming_normal
from proxemic.losses.regularizers import Regularizer
from proxemic.losses.scoring import Scoring, dense_class_scores
from proxemic.losses.streaming import streamed_scores
from proxemic.losses.watch import watch_proxies

__all__ = ["ProxyLoss"]


class ProxyLoss(nn.Module, ABC):
    """Base of the proxy losses: ``objective(P, N) + Σ regularisers(proxies)``.

    A subclass says what is summed (`Scoring`) and writes `objective`. Gradients are of first order only.

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
        init: Callable[[Tensor], object] = kaiming_normal,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes, 2, "a class needs another one to be told apart from")
        check_count("embedding_size", embedding_size, 1, "it is the dimension of the embeddings")
        check_count("proxies_per_class", proxies_per_class, 1, "every class has a proxy; 1 is the usual choice")
        if chunk_size is not None:
            check_count("chunk_size", chunk_size, 1, "it counts classes; None chooses it")
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
        negative: Float[Tensor, "*batch"],
        labels: Int[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
    ) -> Float[Tensor, ""]:
        """The scalar loss from the positive class scores and the reduced negatives (see `streamed_scores`).

        ``negative`` is the log-sum-exp of each sample's scaled negatives; or, of a class-wise loss, a scalar.
        """

    def centers(self, proxies: Float[Tensor, "classes proxies dim"]) -> Float[Tensor, "classes proxies features"]:
        """What the similarity takes for the proxies: they themselves, unless a loss derives it from them."""
        return proxies

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
        check_embeddings(embeddings, self.embedding_size)
        check_labels(labels, len(embeddings), self.num_classes)
        labels = labels.long()
        with torch.autocast(embeddings.device.type, enabled=False):
            x = embeddings.to(self._dtype(embeddings))
            proxies, terms, inside = self._regularized(self.proxies.to(x.dtype))
            positive, negative, term = streamed_scores(
                x, self.centers(proxies), labels, self.scoring, self.chunk_size, inside
            )
            return sum([*terms, term] if inside else terms, self.objective(positive, negative, labels, x))

    def class_scores(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Score of every class, without margin: cosine in [-1, 1], or minus the distance; larger is nearer."""
        check_embeddings(embeddings, self.embedding_size)
        with torch.autocast(embeddings.device.type, enabled=False):
            queries = self.scoring.similarity.prepare(embeddings.to(self._dtype(embeddings)))
            centers = self.centers(self.proxies.to(queries.dtype))
            return dense_class_scores(queries, centers, self.scoring.similarity, self.scoring.pooling)

    @torch.no_grad()
    def predict(self, embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
        """The nearest class of each embedding."""
        return self.class_scores(embeddings).argmax(1)

    def extra_repr(self) -> str:
        classes, proxies, dim = self.proxies.shape
        return f"num_classes={classes}, embedding_size={dim}, proxies_per_class={proxies}, {self.scoring}"

    def _regularized(self, proxies: Tensor) -> tuple[Tensor, list[Tensor], list[Regularizer]]:
        """The proxies as the loss is to use them, terms to add to it, and those that are made with its chunks."""
        terms, inside = [], []
        for regularizer in self.regularizers:
            if not isinstance(regularizer, Regularizer):
                terms.append(regularizer(proxies))
            elif regularizer.separable and self.centers(proxies) is proxies:
                inside.append(regularizer)
            else:
                proxies, term = regularizer.through(proxies)
                terms.append(term)
        return proxies, terms, inside

    def _dtype(self, embeddings: Tensor) -> torch.dtype:
        """Float32 at least, so that half precision costs no digits here."""
        return torch.promote_types(torch.promote_types(embeddings.dtype, self.proxies.dtype), torch.float32)
