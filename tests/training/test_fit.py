"""What Lightning's trainer is given of the hardware."""

import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from proxemic.errors import UserError
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.runs.processes import Processes
from proxemic.training.fit import _hardware, gpu_of


@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled, but CUDA is not available")
@pytest.mark.parametrize(
    ("world", "layout", "apart"), [(2, "sharded", True), (2, "replicated", False), (1, "sharded", False)]
)
def test_the_scale_of_half_precision_is_one_where_gradients_differ(world: int, layout: str, apart: bool) -> None:
    flags = ["--proxies", layout, "--training.precision", "16-mixed"]
    found = read_recipe(find_recipe("glyphs-small"), flags).recipe
    plugins = _hardware(found, Processes(0, world))["plugins"]
    scalers = [each.scaler for each in plugins if isinstance(each, MixedPrecision)]
    assert [type(scaler) for scaler in scalers] == [ShardedGradScaler] * apart


@pytest.mark.parametrize(
    ("seen", "launcher", "number"),
    [(8, "torchrun", 3), (8, "srun", 3), (1, "srun", 0), (2, "srun", None), (1, "torchrun", None)],
)
def test_each_process_takes_its_own_gpu(
    seen: int, launcher: str, number: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: seen)
    if launcher == "torchrun":
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "tests")
    processes = Processes(rank=11, world=16, local_rank=3)
    if number is None:
        with pytest.raises(UserError, match=f"More than {seen} processes were started on a machine .* start one a GPU"):
            gpu_of(processes)
    else:
        assert gpu_of(processes) == number
