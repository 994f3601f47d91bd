"""Conversion of pytorch-metric-learning's proxy losses and their weights."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from proxemic.extras import optional_dependency
from proxemic.losses.margin_softmax import ArcFaceLoss, CosFaceLoss
from proxemic.losses.proxy_anchor import ProxyAnchorLoss
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.scores import MaxPooling
from proxemic.losses.softmax import NormalizedSoftmaxLoss, ProxyNCAPlusPlusLoss, SoftTripleLoss

Converter = tuple[Callable[..., ProxyLoss], Callable[[Any], dict[str, Any]]]


def from_pytorch_metric_learning(loss: nn.Module) -> ProxyLoss:
    """Convert a proxy loss of pytorch-metric-learning (PML) to the loss of this package that has the same values.

    PML's ``proxies`` ``[C, D]``, ``W`` ``[D, C]`` and ``fc`` ``[D, C·K]`` become ``proxies`` ``[C, K, D]``, and margins
    in degrees become radians. PML's ProxyNCALoss has the target class in the denominator, so it becomes
    `ProxyNCAPlusPlusLoss`; its SoftTripleLoss has no `CenterRegularizer`. Sample weights of a miner are not converted.

    Args:
        loss: NormalizedSoftmaxLoss, CosFaceLoss, ArcFaceLoss, SubCenterArcFaceLoss, ProxyNCALoss, ProxyAnchorLoss or
            SoftTripleLoss, with PML's default distance and reducer and without regularisers.

    Returns:
        A new loss with a copy of the weights, on the same device and with the same dtype.

    Raises:
        ValueError: If ``loss`` is another loss, or has a configuration without an equivalent here.

    >>> from pytorch_metric_learning.losses import ProxyAnchorLoss as Theirs
    >>> theirs = Theirs(num_classes=3, embedding_size=2, alpha=16)
    >>> ours = from_pytorch_metric_learning(theirs)
    >>> x, y = torch.randn(4, 2), torch.tensor([0, 1, 1, 2])
    >>> torch.allclose(ours(x, y), theirs(x, y))
    True
    """
    with optional_dependency("pairs"):
        from pytorch_metric_learning import losses as pml

    converters: dict[type, Converter] = {
        pml.NormalizedSoftmaxLoss: (NormalizedSoftmaxLoss, lambda it: {"scale": 1 / it.temperature}),
        pml.CosFaceLoss: (CosFaceLoss, lambda it: {"margin": it.margin, "scale": it.scale}),
        pml.ArcFaceLoss: (ArcFaceLoss, lambda it: {"margin": float(it.margin), "scale": it.scale}),
        pml.SubCenterArcFaceLoss: (
            ArcFaceLoss,
            lambda it: {"margin": float(it.margin), "scale": it.scale, "pooling": MaxPooling()},
        ),
        pml.ProxyNCALoss: (ProxyNCAPlusPlusLoss, lambda it: {"temperature": 1 / it.softmax_scale}),
        pml.ProxyAnchorLoss: (ProxyAnchorLoss, lambda it: {"alpha": it.alpha, "margin": it.margin}),
        pml.SoftTripleLoss: (
            SoftTripleLoss,
            lambda it: {"scale": it.la, "gamma": 1 / it.gamma, "margin": it.margin, "center_weight": 0.0},
        ),
    }
    if type(loss) not in converters:
        names = ", ".join(sorted(kind.__name__ for kind in converters))
        raise ValueError(
            f"loss is a {type(loss).__name__}, but only these can be converted: {names}; train others unchanged, and "
            "pair losses through PairwiseLoss."
        )
    _check_defaults(loss)
    make, keywords = converters[type(loss)]
    typed: Any = loss
    weights = typed.proxies if hasattr(typed, "proxies") else (typed.fc if hasattr(typed, "fc") else typed.W).T
    per_class = getattr(typed, "sub_centers", getattr(typed, "centers_per_class", 1))
    proxies = weights.detach().unflatten(0, (-1, per_class))
    ours = make(len(proxies), proxies.shape[2], proxies_per_class=per_class, **keywords(typed)).to(proxies)
    with torch.no_grad():
        ours.proxies.copy_(proxies)
    return ours


def _check_defaults(loss: Any) -> None:
    """Raise `ValueError` if anything but its own hyper-parameters changes the value of a PML loss."""

    def settings(thing: nn.Module) -> dict[str, object]:
        # Only constructor arguments, as use adds other attributes: a last divisor and statistics.
        names = {name for base in type(thing).__mro__ for name in inspect.signature(base.__init__).parameters}
        return {name: vars(thing)[name] for name in names & vars(thing).keys() - {"collect_stats"}}

    # PML holds one reducer per term of a loss that is a sum.
    reducers = getattr(loss.reducer, "reducers", {"": loss.reducer}).values()
    for name, given, default in (
        ("distance", loss.distance, loss.get_default_distance()),
        *(("reducer", reducer, loss.get_default_reducer()) for reducer in reducers),
    ):
        if type(given) is not type(default) or settings(given) != settings(default):
            raise ValueError(
                f"loss has the {name} {type(given).__name__}, but only PML's default {type(default).__name__} "
                "has an equivalent here: train this loss unchanged."
            )
    for name in ("weight_regularizer", "embedding_regularizer"):
        if getattr(loss, name, None) is not None:
            raise ValueError(f"loss has a {name}, which has no equivalent: convert it without, and add regularizers=.")
