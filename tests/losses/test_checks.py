"""Every exported loss takes labels of any integer type, and rejects arrays and lists in one sentence."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pytorch_metric_learning.losses import ContrastiveLoss
from torch import nn

from proxemic import losses
from proxemic.losses import PairwiseLoss, ProxyLoss
from proxemic.losses.checks import check_labels, check_weights
from proxemic.losses.user_defined import UserLoss

pytestmark = pytest.mark.cpu

KEYWORDS: dict[str, dict[str, Any]] = {
    "WarpedSoftmaxLoss": {"alpha": 1.0, "k1": 0.5, "k2": 2.0},
    "PairwiseLoss": {"loss": ContrastiveLoss()},
}
LOSSES = [
    name
    for name in losses.__all__
    if inspect.isclass(kind := getattr(losses, name)) and issubclass(kind, nn.Module)
    and (kind is PairwiseLoss or (issubclass(kind, ProxyLoss) and not inspect.isabstract(kind)))
]  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.usefixtures("unchecked")
def test_what_a_loss_takes(name: str) -> None:
    loss = getattr(losses, name)(5, 4, **KEYWORDS.get(name, {})).eval()
    x, y = torch.randn(6, 4), torch.tensor([0, 0, 1, 1, 4, 4])
    expected = loss(x, y)
    for dtype in (torch.int32, torch.uint8):
        assert torch.equal(loss(x, y.to(dtype)), expected)
    for embeddings, labels, words in (
        (x.numpy(), y, "embeddings are of type ndarray, but must be a tensor"),
        (x, y.numpy(), "labels are of type ndarray, but must be a tensor of 6 integers: convert them with torch."),
        (x, y.float(), "labels are torch.float32, but must be integers"),
    ):
        with pytest.raises(ValueError, match=words):
            loss(embeddings, labels)


class OnGPU(torch.Tensor):
    """A CPU tensor that claims to be on a GPU: the asynchronous assertion fails immediately here."""

    is_cuda = True  # type: ignore[assignment]


@pytest.mark.parametrize("wait", [False, True])
def test_on_a_gpu_values_out_of_range_fail_by_an_assertion_of_the_device_unless_it_is_waited_for(wait: bool) -> None:
    embeddings = torch.randn(2, 4).as_subclass(OnGPU)
    check_labels(torch.tensor([0, 4]).as_subclass(OnGPU), 2, 5, wait=wait)
    check_weights(torch.tensor([0.0, 2.0]).as_subclass(OnGPU), embeddings, wait=wait)
    error, words = (ValueError, r"labels hold (5|-1), but|weights must be") if wait else (RuntimeError, "nonzero value")
    for wrong in ([0, 5], [-1, 0]):
        with pytest.raises(error, match=words):
            check_labels(torch.tensor(wrong).as_subclass(OnGPU), 2, 5, wait=wait)
    for weights in ([-1.0, 2.0], [torch.inf, 1.0], [0.0, 0.0]):
        with pytest.raises(error, match=words):
            check_weights(torch.tensor(weights).as_subclass(OnGPU), embeddings, wait=wait)


@pytest.mark.parametrize(
    "make",
    [
        lambda: losses.NormalizedSoftmaxLoss(5, 4),
        lambda: PairwiseLoss(5, 4, loss=ContrastiveLoss()),
        lambda: UserLoss(5, 4, ContrastiveLoss()),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_the_first_batch_on_a_gpu_is_refused_as_on_a_cpu(make: Callable[[], nn.Module]) -> None:
    loss, x = make(), torch.randn(2, 4)
    right, wrong = torch.tensor([0, 4]), torch.tensor([0, 5])
    loss(x, right)
    for labels in (wrong, wrong.as_subclass(OnGPU), wrong.as_subclass(OnGPU)):
        with pytest.raises(ValueError, match="labels hold 5, but num_classes=5 allows 0 to 4"):
            loss(x, labels)
    loss(x, right.as_subclass(OnGPU))
    with pytest.raises(RuntimeError, match="single nonzero value"):
        loss(x, wrong.as_subclass(OnGPU))


@pytest.mark.usefixtures("unchecked")
def test_a_reference_in_the_first_batch_on_a_gpu_is_refused_as_on_a_cpu() -> None:
    loss, x = PairwiseLoss(5, 4, loss=ContrastiveLoss()), torch.randn(2, 4)
    right, wrong = torch.tensor([0, 4]).as_subclass(OnGPU), torch.tensor([0, 5]).as_subclass(OnGPU)
    with pytest.raises(ValueError, match="labels hold 5"):
        loss(x, right, reference=(x, wrong))
