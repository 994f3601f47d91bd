"""From pytorch-metric-learning's proxy losses to ours, with their weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from proxemic.extras import optional_dependency
from proxemic.losses.margin_softmax import ArcFaceLoss, CosFaceLoss
from proxemic.losses.proxy_anchor import ProxyAnchorLoss
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.proxy_nca import ProxyNCAPlusPlusLoss
from proxemic.losses.scores.pooling import MaxPooling
from proxemic.losses.soft_triple import SoftTripleLoss
from proxemic.losses.softmax import NormalizedSoftmaxLoss

Maker = Callable[[Any], tuple[Callable[..., ProxyLoss], dict[str, Any], Tensor, int]]


def from_pytorch_metric_learning(loss: nn.Module) -> ProxyLoss:
    """Our loss with the weights and the values of one of pytorch-metric-learning (PML).

    PML's ``proxies`` ``[C, D]``, ``W`` ``[D, C]`` and ``fc`` ``[D, C·K]`` become ``proxies`` ``[C, K, D]``, margins
    in degrees radians. Its ProxyNCALoss has the own class in the denominator, so that it is ours of the name
    `ProxyNCAPlusPlusLoss`; its SoftTripleLoss has no `CenterRegularizer`. A miner's sample weights are left behind.

    Args:
        loss: NormalizedSoftmaxLoss, CosFaceLoss, ArcFaceLoss, SubCenterArcFaceLoss, ProxyNCALoss, ProxyAnchorLoss or
            SoftTripleLoss, with PML's default distance and reducer and without regularisers.

    Returns:
        A new loss, on the same device and of the same dtype; the weights are copied.

    Raises:
        ValueError: If the loss is another, or is configured in a way that ours has no equal of.

    >>> from pytorch_metric_learning.losses import ProxyAnchorLoss as Theirs
    >>> theirs = Theirs(num_classes=3, embedding_size=2, alpha=16)
    >>> ours = from_pytorch_metric_learning(theirs)
    >>> x, y = torch.randn(4, 2), torch.tensor([0, 1, 1, 2])
    >>> torch.allclose(ours(x, y), theirs(x, y))
    True
    """
    with optional_dependency("pairs"):
        from pytorch_metric_learning import losses as pml

    makers: dict[type, Maker] = {
        pml.NormalizedSoftmaxLoss: lambda it: (NormalizedSoftmaxLoss, {"scale": 1 / it.temperature}, it.W.T, 1),
        pml.CosFaceLoss: lambda it: (CosFaceLoss, {"margin": it.margin, "scale": it.scale}, it.W.T, 1),
        pml.ArcFaceLoss: lambda it: (ArcFaceLoss, {"margin": float(it.margin), "scale": it.scale}, it.W.T, 1),
        pml.SubCenterArcFaceLoss: lambda it: (
            ArcFaceLoss,
            {"margin": float(it.margin), "scale": it.scale, "pooling": MaxPooling()},
            it.W.T,
            it.sub_centers,
        ),
        pml.ProxyNCALoss: lambda it: (ProxyNCAPlusPlusLoss, {"temperature": 1 / it.softmax_scale}, it.proxies, 1),
        pml.ProxyAnchorLoss: lambda it: (ProxyAnchorLoss, {"alpha": it.alpha, "margin": it.margin}, it.proxies, 1),
        pml.SoftTripleLoss: lambda it: (
            SoftTripleLoss,
            {"scale": it.la, "gamma": 1 / it.gamma, "margin": it.margin, "center_weight": 0.0},
            it.fc.T,
            it.centers_per_class,
        ),
    }
    if type(loss) not in makers:
        raise ValueError(
            f"loss is a {type(loss).__name__}, but these convert: {', '.join(sorted(m.__name__ for m in makers))}; "
            "train others as they are, pair losses by PairwiseLoss."
        )
    _check_defaults(loss)
    make, keywords, weights, per_class = makers[type(loss)](loss)
    proxies = weights.detach().unflatten(0, (-1, per_class))
    ours = make(len(proxies), proxies.shape[2], proxies_per_class=per_class, **keywords).to(proxies)
    with torch.no_grad():
        ours.proxies.copy_(proxies)
    return ours


def _check_defaults(loss: Any) -> None:
    """Refuse what changes a PML loss's value beyond its own hyper-parameters."""
    reducer = loss.reducer
    for name, given, default in (
        ("distance", loss.distance, loss.get_default_distance()),
        # Of losses that are sums, PML holds one reducer a term.
        *(
            ("reducer", each, loss.get_default_reducer())
            for each in getattr(reducer, "reducers", {"": reducer}).values()
        ),
    ):
        if type(given) is not type(default) or _settings(given) != _settings(default):
            raise ValueError(
                f"loss has the {name} {type(given).__name__}, but only PML's default {type(default).__name__} "
                "has an equal here: train this loss as it is."
            )
    for name in ("weight_regularizer", "embedding_regularizer"):
        if getattr(loss, name, None) is not None:
            raise ValueError(f"loss has a {name}, which has no equal here: convert it without, and add regularizers=.")


def _settings(thing: nn.Module) -> dict[str, object]:
    """A PML object's plain settings."""
    return {key: value for key, value in vars(thing).items() if isinstance(value, bool | int | float | str)}
