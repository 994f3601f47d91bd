"""The equations of the MPA paper as docs/errata.md corrects them are what automatic differentiation gives."""

import pytest
import torch
from torch import Tensor

SCALE, MARGIN, CLASSES, SAMPLES = 4.0, 0.1, 5, 6


@pytest.fixture
def scores() -> Tensor:
    """Similarities of samples and classes; sample i has class i modulo the number of classes."""
    generator = torch.Generator().manual_seed(0)
    return (2 * torch.rand(SAMPLES, CLASSES, generator=generator, dtype=torch.float64) - 1).requires_grad_()


def own_class(sample: int) -> int:
    return sample % CLASSES


def negatives(sample: int) -> list[int]:
    return [c for c in range(CLASSES) if c != own_class(sample)]


def gradient(value: Tensor, scores: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(value, scores)
    return found


def test_equation_5_with_its_signs_turned(scores: Tensor) -> None:
    x, y = scores[0], own_class(0)
    up = (SCALE * (x[y] - MARGIN)).exp()
    down = (SCALE * x).exp()
    total = down[negatives(0)].sum()
    expected = SCALE * down / (up + total)
    expected[y] = -SCALE / (1 + up / total)
    found = gradient(-(up / (up + total)).log(), scores)[0]
    torch.testing.assert_close(found, expected.detach())


def test_equation_9_for_negatives_in_its_second_case(scores: Tensor) -> None:
    c = 1
    members = torch.tensor([own_class(i) == c for i in range(SAMPLES)])
    of_class, others = scores[members, c], scores[~members, c]
    pull = (1 + (-SCALE * (of_class - MARGIN)).exp().sum()).log()
    push = (1 + (SCALE * (others + MARGIN)).exp().sum()).log()
    expected = torch.empty(SAMPLES, dtype=torch.float64)
    for i, s in enumerate(scores[:, c]):
        if members[i]:
            single, relative = (-SCALE * (MARGIN - s)).exp(), (-SCALE * (of_class - s)).exp().sum()
            expected[i] = -SCALE / (single + relative)
        else:
            single, relative = (-SCALE * (s + MARGIN)).exp(), (SCALE * (others - s)).exp().sum()
            expected[i] = SCALE / (single + relative)
    torch.testing.assert_close(gradient(pull + push, scores)[:, c], expected.detach())


def test_equation_14_with_the_difference_of_two_classes(scores: Tensor) -> None:
    x, y = scores[0], own_class(0)
    value = (1 + (-SCALE * (x[y] - MARGIN)).exp()).log() + (1 + (SCALE * (x[negatives(0)] + MARGIN)).exp().sum()).log()
    expected = torch.empty(CLASSES, dtype=torch.float64)
    expected[y] = -SCALE / ((-SCALE * (MARGIN - x[y])).exp() + 1)
    for c in negatives(0):
        single, relative = (-SCALE * (x[c] + MARGIN)).exp(), (SCALE * (x[negatives(0)] - x[c])).exp().sum()
        expected[c] = SCALE / (single + relative)
    torch.testing.assert_close(gradient(value, scores)[0], expected.detach())
