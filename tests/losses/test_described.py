"""The text that a loss prints of itself, and differences from PML's losses with the same names."""

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
    MeanProxyNorm,
    NormalizedSoftmaxLoss,
    PairwiseLoss,
    Power,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    SoftTripleLoss,
    SphereFaceLoss,
)

pytestmark = pytest.mark.cpu

NEEDED: dict[str, Any] = {
    "num_classes": 5,
    "embedding_size": 4,
    "loss": pml.TripletMarginLoss(margin=0.1),
    "miner": miners.MultiSimilarityMiner(epsilon=0.1),
    "proxy_loss": NormalizedSoftmaxLoss,
    "f1": Power(1.5),
    "f2": Power(1.5),
    "exponent": 1.5,
    "shift": 3.2,
    "init": partial(torch.nn.init.normal_, std=0.5),
}
CLASSES: list[Any] = [
    kind
    for name in proxemic.losses.__all__
    if inspect.isclass(kind := getattr(proxemic.losses, name))
    and not inspect.isabstract(kind)
    and name not in ("ProxyOptions", "SamplingWeights", "Scoring", "Similarity")
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_hyper_parameter_is_printed_with_its_value(kind: Any) -> None:
    parameters = inspect.signature(kind).parameters
    given = {name: NEEDED[name] for name in parameters if name in NEEDED}
    text = repr(kind(**given))
    for name, parameter in parameters.items():
        value = given.get(name, parameter.default)
        assert f"{name}={value!r}" in text or (f"{name}=" in text and not isinstance(value, int | float | str)), name
    assert "functools" not in text
    assert " at 0x" not in text


def test_the_text_is_short_and_kept() -> None:
    loss = ArcFaceLoss(5, 8, margin=0.2, regularizers=[MeanProxyNorm()])
    assert repr(copy.deepcopy(loss)) == repr(pickle.loads(pickle.dumps(loss))) == repr(loss)
    of_classes = repr(CosFaceLoss(20, 8, margin=torch.linspace(0.1, 0.4, 20)))
    assert "margin=[20 values, 0.1 to 0.4]" in of_classes
    pairs = repr(PairwiseLoss(5, 8, loss=pml.MultiSimilarityLoss(alpha=3), miner=miners.MultiSimilarityMiner()))
    assert "loss=MultiSimilarityLoss(alpha=3, beta=50, base=0.5), miner=MultiSimilarityMiner(epsilon=0.1)" in pairs


class Own(ArcFaceLoss):
    """A subclass that passes unknown keywords on."""

    def __init__(self, num_classes: int, embedding_size: int, *, sharpness: float = 3.0, **rest: Any) -> None:
        super().__init__(num_classes, embedding_size, **rest)
        self.sharpness = sharpness


def test_a_users_class_is_printed_too() -> None:
    assert "sharpness=4.0, rest={'margin': 0.3}" in repr(Own(5, 8, sharpness=4.0, margin=0.3))


@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # of PML's SphereFaceLoss
def test_the_traps_of_equal_names() -> None:
    """Checks what docs/losses says about PML's losses with the same names."""
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
