"""A proxy loss as a function of its class scores, which nothing else changes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from proxemic.losses import ProxyLoss
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import reduce_scores

__all__ = ["at_rest", "objective_of_scores"]


@contextmanager
def at_rest(loss: nn.Module) -> Iterator[None]:
    """Evaluation mode: no running statistic of the loss moves, and no margin is drawn."""
    training = loss.training
    loss.eval()
    try:
        yield
    finally:
        loss.train(training)


def objective_of_scores(
    loss: ProxyLoss,
    scores: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    embeddings: Float[Tensor, "batch dim"],
) -> Float[Tensor, ""]:
    """The loss of these class scores, by ordinary autograd, with what it reads of the embeddings beside them."""
    own = scores.detach().gather(1, labels.unsqueeze(1)).squeeze(1)
    scoring = loss.step_scoring(lambda: own, embeddings.detach())
    positive, negative = reduce_scores(scores, labels, scoring, _among_columns(loss, scores))
    return loss.objective(positive, negative, labels, embeddings).mean()


def _among_columns(loss: ProxyLoss, scores: Float[Tensor, "batch columns"]) -> SamplingWeights:
    """What the columns of scores stand for: the loss's classes, and the first of them again where it has fewer."""
    columns, bias = scores.shape[1], loss.class_bias()
    if bias is None:
        return SamplingWeights(columns)
    return SamplingWeights(
        columns, bias=bias.to(scores)[torch.arange(columns, device=scores.device) % loss.num_classes]
    )
