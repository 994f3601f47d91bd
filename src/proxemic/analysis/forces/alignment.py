"""Whether the forces on embeddings align with those on their proxies as a training goes on."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.func import functional_call

from proxemic.analysis.toy.scenes import Scene
from proxemic.losses import ProxyLoss
from proxemic.losses.checks import check_count, check_positive


@dataclass(frozen=True, eq=False)
class TrainingForces:
    """Where a loss drives embeddings and proxies: minus its gradient.

    Args:
        on_embeddings: F1 and F3 coupled, of all classes.
        on_proxies: The sum of F4 over a class's own embeddings and of F2 over all others.
        alignment: The cosine, −1 to 1, of each embedding's force with that of its own proxy; NaN where one is 0.
    """

    on_embeddings: Float[Tensor, "images dim"]
    on_proxies: Float[Tensor, "classes dim"]
    alignment: Float[Tensor, " images"]

    @property
    def mean_alignment(self) -> float:
        """Over the embeddings that have one."""
        return float(self.alignment.nanmean())


def training_forces(loss: ProxyLoss, scene: Scene) -> TrainingForces:
    """The forces of a loss at given places of embeddings and proxies.

    Args:
        loss: A loss with one proxy per class; its own proxies do not count.
        scene: A scene with proxies.

    Raises:
        ValueError: If there are several proxies per class, or none.

    Source: Warping paper, section III-A and figure 4.

    >>> from proxemic.losses import EuclideanSoftmaxLoss
    >>> places = torch.tensor([[1.0, 0.5], [-1.0, 0.5]])
    >>> scene = Scene(places, torch.tensor([0, 1]), torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]]))
    >>> training_forces(EuclideanSoftmaxLoss(2, 2), scene).alignment
    tensor([0.2425, 0.2425])
    """
    if scene.proxies is None or scene.proxies.shape[1] != 1:
        count = "no proxies" if scene.proxies is None else f"{scene.proxies.shape[1]} proxies per class"
        raise ValueError(f"there are {count}, but forces align with those on one proxy per class: give such a loss.")
    loss = copy.deepcopy(loss).eval()
    x, w = (tensor.detach().clone().requires_grad_() for tensor in (scene.embeddings, scene.proxies))
    with torch.enable_grad():
        value = functional_call(loss, {"proxies": w}, (x, scene.labels))
        on_embeddings, on_proxies = (-gradient for gradient in torch.autograd.grad(len(x) * value, (x, w)))
    on_proxies = on_proxies.squeeze(1)
    target = on_proxies[scene.labels]
    alignment = F.cosine_similarity(on_embeddings, target, dim=1, eps=0)
    still = (on_embeddings == 0).all(1) | (target == 0).all(1)
    return TrainingForces(on_embeddings, on_proxies, alignment.masked_fill(still, torch.nan))


def descend(loss: ProxyLoss, scene: Scene, steps: int, rate: float) -> dict[int, Scene]:
    """Let embeddings and proxies follow their forces, with nothing between them: gradient descent without a network.

    Args:
        loss: A loss as in `training_forces`.
        scene: Where they start.
        steps: At least 1.
        rate: > 0; of the sum of the losses.

    Returns:
        The scenes from step 0 on.

    Raises:
        ValueError: If an argument is not allowed.
    """
    check_count("steps", steps, 1, "nothing moves without one")
    check_positive("rate", rate)
    film = {0: scene}
    for step in range(1, steps + 1):
        forces = training_forces(loss, scene)
        assert scene.proxies is not None
        proxies = scene.proxies + rate * forces.on_proxies.unsqueeze(1)
        scene = Scene(scene.embeddings + rate * forces.on_embeddings, scene.labels, proxies)
        film[step] = scene
    return film
