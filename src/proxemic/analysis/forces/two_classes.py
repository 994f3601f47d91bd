"""The four forces of a softmax of distances between two classes (warping paper, section III-A)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from proxemic.analysis.landscape.potential import Function
from proxemic.losses.checks import check_positive


@dataclass(frozen=True)
class Forces:
    """What each embedding's loss does to it and to the two proxies: minus its gradient, in four parts.

    Args:
        push: F1, on the embedding, away from the other proxy.
        proxy_push: F2, on the other proxy, away from the embedding.
        pull: F3, on the embedding, to its own proxy.
        proxy_pull: F4, on its own proxy, to the embedding.
    """

    push: Float[Tensor, "embeddings dim"]
    proxy_push: Float[Tensor, "embeddings dim"]
    pull: Float[Tensor, "embeddings dim"]
    proxy_pull: Float[Tensor, "embeddings dim"]

    @property
    def coupled(self) -> Float[Tensor, "embeddings dim"]:
        """F1 + F3, where the embedding goes: of a warp, on the line beyond the own proxy, always towards α."""
        return self.push + self.pull


def two_class_forces(
    embeddings: Float[Tensor, "embeddings dim"],
    target: Float[Tensor, " dim"],
    other: Float[Tensor, " dim"],
    f1: Function = torch.positive,
    f2: Function = torch.positive,
    *,
    temperature: float = 1.0,
) -> Forces:
    """Take ``−∇ log(1 + exp(T·f1(‖e − p_c‖) − T·f2(‖e − p_c'‖)))`` apart, by autograd, for each embedding by itself.

    Args:
        embeddings: e, all of one class.
        target: p_c.
        other: p_c'.
        f1: Elementwise on the distance to the target proxy; a warp may be given with its Δ, which has no gradient.
        f2: Elementwise on the distance to the other.
        temperature: T > 0.

    Raises:
        ValueError: If the temperature is not positive.

    Source: Warping paper, section III-A, F1 to F4, and equation 6.

    >>> found = two_class_forces(torch.tensor([[0.0, 0.0]]), torch.tensor([1.0, 0.0]), torch.tensor([3.0, 0.0]))
    >>> found.push[:, 0], found.pull[:, 0]  # σ(1 − 3) each: on the line beyond the proxy they cancel
    (tensor([-0.1192]), tensor([0.1192]))
    """
    check_positive("temperature", temperature)
    with torch.enable_grad():
        # Each distance has an embedding of its own, so that the gradient comes in parts.
        near, far = (embeddings.detach().clone().requires_grad_() for _ in range(2))
        proxies = tuple(proxy.detach().expand_as(embeddings).clone().requires_grad_() for proxy in (target, other))
        logits = _of_distance(f1, near, proxies[0]) - _of_distance(f2, far, proxies[1])
        value = F.softplus(temperature * logits).sum()
        pull, push, proxy_pull, proxy_push = (
            -gradient for gradient in torch.autograd.grad(value, (near, far, *proxies), materialize_grads=True)
        )
    return Forces(push, proxy_push, pull, proxy_pull)


def _of_distance(
    function: Function, points: Float[Tensor, "embeddings dim"], proxies: Float[Tensor, "embeddings dim"]
) -> Float[Tensor, " embeddings"]:
    """A function of the distances; on the proxy, where the slope of a root is infinite, there is no force."""
    distance = torch.linalg.vector_norm(points - proxies, dim=1)
    apart = distance > 0
    value = function(torch.where(apart, distance, 1))
    return torch.where(apart, value, function(torch.zeros_like(distance)).detach())
