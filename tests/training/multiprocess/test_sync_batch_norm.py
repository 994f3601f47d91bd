"""Batch norm by the statistics of the joined batch."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from processes import run_processes
from proxemic.errors import UserError
from proxemic.training.multiprocess.sync_batch_norm import JoinedBatchNorm


def test_the_network_gets_the_gradients_of_the_joined_batch(tmp_path: Path) -> None:
    """Of a real recipe, with batch norm, whose kinks would turn float32's rounding into larger differences."""
    found = run_processes(Path(__file__).parents[1] / "network_gradients.py", tmp_path)
    for process in found:
        assert process["worst"] < 1e-11, process
        assert process["tensors"] > 15
        assert process["with an activation"] < 1e-12
        assert process["clipped"] < 1e-6  # torch adds 1e-6 to the norm


@pytest.mark.parametrize("affine", [False, True])
def test_one_process_has_the_values_of_plain_batch_norm(affine: bool) -> None:
    plain, joined = (torch.nn.Sequential(torch.nn.BatchNorm2d(3, affine=affine)).double() for _ in range(2))
    JoinedBatchNorm("cpu").apply(joined)
    images = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        torch.testing.assert_close(joined(images), plain(images))
    finally:
        dist.destroy_process_group()
    torch.testing.assert_close(joined.state_dict(), plain.state_dict())


def test_gpus_take_torchs_own_layer() -> None:
    network = torch.nn.Sequential(torch.nn.BatchNorm2d(3))
    assert isinstance(JoinedBatchNorm("cuda").apply(network)[0], torch.nn.SyncBatchNorm)  # type: ignore[index]


def test_batch_norm_of_a_kind_that_is_not_known_is_refused() -> None:
    class OddBatchNorm(torch.nn.BatchNorm2d):
        pass

    with pytest.raises(UserError, match="has a OddBatchNorm, which is not synchronised over processes on CPUs: set"):
        JoinedBatchNorm("cpu").apply(torch.nn.Sequential(OddBatchNorm(2)))
