"""A proxy loss as a function of its class scores, which nothing else changes, and how its gradients change."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from proxemic.losses import ProxyLoss
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import reduce_scores
from proxemic.losses.scores.similarity import unit

# A gradient below this share of the largest may be what a cancellation left over: its changes count in proportion.
_FLOOR = 1e-6


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
    target = scores.detach().gather(1, labels.unsqueeze(1)).squeeze(1)
    scoring = loss.step_scoring(lambda: target, embeddings.detach())
    positive, negative = reduce_scores(scores, labels, scoring, _among_columns(loss, scores))
    return loss.objective(positive, negative, labels, embeddings).mean()


def score_gradients(
    loss: ProxyLoss,
    scores: Float[Tensor, "batch classes"],
    labels: Int[Tensor, " batch"],
    embeddings: Float[Tensor, "batch dim"],
) -> tuple[Float[Tensor, "batch classes"], Float[Tensor, "batch dim"]]:
    """The gradients of `objective_of_scores` with respect to the scores, and to the embeddings beside them.

    Raises:
        ValueError: If a gradient is not finite.
    """
    device = loss.proxies.device
    with torch.enable_grad():
        leaves = tuple(tensor.detach().to(device).requires_grad_() for tensor in (scores, embeddings))
        value = objective_of_scores(loss, leaves[0], labels.to(device), leaves[1])
        by_score, by_embedding = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
    if not (by_score.isfinite().all() and by_embedding.isfinite().all()):
        raise ValueError(f"loss is a {type(loss).__name__} with a gradient that is not finite: check its objective.")
    return by_score.cpu(), by_embedding.cpu()


def relative_change(
    before: Float[Tensor, "batch n"], after: Float[Tensor, "batch n"], largest: Float[Tensor, ""]
) -> Float[Tensor, "batch n"]:
    """``|g' − g| / max(|g|, |g'|)``, where gradients far below the largest count in proportion to it."""
    floor = (_FLOOR * largest).clamp(min=torch.finfo(before.dtype).tiny)
    return (after - before).abs() / torch.maximum(before.abs(), after.abs()).clamp(min=floor)


def random_embeddings(rows: int, dim: int, generator: torch.Generator) -> Float[Tensor, "rows dim"]:
    """Random directions with lengths from 1 to 256, which is what MagFace and AdaFace read."""
    directions = unit(torch.randn(rows, dim, generator=generator, dtype=torch.float64))
    return directions * 2 ** (8 * torch.rand(rows, 1, generator=generator, dtype=torch.float64))


def _among_columns(loss: ProxyLoss, scores: Float[Tensor, "batch columns"]) -> SamplingWeights:
    """What the columns of scores stand for: the loss's classes, and the first of them again where it has fewer."""
    columns, bias = scores.shape[1], loss.class_bias()
    if bias is None:
        return SamplingWeights(columns)
    return SamplingWeights(
        columns, bias=bias.to(scores)[torch.arange(columns, device=scores.device) % loss.num_classes]
    )
