"""What a loss prints of itself."""

import copy
import inspect
import pickle
from functools import partial
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses as pml
from pytorch_metric_learning import miners

import proxemic.losses
from proxemic.losses import (
    ArcFaceLoss,
    CosFaceLoss,
    MaxPooling,
    MeanProxyNorm,
    PairwiseLoss,
    Power,
    ProxyLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftmaxPooling,
    SoftTripleLoss,
    SphereFaceLoss,
    WarpedSoftmaxLoss,
)

pytestmark = pytest.mark.cpu

TWO: dict[str, tuple[Any, Any]] = {
    "a": (0.4, 0.5),
    "alpha": (2.0, 3.0),
    "b": (0.1, 0.2),
    "center_weight": (0.1, 0.2),
    "chunk_size": (None, 3),
    "concentration": (0.2, 0.3),
    "delta_scale": (1.0, 2.0),
    "deviation": (0.01, 0.02),
    "easy_margin": (False, True),
    "embedding_size": (4, 6),
    "exponent": (1.0, 2.0),
    "f1": (Power(1.0), Power(2.0)),
    "f2": (Power(1.0), Power(2.0)),
    "form": ("arc", "cos"),
    "gamma": (0.1, 0.2),
    "graph_weight": (1.0, 2.0),
    "hidden": (8, 16),
    "init": (torch.nn.init.normal_, partial(torch.nn.init.normal_, std=0.5)),
    "k1": (0.5, 0.6),
    "k2": (1.1, 1.2),
    "label_smoothing": (0.0, 0.1),
    "loss": (pml.TripletMarginLoss(margin=0.1), pml.TripletMarginLoss(margin=0.2)),
    "margin": (0.1, 0.2),
    "margin_range": ((0.3, 0.5), (0.4, 0.6)),
    "memory_size": (16, 32),
    "miner": (miners.MultiSimilarityMiner(epsilon=0.1), miners.MultiSimilarityMiner(epsilon=0.2)),
    "momentum": (0.1, 0.2),
    "norm_range": ((5.0, 50.0), (6.0, 60.0)),
    "norm_weight": (1.0, 2.0),
    "num_classes": (5, 7),
    "plus": (False, True),
    "pooling": (SoftmaxPooling(0.1), MaxPooling()),
    "power": (0.25, 0.5),
    "proxies_per_class": (2, 3),
    "regularizers": ((MeanProxyNorm(0.1),), (MeanProxyNorm(0.2),)),
    "sample_rate": (0.5, 1.0),
    "products": ("half", None),
    "scale": (10.0, 20.0),
    "tau": (16.0, 32.0),
    "temperature": (1.0, 2.0),
    "weight": (0.1, 0.2),
}
CLASSES: list[Any] = [
    kind
    for name in proxemic.losses.__all__
    if inspect.isclass(kind := getattr(proxemic.losses, name))
    and not inspect.isabstract(kind)
    and name not in ("ProxyOptions", "SamplingWeights", "Scoring", "Similarity")
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_hyper_parameter_is_printed(kind: Any) -> None:
    names = inspect.signature(kind).parameters.keys()
    needed = {name: TWO[name][0] for name in ("num_classes", "embedding_size", "loss") if name in names}
    warp = {name: TWO[name][0] for name in ("alpha", "k1", "k2") if kind is WarpedSoftmaxLoss}
    softmax = issubclass(kind, ProxyLoss) and kind.target_logits is not ProxyLoss.target_logits
    for name in names if softmax else names - {"label_smoothing"}:
        others: dict[str, Any] = needed | ({"f1": Power(1.5), "f2": Power(1.5)} if name in ("f1", "f2") else warp)
        two: tuple[Any, Any] = (2, 3) if (kind, name) == (SphereFaceLoss, "margin") else TWO[name]
        one, other = (repr(kind(**others | {name: value})) for value in two)
        assert one != other, name
        assert f"{name}=" in one, name
        assert "functools" not in one
        assert " at 0x" not in other


def test_the_text_is_short_exact_and_kept() -> None:
    loss = ArcFaceLoss(5, 8, margin=0.2, regularizers=[MeanProxyNorm()])
    text = repr(loss)
    assert "num_classes=5, embedding_size=8, margin=0.2, scale=64.0, easy_margin=False, proxies_per_class=1, " in text
    assert "pooling=SoftmaxPooling(gamma=0.1), regularizers=[MeanProxyNorm(weight=1.0)], chunk_size=None, " in text
    assert "sample_rate=1.0, products=None, label_smoothing=0.0, init=small_normal" in text
    assert repr(copy.deepcopy(loss)) == repr(pickle.loads(pickle.dumps(loss))) == text
    of_classes = repr(CosFaceLoss(20, 8, margin=torch.linspace(0.1, 0.4, 20)))
    assert "margin=[20 values, 0.1 to 0.4]" in of_classes
    pairs = repr(PairwiseLoss(5, 8, loss=pml.MultiSimilarityLoss(alpha=3), miner=miners.MultiSimilarityMiner()))
    assert "loss=MultiSimilarityLoss(alpha=3, beta=50, base=0.5), miner=MultiSimilarityMiner(epsilon=0.1)" in pairs


class Own(ArcFaceLoss):
    """Hands on what it does not know."""

    def __init__(self, num_classes: int, embedding_size: int, *, sharpness: float = 3.0, **rest: Any) -> None:
        super().__init__(num_classes, embedding_size, **rest)
        self.sharpness = sharpness


def test_a_class_of_ones_own_is_printed_too() -> None:
    assert "sharpness=4.0, rest={'margin': 0.3}" in repr(Own(5, 8, sharpness=4.0, margin=0.3))


@pytest.mark.parametrize("name", ["ArcFaceLoss", "CosFaceLoss", "NormalizedSoftmaxLoss", "ProxyNCALoss"])
def test_where_first_proxies_differ(name: str) -> None:
    """What docs/migrating/pytorch-metric-learning.md says of them, and of the others."""

    def spread(loss: Any) -> float:
        (weights,) = loss.parameters()
        return float(weights.detach().std())

    theirs, ours = getattr(pml, name)(num_classes=500, embedding_size=50), getattr(proxemic.losses, name)
    assert spread(theirs) == pytest.approx(1.0, abs=0.05)
    assert spread(ours(500, 50)) < 0.2
    assert spread(ours(500, 50, init=torch.nn.init.normal_)) == pytest.approx(1.0, abs=0.05)


@pytest.mark.usefixtures("unchecked")
def test_positions_and_units_of_other_libraries() -> None:
    with pytest.raises(TypeError, match="multiple values for argument 'num_classes'"):
        ArcFaceLoss(512, num_classes=10)  # type: ignore[call-arg, misc]
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        ArcFaceLoss(512)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match=r"radians, 0 to π/2: convert degrees \(28.6 degrees are 0.4992\)"):
        ArcFaceLoss(10, 8, margin=28.6)


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of PML's SphereFaceLoss
def test_the_traps_of_equal_names() -> None:
    """What docs/losses says that PML's losses of our names do otherwise."""
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2])
    w = torch.randn(3, 4, dtype=torch.float64)

    def start(proxies: torch.Tensor) -> None:
        proxies.copy_(w.unsqueeze(1).expand_as(proxies))

    # SphereFace: PML multiplies by the embedding's length, ours does not.
    theirs = pml.SphereFaceLoss(3, 4, margin=2, scale=5).double()
    theirs.W.data = w.T.clone()
    ours = SphereFaceLoss(3, 4, margin=2, scale=5.0, init=start)
    unit = torch.nn.functional.normalize(x)
    assert torch.allclose(theirs(unit, y), ours(x, y))
    assert not torch.allclose(theirs(x, y), ours(x, y))
    # ProxyNCA: PML's is our ProxyNCA++.
    nca = pml.ProxyNCALoss(3, 4, softmax_scale=3).double()
    nca.proxies.data = w.clone()
    assert torch.allclose(nca(x, y), ProxyNCAPlusPlusLoss(3, 4, temperature=1 / 3, init=start)(x, y))
    assert not torch.allclose(nca(x, y), ProxyNCALoss(3, 4, scale=3.0, init=start)(x, y))
    # SoftTriple: PML has no regulariser of the centres; ours has one of weight 0.2.
    centers = torch.randn(3, 2, 4, dtype=torch.float64)
    soft = pml.SoftTripleLoss(3, 4, centers_per_class=2).double()
    soft.fc.data = centers.flatten(0, 1).T.clone()
    free, held = (
        SoftTripleLoss(3, 4, proxies_per_class=2, center_weight=weight, init=lambda p: p.copy_(centers))(x, y)
        for weight in (0.0, inspect.signature(SoftTripleLoss).parameters["center_weight"].default)
    )
    assert torch.allclose(soft(x, y), free)
    assert held > free
    # ArcFace: PML's margin is in degrees.
    arc = pml.ArcFaceLoss(3, 4, margin=28.6, scale=64).double()
    arc.W.data = w.T.clone()
    assert torch.allclose(arc(x, y), ArcFaceLoss(3, 4, margin=0.4992, init=start)(x, y), rtol=1e-3)
