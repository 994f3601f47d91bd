"""Polynomial decay: learning rates of every step, in whole and resumed runs and in two phases."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxemic.errors import UserError
from proxemic.recipes.reader import read_recipe
from proxemic.training import Callback, PolynomialDecay, TrainingState, train

DECAY = "proxemic.training.PolynomialDecay"
FLAGS = [
    *("--loss", "WarpedSoftmaxLoss", "--loss.alpha", "4", "--loss.k1", "0.9", "--loss.k2", "1.2"),
    *("--evaluation.select_on", "last", "--evaluation.untrained", "false", "--training.epochs", "4"),
    *("--optim.schedule", DECAY, "--optim.schedule.power", "2", "--training.checkpoint_minutes", "0"),
]
SECOND = ["--second_phase.epochs", "1", "--second_phase.optim.lr", "0.0005"]


class Stopped(Exception):
    pass


class Rates(Callback):
    """Records the learning rates of backbone and proxies at each step."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.stop_at = stop_at
        self.found: list[tuple[float, float]] = []
        self.steps = 0

    def on_backward_end(self, training: TrainingState) -> None:
        if training.step == self.stop_at:
            raise Stopped
        groups = {group["name"]: group["lr"] for group in training.optimizer.param_groups}
        self.found.append((groups["backbone"], groups["proxies"]))
        self.steps = len(training.data.batches)


def rates(recipe: Path, out: Path, *flags: str, resume: bool = False, stop_at: int | None = None) -> Rates:
    read = read_recipe(out / "recipe.yaml" if resume else recipe, flags)
    watch = Rates(stop_at)
    watched = replace(read.recipe, training=replace(read.recipe.training, callbacks=[watch]))
    if stop_at is None:
        train(watched, out, resume=resume, report=[].append, test=False)
    else:
        with pytest.raises(UserError, match=r"failed at .* with Stopped"):
            train(watched, out, report=[].append, test=False)
    return watch


def curve(first: float, steps: int, power: float = 2, warmup: int = 0) -> list[float]:
    growing = [first * (step + 1) / (warmup + 1) for step in range(warmup)]
    return growing + [first * (1 - step / (steps - warmup)) ** power for step in range(steps - warmup)]


def assert_rates(found: Rates, backbone: list[float], proxies: list[float]) -> None:
    assert found.found == [pytest.approx(pair) for pair in zip(backbone, proxies, strict=True)]


def test_every_step_also_of_a_run_resumed_within_an_epoch(recipe: Path, tmp_path: Path) -> None:
    flags = [*FLAGS, "--optim.schedule.warmup", "0.2"]
    whole = rates(recipe, tmp_path / "whole", *flags)
    steps = 4 * whole.steps
    assert whole.steps > 2
    expected = (curve(0.002, steps, warmup=int(0.2 * steps)), curve(0.02, steps, warmup=int(0.2 * steps)))
    assert_rates(whole, *expected)
    stop = whole.steps + 2  # in the second epoch
    before = rates(recipe, tmp_path / "run", *flags, stop_at=stop)
    after = rates(recipe, tmp_path / "run", resume=True)
    assert (len(before.found), len(after.found)) == (stop, steps - stop)
    assert before.found + after.found == whole.found


def test_the_second_phase_begins_anew_and_ends_where_the_first_would_have(recipe: Path, tmp_path: Path) -> None:
    whole = rates(recipe, tmp_path / "whole", *FLAGS, *SECOND)
    each = whole.steps
    first = [curve(rate, 4 * each)[: 3 * each] for rate in (0.002, 0.02)]
    assert_rates(whole, first[0] + curve(0.0005, each), first[1] + curve(0.02, each))
    for stop in (3 * each, 3 * each + 2):
        out = tmp_path / str(stop)
        before = rates(recipe, out, *FLAGS, *SECOND, stop_at=stop)
        assert before.found + rates(recipe, out, resume=True).found == whole.found


def test_other_schedules_are_stepped_once_an_epoch(recipe: Path, tmp_path: Path) -> None:
    flags = [*FLAGS[:-6], "--training.epochs", "2", "--optim.schedule", "torch.optim.lr_scheduler.ExponentialLR"]
    found = rates(recipe, tmp_path / "run", *flags, "--optim.schedule.gamma", "0.5")
    each = found.steps
    assert_rates(found, [0.002] * each + [0.001] * each, [0.02] * each + [0.01] * each)


def schedule(power: float = 1.0, warmup: float = 0.0, rate: float = 1.0) -> PolynomialDecay:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": weights[:1], "lr": rate}, {"params": weights[1:], "lr": 3 * rate}]
    return PolynomialDecay(torch.optim.SGD(groups), power, warmup)


@given(
    steps=st.integers(1, 40),
    power=st.floats(0.1, 5),
    warmup=st.floats(0, 1, exclude_max=True),
    pause=st.integers(0, 40),
)
def test_rates_grow_then_fall_to_zero_and_depend_on_the_step_alone(
    steps: int, power: float, warmup: float, pause: int
) -> None:
    decay, found = schedule(power, warmup), []
    decay.plan(steps)
    for step in range(steps + 2):
        if step == pause:  # as a resumed run does
            state = decay.state_dict()
            decay = schedule(power, warmup)
            decay.load_state_dict(state)
            decay.plan(steps)
        one, other = (group["lr"] for group in decay.optimizer.param_groups)
        assert other == pytest.approx(3 * one)
        found.append(one)
        decay.optimizer.step()
        decay.step()
    top = int(warmup * steps)
    assert found[top] == 1
    assert found[:top] == sorted(found[:top])
    assert found[top:] == sorted(found[top:], reverse=True)
    assert min(found[:steps]) > 0
    assert found[steps:] == [0, 0]


def test_what_makes_no_sense_is_refused() -> None:
    for power in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=r"power is .*, but must be a number above 0"):
            schedule(power)
    for warmup in (-0.1, 1.0, 5.0):
        with pytest.raises(ValueError, match=r"warmup is .*, but must be a fraction of the steps"):
            schedule(warmup=warmup)
    decay = schedule()
    with pytest.raises(ValueError, match="steps is 0"):
        decay.plan(0)
    decay.optimizer.step()
    with pytest.raises(ValueError, match="call plan before step"):
        decay.step()
