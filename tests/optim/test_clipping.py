"""Clipping equals torch's for dense gradients, and treats sparse gradients like dense ones."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from proxemic.optim.clipping import clip_norm, clip_value

SHAPES = [(3, 4), (7,), (5, 2, 2)]


def parameters(scale: float) -> list[nn.Parameter]:
    torch.manual_seed(0)
    made = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    for parameter in made:
        parameter.grad = torch.randn(parameter.shape) * scale
    return [*made, nn.Parameter(torch.zeros(2))]  # the last one has no gradient


def gradients(made: list[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad.to_dense() for parameter in made if parameter.grad is not None]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize(("ours", "theirs"), [(clip_norm, clip_grad_norm_), (clip_value, clip_grad_value_)])
def test_dense_gradients_are_clipped_as_torch_does(
    scale: float, ours: Callable[..., object], theirs: Callable[..., object]
) -> None:
    found, expected = parameters(scale), parameters(scale)
    assert ours(found, 0.5) == theirs(expected, 0.5)
    for one, other in zip(gradients(found), gradients(expected), strict=True):
        assert torch.equal(one, other)


def test_parts_of_one_process_are_the_whole() -> None:
    found, expected = parameters(1.0), parameters(1.0)
    norm = clip_norm(found[:2], 0.5, local=found[2:], group=None)
    torch.testing.assert_close(norm, clip_norm(expected, 0.5))
    for one, other in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("clip", [clip_norm, clip_value])
def test_sparse_gradients_are_clipped_as_dense_ones(clip: Callable[..., object]) -> None:
    index = torch.tensor([[1, 4, 1]])  # a row twice, as two backward passes leave it
    values = torch.tensor([[3.0, -1.0], [0.2, -4.0], [-2.5, 2.0]])
    sparse, dense = nn.Parameter(torch.zeros(6, 2)), nn.Parameter(torch.zeros(6, 2))
    sparse.grad = torch.sparse_coo_tensor(index, values, (6, 2), check_invariants=True)
    dense.grad = sparse.grad.to_dense()
    clip([sparse], 1.5)
    clip([dense], 1.5)
    assert sparse.grad.is_sparse
    torch.testing.assert_close(sparse.grad.to_dense(), dense.grad)


def test_parameters_that_are_in_both_lists_count_once() -> None:
    found, expected = parameters(1.0), parameters(1.0)
    clip_norm(found, 0.5, local=found[1:])
    clip_norm(expected, 0.5)
    for one, other in zip(gradients(found), gradients(expected), strict=True):
        torch.testing.assert_close(one, other)
