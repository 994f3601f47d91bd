"""All scores of a step at once, in few operations: the way of small problems, and of all on a GPU that fit there."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from proxemic.losses.scores.derivative import by_hand
from proxemic.losses.scores.products import Products
from proxemic.losses.scores.regularizers import CenterRegularizer, Regularizer
from proxemic.losses.scores.sampling import SamplingWeights
from proxemic.losses.scores.scoring import Scoring, negative_logits, reduce_scores
from proxemic.losses.scores.similarity import Cosine, unit


def scores_at_once(
    embeddings: Float[Tensor, "batch dim"],
    proxies: Float[Tensor, "classes proxies features"],
    labels: Int[Tensor, " batch"],
    scoring: Scoring,
    terms: Sequence[Regularizer],
    sampling: SamplingWeights,
    products: Products,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "*batch"], Float[Tensor, ""]]:
    """Compute what `dense_scores` defines, in any precision of the products; the arguments are those of the stream."""
    similarity, directions = scoring.similarity, None
    queries = similarity.prepare(embeddings)
    if isinstance(similarity, Cosine):
        directions = unit(proxies)
        rows = directions.flatten(0, 1)
        plain = products.precision is None and not torch.compiler.is_compiling()  # the quicker way for small ones
        similarities = queries @ rows.T if plain else _product(queries, rows, products)
        similarities = similarities.unflatten(1, proxies.shape[:2])
        if products.rounds:
            similarities = _with_own(similarities, queries, directions, labels)
    else:
        similarities = similarity.dense(queries, proxies.flatten(0, 1)).unflatten(1, proxies.shape[:2])
    scores = scoring.pooling.dense(similarities) if proxies.shape[1] > 1 else similarities.squeeze(2)
    values = [
        term.of_directions(directions, sampling)
        if isinstance(term, CenterRegularizer) and directions is not None and sampling.weights is None
        else term.apply_to(proxies, sampling)[1]
        for term in terms
    ]
    total = functools.reduce(torch.add, values) if values else proxies.new_zeros(())
    if sampling.group is not None:  # other processes have the classes of labels out of range
        return *reduce_scores(scores, labels, scoring, sampling), total
    own = labels.unsqueeze(1)
    if _bounded(scoring, sampling, *scores.shape):
        dim = 1 if scoring.class_reduction is None else 0
        positive, negative = _own_and_others(scores, own, scoring.scale, dim)
        return positive, negative if scoring.class_reduction is None else scoring.class_reduction(negative).sum(), total
    logits = negative_logits(scores, scoring, sampling).scatter(1, own, -torch.inf)
    positive = scores.gather(1, own).squeeze(1)
    if scoring.class_reduction is None:
        return positive, (logits if sampling.weights is None else logits + sampling.weights.log()).logsumexp(1), total
    reduced = scoring.class_reduction(logits.logsumexp(0))
    return positive, (reduced if sampling.weights is None else reduced * sampling.weights).sum(), total


def _bounded(scoring: Scoring, sampling: SamplingWeights, batch: int, classes: int) -> bool:
    """Whether sums of powers of the logits need no maximum: cosines of a moderate scale, as they are."""
    plain = isinstance(scoring.similarity, Cosine) and scoring.transform is None
    largest = scoring.scale + math.log(max(batch, classes, 1))
    return plain and sampling.weights is None and sampling.bias is None and largest < 80


def _definition(scores: Tensor, own: Tensor, scale: float, dim: int) -> tuple[Tensor, Tensor]:
    return scores.gather(1, own).squeeze(1), (scores * scale).scatter(1, own, -torch.inf).logsumexp(dim)


def _forward_sums(
    scores: Tensor, own: Tensor, scale: float, dim: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    powers = (scores * scale).exp_().scatter_(1, own, 0)
    total = powers.sum(dim).clamp_(min=torch.finfo(scores.dtype).tiny)  # of a class without negatives
    return (scores.gather(1, own).squeeze(1), total.log()), (powers, total)


def _backward_sums(
    grads: tuple[Tensor, Tensor], needed: object, tensors: tuple[Tensor, Tensor], kept: Any, scale: float, dim: int
) -> list[Tensor | None]:
    (positive, negative), (powers, total) = grads, kept
    slopes = powers * (negative * scale).div_(total).unsqueeze(dim)
    return [slopes.scatter_(1, tensors[1], positive.unsqueeze(1)), None]


_own_and_others = by_hand(_definition, _forward_sums, _backward_sums, tensors=2)


def _with_own(similarities: Tensor, queries: Tensor, directions: Tensor, labels: Tensor) -> Tensor:
    """Replace the similarities to the target classes by exact ones."""
    inside = (labels >= 0) & (labels < len(directions))
    place = torch.where(inside, labels, 0)
    own = (directions[place] * queries.unsqueeze(1)).sum(2)
    index = place.view(-1, 1, 1).expand(-1, 1, similarities.shape[2])
    own = torch.where(inside.view(-1, 1, 1), own.unsqueeze(1), similarities.gather(1, index))
    return similarities.scatter(1, index, own)


def _forward(queries: Tensor, rows: Tensor, products: Products) -> tuple[Tensor, tuple[Tensor, ...]]:
    with products.context():
        if not products.rounds:
            return queries @ rows.T, ()
        out = queries.new_empty(len(queries), len(rows))
        return products.multiply(products.operand(queries), products.operand(rows).transposed(), out), ()


def _backward(
    grad: Tensor, needed: Sequence[bool], tensors: tuple[Tensor, Tensor], kept: Any, products: Products
) -> list[Tensor | None]:
    queries, rows = tensors
    with products.context():
        if not products.rounds:
            return [grad @ rows if needed[0] else None, grad.T @ queries if needed[1] else None]
        operand = products.operand(grad)
        return [
            products.multiply(operand, products.operand(rows), torch.empty_like(queries)) if needed[0] else None,
            products.multiply(operand.transposed(), products.operand(queries), torch.empty_like(rows))
            if needed[1]
            else None,
        ]


_product = by_hand(lambda queries, rows, _: queries @ rows.T, _forward, _backward, tensors=2)
