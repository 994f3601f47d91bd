"""Converted losses of pytorch-metric-learning have the same values and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

pml = pytest.importorskip("pytorch_metric_learning.losses")
distances = pytest.importorskip("pytorch_metric_learning.distances")
reducers = pytest.importorskip("pytorch_metric_learning.reducers")
regularizers = pytest.importorskip("pytorch_metric_learning.regularizers")

from proxemic.losses import from_pytorch_metric_learning  # noqa: E402

pytestmark = pytest.mark.cpu

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "softmax": lambda: pml.NormalizedSoftmaxLoss(9, 16, temperature=0.1),
    "cos-face": lambda: pml.CosFaceLoss(num_classes=9, embedding_size=16, margin=0.2, scale=20),
    "arc-face": lambda: pml.ArcFaceLoss(num_classes=9, embedding_size=16, margin=20, scale=30),
    "sub-center": lambda: pml.SubCenterArcFaceLoss(num_classes=9, embedding_size=16, sub_centers=2),
    "proxy-nca": lambda: pml.ProxyNCALoss(9, 16, softmax_scale=4),
    "proxy-anchor": lambda: pml.ProxyAnchorLoss(9, 16, margin=0.2, alpha=16),
    "soft-triple": lambda: pml.SoftTripleLoss(9, 16, centers_per_class=3, la=10, gamma=0.2, margin=0.05),
}


@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients_are_those_of_the_other_library(name: str) -> None:
    torch.manual_seed(0)
    dtype = torch.float64
    theirs = LOSSES[name]().to(dtype)
    ours = from_pytorch_metric_learning(theirs)
    x = torch.randn(12, 16, dtype=dtype, requires_grad=True)
    y = torch.randint(9, (12,))
    value, expected = ours(x, y), theirs(x, y)
    assert value.dtype == ours.proxies.dtype == dtype
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    got, want = (torch.autograd.grad(item, x)[0] for item in (value, expected))
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("collected", [False, True])
def test_losses_that_were_used_are_converted(name: str, collected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytorch_metric_learning.utils.common_functions.COLLECT_STATS", collected)
    torch.manual_seed(0)
    theirs = LOSSES[name]()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    x, y = torch.randn(12, 16), torch.randint(9, (12,))
    for _ in range(2):
        theirs(x, y).backward()
        optimizer.step()
    monkeypatch.setattr("pytorch_metric_learning.utils.common_functions.COLLECT_STATS", not collected)
    ours = from_pytorch_metric_learning(theirs.eval())
    assert ours(x, y).item() == pytest.approx(theirs(x, y).item(), rel=1e-5)


def test_the_weights_are_a_copy() -> None:
    theirs = LOSSES["soft-triple"]()
    ours = from_pytorch_metric_learning(theirs)
    before = ours.proxies.detach().clone()
    with torch.no_grad():
        next(theirs.parameters()).zero_()
    assert torch.equal(ours.proxies, before)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pml.ContrastiveLoss(), ["ContrastiveLoss", "PairwiseLoss"]),
        (lambda: nn.CrossEntropyLoss(), ["CrossEntropyLoss"]),
        (lambda: pml.ProxyAnchorLoss(3, 2, distance=distances.DotProductSimilarity()), ["distance"]),
        (lambda: pml.ArcFaceLoss(3, 2, reducer=reducers.SumReducer()), ["reducer", "SumReducer"]),
        (lambda: pml.ArcFaceLoss(3, 2, weight_regularizer=regularizers.LpRegularizer()), ["weight_regularizer"]),
    ],
)
@pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")  # inside PML
def test_what_has_no_equal_is_refused(make: Callable[[], nn.Module], words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as error:
        from_pytorch_metric_learning(make())
    assert all(word in str(error.value) for word in words)
