"""Memory that is used again: by nobody who still holds it, and without fresh pages in a step."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

from losses.test_losses import gradients
from proxemic.losses import NormalizedSoftmaxLoss, ProxyAnchorLoss, ProxyLoss
from proxemic.losses.scores.buffers import Buffers
from proxemic.optim import step_rows

pytestmark = pytest.mark.cpu

LIKE = torch.empty(0)
SHAPE = (2**18, 2)


def test_memory_is_used_again_as_soon_as_nothing_else_holds_it() -> None:
    buffers = Buffers()
    first = buffers.take("a", SHAPE, LIKE)
    place = first.data_ptr()
    part = first[3:]
    second = buffers.take("a", SHAPE, LIKE)
    assert second.data_ptr() != place
    del first, part, second
    third = buffers.take("a", (2**19,), LIKE)
    assert third.shape == (2**19,)
    assert buffers.take("b", SHAPE, LIKE).data_ptr() != third.data_ptr()
    assert buffers.take("a", SHAPE, LIKE.double()).dtype == torch.float64


def test_small_tensors_are_left_to_the_c_library() -> None:
    buffers = Buffers()
    buffers.take("a", (2**17,), LIKE)
    assert buffers._kept == {}


def large(kind: type[ProxyLoss], **keywords: Any) -> tuple[ProxyLoss, Tensor, Tensor]:
    torch.manual_seed(0)
    return kind(20_000, 64, **keywords), torch.randn(16, 64, requires_grad=True), torch.arange(16)


@pytest.mark.parametrize("kind", [NormalizedSoftmaxLoss, ProxyAnchorLoss])
def test_gradients_that_are_kept_stay_what_they_are(kind: type[ProxyLoss]) -> None:
    loss, x, y = large(kind)
    first = gradients(loss(x, y), loss.proxies)[0]
    want = first.clone()
    others = [gradients(loss(x * factor, y.roll(1)), loss.proxies)[0] for factor in (2, 3)]
    assert torch.equal(first, want)
    assert len({each.data_ptr() for each in (first, *others)}) == 3
    loss(x, y).backward()
    loss(x, y).backward()  # adds to what is there
    assert loss.proxies.grad is not None
    torch.testing.assert_close(loss.proxies.grad, 2 * want)


@pytest.mark.parametrize("keywords", [{}, {"sample_rate": 0.5}])
def test_steps_after_the_first_take_the_same_memory(keywords: dict[str, float]) -> None:
    loss, x, y = large(NormalizedSoftmaxLoss, **keywords)
    step_rows(torch.optim.SGD(loss.parameters()))
    places = []
    for _ in range(3):
        loss.zero_grad()
        loss(x, y).backward()
        grad = loss.proxies.grad
        assert grad is not None
        places.append((grad._values() if grad.is_sparse else grad).data_ptr())
        del grad
    assert places[1] == places[2]


def test_copies_have_memory_of_their_own() -> None:
    loss, x, y = large(NormalizedSoftmaxLoss)
    loss(x, y).backward()
    assert loss._reused._kept
    for other in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert other._reused._kept == {}
