"""HIST: classes are Gaussians, and a small hypergraph network classifies the batch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.losses.checks import check_count, check_number, check_positive
from proxemic.losses.objectives import softmax_objective
from proxemic.losses.options import ProxyOptions
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores import InnerProduct, SampledClasses, SamplingWeights, Scoring, SoftmaxPooling
from proxemic.losses.scores.scoring import dense_class_scores
from proxemic.losses.scores.similarity import unit


@dataclass(frozen=True)
class _Mahalanobis(InnerProduct):
    """``−Σ_d (x̂_d − μ_d)²/v_d``, expanded into an inner product of features of x̂ and of each Gaussian."""

    def prepare(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch features"]:
        x = unit(embeddings)
        return torch.cat((x.square(), x, torch.ones_like(x[:, :1])), dim=1)


def _rows(
    means: Float[Tensor, "classes proxies dim"], log_variances: Float[Tensor, "classes proxies dim"]
) -> Float[Tensor, "classes proxies features"]:
    """Compute the features of each Gaussian, for `_Mahalanobis`."""
    mean, precision = unit(means), (-F.relu6(log_variances)).exp()
    weighted = mean * precision
    return torch.cat((-precision, 2 * weighted, -(mean * weighted).sum(-1, keepdim=True)), dim=-1)


def propagation(
    membership: Float[Tensor, "batch edges"], weights: Float[Tensor, " edges"]
) -> Float[Tensor, "batch batch"]:
    """Compute ``G = Dv^{-½} H W De^{-1} Hᵀ Dv^{-½}`` of a hypergraph: one step of averaging over shared hyperedges.

    The membership H ≥ 0 of samples in hyperedges must have a positive entry in every row and column; ``weights`` is
    the diagonal of W.

    >>> propagation(torch.ones(2, 1), torch.ones(1))
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]])
    """
    scaled = (membership @ weights).rsqrt().unsqueeze(1) * membership
    return (scaled * (weights / membership.sum(0))) @ scaled.T


class HISTLoss(ProxyLoss):
    """Hypergraph-induced semantic tuplets: ``cross-entropy(−τ d) + λ_s · cross-entropy(out)``.

    Classes are Gaussians with unit mean μ_c and variances ``exp(relu6(v_c))``; ``d_ic`` is the squared Mahalanobis
    distance of the unit embedding. Each class in the batch is a hyperedge with membership ``H_ij = 1`` of its own
    samples and ``exp(−α d_ij)`` of the others. With `propagation` G, ``X' = leaky_relu(BN(G (X Θ1 + b1)), 0.1)`` and
    ``out = G (X' Θ2 + b2)``. X are the embeddings without normalisation, and batch norm uses the statistics of the
    batch. The biases b1 and b2 are in the authors' code but not in the paper. Lim et al., Hypergraph-Induced Semantic
    Tuplet Loss, CVPR 2022.

    The authors' code drops samples whose softmax underflows, which are the hardest; here the softmax is computed in log
    space. Besides the proxies, the loss learns ``log_variances`` ``[C, K, D]`` and the network's weights. Gradients of
    parts of a batch do not add up to the gradient of the whole batch; see
    `proxemic.training.gradient_cache.InMicroBatches`.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        tau: τ > 0, the inverse temperature of the distances.
        alpha: α > 0, how fast membership in a class falls with distance.
        hidden: Width of the hidden layer, at least 1.
        graph_weight: λ_s ≥ 0.
        **options: The keywords of every proxy loss, see `ProxyOptions`; ``init`` fills the means and the log-variances.

    >>> loss = HISTLoss(10, 4, hidden=16)
    >>> loss(torch.randn(6, 4), torch.arange(6)).shape
    torch.Size([])
    """

    defaults = ProxyOptions(pooling=SoftmaxPooling())

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        tau: float = 32.0,
        alpha: float = 1.1,
        hidden: int = 512,
        graph_weight: float = 1.0,
        **options: Unpack[ProxyOptions],
    ) -> None:
        scoring = Scoring(check_positive("tau", tau), similarity=_Mahalanobis())
        super().__init__(num_classes, embedding_size, scoring=scoring, **options)
        self.alpha = check_positive("alpha", alpha)
        check_count("hidden", hidden, 1, "it is the width of the hypergraph network; the authors use 512")
        self.graph_weight = check_number("graph_weight", graph_weight, "a weight must be 0 or more", least=0)
        self.log_variances = nn.Parameter(torch.empty_like(self.proxies))
        init: Any = {**self.defaults, **options}["init"]
        with torch.no_grad():
            init(self.log_variances)
        self.enter = nn.Linear(embedding_size, hidden)
        self.norm = nn.BatchNorm1d(hidden, track_running_stats=False)
        self.leave = nn.Linear(hidden, num_classes)

    def distribute(
        self, *, sharded: bool = False, group: dist.ProcessGroup | None = None, even_batches: bool = False
    ) -> None:
        if sharded:
            raise ValueError(
                "sharded is True, but HISTLoss's network needs the proxies of the whole batch: replicate them."
            )
        super().distribute(group=group, even_batches=even_batches)

    def centers(self, proxies: Tensor, rows: Callable[[Tensor], Tensor] = lambda it: it) -> Tensor:
        return _rows(proxies, rows(self.log_variances).to(proxies.dtype))

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.step_objective(
            positive, negative, labels, embeddings, SampledClasses(labels, SamplingWeights(self.num_classes))
        )

    def step_objective(
        self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor, classes: SampledClasses
    ) -> Tensor:
        distribution = softmax_objective(self.scoring.scale * positive, negative)
        graph = F.cross_entropy(self._propagated(embeddings, classes), classes.labels, reduction="none")
        return distribution + self.graph_weight * graph

    def _propagated(self, embeddings: Float[Tensor, "batch dim"], classes: SampledClasses) -> Tensor:
        """Compute the logits ``[B, C]`` of the hypergraph network for the classes of the step."""
        labels = classes.labels
        # One hyperedge per sample, divided by the number of samples of its class, gives the same G. A list of the
        # classes in the batch would make the CPU wait for the GPU.
        same = labels.unsqueeze(1) == labels
        queries = self.scoring.similarity.prepare(embeddings)
        parameters = self.proxies, self.log_variances
        rows = _rows(*(classes.rows(parameter)[labels].to(queries.dtype) for parameter in parameters))
        scores = dense_class_scores(queries, rows, self.scoring)
        membership = torch.where(same, 1, (self.alpha * scores.clamp(max=0)).exp())
        graph = propagation(membership, 1 / same.sum(1).to(membership.dtype))
        dtype = embeddings.dtype
        x = graph @ F.linear(embeddings, self.enter.weight.to(dtype), self.enter.bias.to(dtype))
        leave, bias = (classes.rows(value).to(x.dtype) for value in (self.leave.weight, self.leave.bias))
        logits = graph @ F.linear(F.leaky_relu(self._normalize(x), 0.1), leave, bias)
        weights = classes.sampling.weights
        return logits if weights is None else logits + weights.log()

    def _normalize(self, x: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch hidden"]:
        weight, bias = self.norm.weight.to(x.dtype), self.norm.bias.to(x.dtype)
        if len(x) == 1:
            # torch refuses batch norm of one sample, although it is defined: zero before the shift.
            return bias + 0 * x
        return F.batch_norm(x, None, None, weight, bias, training=True)
