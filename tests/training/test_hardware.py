"""The choice of `training.precision: auto`, the scaler of half precision, and the GPU of each process."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from torch import nn
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from proxemic.errors import UserError
from proxemic.files import read_json, write_json
from proxemic.models import ModelConfig, build_model
from proxemic.recipes.reader import read_recipe
from proxemic.runs.processes import Processes
from proxemic.training import Recipe, RunDirectory, train
from proxemic.training.hardware import choose_precision, gpu_of, make_scaler, measure_steps, settle_precision
from proxemic.training.record import Session
from stopping import Stopped

MODULE = sys.modules[choose_precision.__module__]
CPU = torch.device("cpu")
SHAPE = (4, 1, 28, 28)


class Recorder(nn.Module):
    """A network with batch norm and dropout that records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.LazyLinear(3), nn.BatchNorm1d(3), nn.Dropout())
        self.layers(torch.zeros(2, *SHAPE[1:]))
        self.calls: list[tuple[Any, ...]] = []
        self.kept = self.calls.append  # of the original, in copies too

    def __deepcopy__(self, memo: object) -> "Recorder":
        copy = Recorder()
        copy.kept = self.kept
        return copy

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.kept((tuple(images.shape), torch.is_autocast_enabled("cpu"), self.training, torch.is_grad_enabled()))
        return self.layers(images)


def test_two_steps_of_each_are_measured_and_leave_nothing_behind() -> None:
    model = Recorder()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    seconds = measure_steps(model, SHAPE)
    assert seconds.keys() == {"32-true", "bf16-mixed"}
    assert model.calls == [(SHAPE, half, True, True) for half in (False, True, False, True)]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    assert model.training


def test_a_frozen_network_is_measured_without_gradients() -> None:
    frozen = nn.Sequential(nn.Flatten(), nn.Linear(784, 2)).requires_grad_(False)
    assert len(measure_steps(frozen, SHAPE)) == 2


@pytest.mark.parametrize(("half", "taken"), [(0.5, "bf16-mixed"), (0.95, "32-true"), (2.0, "32-true")])
def test_a_processor_takes_what_is_clearly_faster(half: float, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MODULE, "measure_steps", lambda *_, **__: {"32-true": 1.0, "bf16-mixed": half})
    found = choose_precision(nn.Identity(), SHAPE, CPU)
    assert found == (taken, f"{4 / half:.3g} images/s in bf16-mixed, 4 in 32-true")


@pytest.mark.parametrize(("native", "taken"), [(True, "bf16-mixed"), (False, "16-mixed")])
def test_a_gpu_takes_what_it_computes_in(native: bool, taken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: native)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "A GPU")
    assert choose_precision(nn.Identity(), SHAPE, torch.device("cuda"))[0] == taken
    assert choose_precision(nn.Identity(), SHAPE, torch.device("mps"))[0] == "32-true"


def test_vectors_take_the_precision_of_heads() -> None:
    head = build_model(ModelConfig(backbone="none", input_size=8, embedding_size=4))
    assert choose_precision(head, SHAPE, CPU)[0] == "32-true"


@pytest.fixture(scope="module")
def recipe(recipe: Path) -> Recipe:
    return read_recipe(recipe, ["--training.precision", "auto", "--training.epochs", "2"]).recipe


def _choose_half(*_: Any, **__: Any) -> tuple[str, str]:
    return "bf16-mixed", "so it is said"


def _not_again(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("measured again")


def _end(_: object) -> NoReturn:
    raise Stopped


def test_a_run_keeps_what_it_took_when_it_is_resumed(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(MODULE, "choose_precision", _choose_half)
    with pytest.raises(Stopped):
        train(recipe, tmp_path / "run", report=said.append, on_epoch=_end)
    sentence = "training.precision is auto, which takes bf16-mixed: so it is said."
    assert [line for line in said if "auto" in line] == [sentence]
    run = RunDirectory(tmp_path / "run")
    assert read_json(run.environment)["precision"] == {"training": "bf16-mixed"}
    assert run.recipe.read_text().count("precision: auto") == 1

    monkeypatch.setattr(MODULE, "choose_precision", _not_again)
    train(out=run.path, resume=True, report=said.append)
    named = replace(recipe, training=replace(recipe.training, precision="bf16-mixed"))
    train(named, tmp_path / "named", report=said.append)
    kept = RunDirectory(tmp_path / "named")
    assert run.model.read_bytes() == kept.model.read_bytes()
    assert run.metrics.read_bytes() == kept.metrics.read_bytes()


def test_other_processes_take_what_the_first_has_found(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Second(Processes):
        def broadcast(self, text: str) -> str:
            return "bf16-mixed"

    monkeypatch.setattr(MODULE, "choose_precision", _not_again)
    session = Session(recipe, RunDirectory(Path()), Second(1, 2, 1), report=_not_again)
    settle_precision(session, nn.Identity(), resume=False)
    settled = session.recipe
    assert (settled.training.precision, settled.evaluation.precision) == ("bf16-mixed", "32-true")


@pytest.mark.parametrize("precision", [3, {"training": "64-true"}, {"training": ["32-true"]}])
def test_a_damaged_record_is_refused(recipe: Recipe, precision: object, tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    write_json(run.environment, {"precision": precision})
    with pytest.raises(UserError, match=r"environment\.json is damaged"):
        settle_precision(Session(recipe, run), nn.Identity(), resume=True)


@pytest.mark.filterwarnings("ignore:torch.cuda.amp.GradScaler is enabled, but CUDA is not available")
def test_all_processes_skip_a_step_that_overflows_in_the_shard_of_one() -> None:
    cuda = torch.device("cuda")
    assert isinstance(make_scaler(cuda, "16-mixed", sharded=True), ShardedGradScaler)
    assert not isinstance(make_scaler(cuda, "16-mixed", sharded=False), ShardedGradScaler)
    assert not make_scaler(CPU, "bf16-mixed", sharded=True).is_enabled()


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
