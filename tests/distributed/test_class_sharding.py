"""Distribution of a loss, in a group of one process."""

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from proxemic.distributed.class_sharding import part_of
from proxemic.losses import HISTLoss, MeanProxyNorm, NormalizedSoftmaxLoss, ProxyAnchorLoss, ProxyLoss


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Length(nn.Module):
    def forward(self, proxies: Tensor) -> Tensor:
        return proxies.square().sum()


def twice(loss: ProxyLoss) -> None:
    loss.distribute()
    loss.distribute()


def part(loss: ProxyLoss) -> None:
    """Leave the shard of the first of two processes."""
    loss.distribute(sharded=True)
    loss.proxies = nn.Parameter(loss.proxies.detach()[:3])
    loss.class_scores(torch.randn(2, 4))


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("loss", "call", "words"),
    [
        (NormalizedSoftmaxLoss(5, 4), twice, ["distributed already", "once"]),
        (NormalizedSoftmaxLoss(5, 4), part, ["3 of 5 classes", "sharded"]),
        (HISTLoss(5, 4, hidden=3), lambda loss: loss.distribute(sharded=True), ["HISTLoss", "replicate"]),
        (
            NormalizedSoftmaxLoss(5, 4, regularizers=[MeanProxyNorm(), Length()]),
            lambda loss: loss.distribute(sharded=True),
            ["proxies are sharded", "Length", "Regularizer"],
        ),
    ],
)
def test_what_cannot_be_is_refused(loss: ProxyLoss, call: Callable[[ProxyLoss], None], words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as error:
        call(loss)
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


def test_without_processes_there_is_nothing_to_distribute_over() -> None:
    loss = NormalizedSoftmaxLoss(5, 4)
    with pytest.raises(ValueError, match="init_process_group first"):
        loss.distribute()
    assert loss(torch.randn(2, 4), torch.tensor([0, 4])).isfinite()  # left as it was


@pytest.mark.usefixtures("group")
def test_a_loss_that_cannot_be_sharded_is_left_as_it_was() -> None:
    loss = NormalizedSoftmaxLoss(5, 4, regularizers=[Length()])
    with pytest.raises(ValueError, match="proxies are sharded"):
        loss.distribute(sharded=True)
    loss.distribute()  # which is not the second time
    assert loss.proxies.shape == (5, 1, 4)


@pytest.mark.usefixtures("group")
def test_a_copy_has_the_same_processes_and_a_pickle_is_refused() -> None:
    loss = NormalizedSoftmaxLoss(5, 4)
    loss.distribute()
    x, y = torch.randn(3, 4), torch.tensor([0, 3, 3])
    assert torch.equal(copy.deepcopy(loss)(x, y), loss(x, y))
    with pytest.raises(TypeError, match=r"cannot be pickled, .* save state_dict\(\)"):
        pickle.dumps(loss)


@pytest.mark.usefixtures("group")
def test_frozen_proxies_stay_frozen_in_shards() -> None:
    loss = NormalizedSoftmaxLoss(5, 4)
    loss.proxies.requires_grad_(False)
    loss.distribute(sharded=True)
    assert not loss.proxies.requires_grad


@pytest.mark.usefixtures("group")
def test_a_users_regularizer_works_on_replicated_proxies() -> None:
    torch.manual_seed(0)
    loss = ProxyAnchorLoss(5, 4, regularizers=[Length()])
    x, y = torch.randn(3, 4), torch.tensor([0, 3, 3])
    (expected,) = torch.autograd.grad(value := loss(x, y), loss.proxies)
    loss.distribute()
    torch.testing.assert_close(loss(x, y), value)
    torch.testing.assert_close(torch.autograd.grad(loss(x, y), loss.proxies)[0], expected)


@given(count=st.integers(0, 50), world=st.integers(1, 12))
def test_parts_are_those_of_torch_chunk(count: int, world: int) -> None:
    parts = [list(range(count))[part_of(count, rank, world)] for rank in range(world)]
    chunks = [piece.tolist() for piece in torch.arange(count).chunk(world)] if count else []
    assert parts == chunks + [[]] * (world - len(chunks))
