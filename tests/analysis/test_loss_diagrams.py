"""The pairs that six losses pull together and push apart."""

import torch

from proxemic.analysis.loss_diagrams import DIAGRAMS, EMBEDDINGS, LABELS, PROXIES, WARP, pair_forces
from proxemic.losses import WarpedSoftmaxLoss


def test_the_pairs_of_six_losses() -> None:
    lines = {"a": (1, 1), "b": (1, 2), "c": (1, 8), "d": (1, 2), "e": (6, 12), "f": (6, 12)}
    for name in DIAGRAMS:
        found = torch.cat([force.flatten() for force in pair_forces(name)])
        assert (int((found > 0).sum()), int((found < 0).sum())) == lines[name[0]], name
    # Along the lines the warped softmax's pulls and pushes add up to the gradient of the loss.
    _, by_proxy = pair_forces("f) Warped softmax")
    away = EMBEDDINGS.unsqueeze(1) - PROXIES
    expected = (by_proxy / away.norm(dim=2)).unsqueeze(2).mul(away).sum(1)
    # Without Δ's value: as the potential, of the same slopes.
    loss = WarpedSoftmaxLoss(3, 2, f1=WARP).double()
    with torch.no_grad():
        loss.proxies.copy_(PROXIES.unsqueeze(1))
    x = EMBEDDINGS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(6 * loss(x, LABELS), x)
    torch.testing.assert_close(gradient, expected)
