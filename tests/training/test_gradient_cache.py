"""A batch in parts has the embeddings, the loss and the gradients of the whole batch."""

import copy

import pytest
import torch
from torch import Tensor, nn

from proxemic.losses import MultiProxyAnchorLoss
from proxemic.training.gradient_cache import InMicroBatches

BATCH, CLASSES, DIM = 13, 5, 4


def gradients(network: nn.Module, images: Tensor, labels: Tensor, parts: int, seed: int = 0) -> list[Tensor]:
    """Return the gradients of a loss with sums over the whole batch."""
    torch.manual_seed(seed)
    loss = MultiProxyAnchorLoss(CLASSES, DIM).double()
    value = loss(InMicroBatches(network, parts)(images), labels)
    value.backward()
    found = [value.detach(), *(parameter.grad for module in (network, loss) for parameter in module.parameters())]
    network.zero_grad()
    return [tensor.clone() for tensor in found if tensor is not None]


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(BATCH, 3, 6, 6, dtype=torch.float64), torch.randint(CLASSES, (BATCH,))


@pytest.mark.parametrize("parts", [2, 4, BATCH, BATCH + 3])
def test_the_loss_of_the_whole_batch(batch: tuple[Tensor, Tensor], parts: int) -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(128, DIM)).double()
    for found, expected in zip(gradients(network, *batch, parts), gradients(network, *batch, 1), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_what_a_part_leaves_in_memory_is_its_embeddings(batch: tuple[Tensor, Tensor]) -> None:
    seen: list[int] = []

    class Counting(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            seen.append(len(input))
            return super().forward(input)

    network = nn.Sequential(nn.Flatten(), Counting(108, DIM)).double()
    gradients(network, *batch, 3)
    assert seen[:3] == [5, 4, 4]
    assert sorted(seen[3:]) == [4, 4, 5]  # again, as nothing was kept


def test_dropout_draws_the_same_in_both_passes(batch: tuple[Tensor, Tensor]) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(108, 64), nn.Dropout(), nn.Linear(64, DIM)).double()
    torch.manual_seed(1)
    kept = [InMicroBatches(network, 2)(batch[0])]
    (gradient,) = torch.autograd.grad(kept[0].sum(), network[1].weight)  # type: ignore[arg-type]
    torch.manual_seed(1)
    halves = [network(half) for half in batch[0].tensor_split(2)]
    torch.testing.assert_close(kept[0], torch.cat(halves))
    (expected,) = torch.autograd.grad(torch.cat(halves).sum(), network[1].weight)  # type: ignore[arg-type]
    torch.testing.assert_close(gradient, expected)


@pytest.mark.parametrize("momentum", [0.1, None])
def test_batch_norm_counts_each_part_once(batch: tuple[Tensor, Tensor], momentum: float | None) -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.Flatten(), nn.Linear(64, DIM))
    network = network.double()
    parted, plain = network, copy.deepcopy(network)
    gradients(parted, *batch, 2)
    for half in batch[0].tensor_split(2):
        plain(half)
    for name, buffer in plain.named_buffers():
        assert torch.equal(dict(parted.named_buffers())[name], buffer), name
    assert parted[1].momentum == momentum
    assert parted[1].num_batches_tracked == 2


def test_without_gradients_the_network_takes_all_at_once(batch: tuple[Tensor, Tensor]) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(108, DIM)).double()
    with torch.no_grad():
        assert torch.equal(InMicroBatches(network, 4)(batch[0]), network(batch[0]))
