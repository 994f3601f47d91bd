"""A loss warns once if no optimiser moves its proxies."""

import warnings
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from proxemic.losses import NormalizedSoftmaxLoss

FUSED = partial(torch.optim.AdamW, fused=True)


def train(
    parameters: list[nn.Parameter],
    model: nn.Linear,
    loss: NormalizedSoftmaxLoss,
    steps: int = 105,
    optimizer_class: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> list[str]:
    optimizer = optimizer_class(parameters, lr=0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(steps):
            optimizer.zero_grad()
            loss(model(torch.randn(6, 4)), loss.num_classes - 1 - torch.arange(6) % 3).backward()
            optimizer.step()
    return [str(w.message) for w in caught if "proxies" in str(w.message)]


def test_forgotten_proxies_are_reported_once() -> None:
    model, loss = nn.Linear(4, 5), NormalizedSoftmaxLoss(3, 5)
    messages = train(list(model.parameters()), model, loss)
    assert len(messages) == 1
    assert "NormalizedSoftmaxLoss" in messages[0]
    assert "loss.parameters()" in messages[0]
    assert train(list(model.parameters()), model, loss) == []


def test_gradients_that_are_cleared_are_reported_after_ten() -> None:
    model, loss = nn.Linear(4, 5), NormalizedSoftmaxLoss(3, 5)
    for _ in range(9):
        loss.zero_grad()
        loss(model(torch.randn(6, 4)), torch.arange(6) % 3).backward()
    loss.zero_grad()
    value = loss(model(torch.randn(6, 4)), torch.arange(6) % 3)
    with pytest.warns(UserWarning, match="have had 10 gradients but did not move"):
        value.backward()


def test_gradients_that_are_added_up_for_a_step_are_silent() -> None:
    model, loss = nn.Linear(4, 5), NormalizedSoftmaxLoss(3, 5)
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    for number in range(1, 65):
        loss(model(torch.randn(6, 4)), torch.arange(6) % 3).backward()
        if number % 32 == 0:
            optimizer.step()
            optimizer.zero_grad()


def test_sampled_proxies_are_watched_too() -> None:
    # So many that of those looked at a hundred more would hardly be.
    model, loss = nn.Linear(4, 5), NormalizedSoftmaxLoss(20_000, 5, sample_rate=1e-4)
    assert len(train(list(model.parameters()), model, loss)) == 1
    loss = NormalizedSoftmaxLoss(20_000, 5, sample_rate=1e-4)
    assert train([*model.parameters(), *loss.parameters()], model, loss) == []


def test_parametrised_proxies_are_left_alone() -> None:
    loss = NormalizedSoftmaxLoss(5, 7)
    torch.nn.utils.parametrizations.weight_norm(loss, "proxies")
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    loss(torch.randn(3, 7), torch.tensor([0, 1, 2])).backward()
    optimizer.step()


def test_proxies_that_move_or_need_not_are_silent() -> None:
    for optimizer in (torch.optim.SGD, FUSED):
        model, loss = nn.Linear(4, 5), NormalizedSoftmaxLoss(3, 5)
        assert train(list(model.parameters()), model, loss, 5) == []  # the loss may wait for its own optimiser
        assert train([*model.parameters(), *loss.parameters()], model, loss, optimizer_class=optimizer) == []
    model, loss = nn.Linear(4, 5), NormalizedSoftmaxLoss(3, 5)
    loss.proxies.requires_grad_(False)
    assert train(list(model.parameters()), model, loss) == []
