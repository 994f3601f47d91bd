"""An average of the weights may be chosen instead of them, and is resumed bit for bit."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import warm
from command_line import TERMINAL, Here
from proxemic.recipes.reader import read_recipe
from proxemic.training import Callback, TrainingState, train

SHORT = ["--training.epochs", "3", "--training.loggers", "[]", "--evaluation.untrained", "false"]
AVERAGED = ["--optim.lr", "0.0005", "--training.average.decay", "0.8"]


class Weights(Callback):
    """Records all weights and buffers of the network after each step, in float64."""

    def __init__(self) -> None:
        self.after: list[dict[str, Tensor]] = []

    def on_step_end(self, training: TrainingState, loss: Tensor) -> None:
        state = training.model.state_dict()
        self.after.append({name: value.double() for name, value in state.items()})


def averages_of(run: Path) -> dict[str, Tensor]:
    average = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["average"]
    return {name.removeprefix("module."): value for name, value in average.items()}


@pytest.mark.parametrize("decay", [None, 0.7])
def test_an_average_is_that_of_the_formula(recipe: Path, tmp_path: Path, decay: float | None) -> None:
    averaging = ["--training.average.decay", json.dumps(decay), "--training.average.begins", "2"]
    weights = Weights()
    read = read_recipe(recipe, [*SHORT, *averaging]).recipe
    read.training.__dict__["callbacks"] = [weights]
    metrics = train(read, tmp_path / "run", report=[].append).metrics
    each = 3  # steps of an epoch
    kept = weights.after[each:] if decay else weights.after[2 * each - 1 :: each]
    expected = kept[0]
    for number, state in enumerate(kept[1:], start=2):
        share = 1 / number if decay is None else 1 - decay
        expected = {name: (1 - share) * expected[name] + share * state[name] for name in state}
    counters = {name for name in expected if name.endswith("num_batches_tracked")}
    found = averages_of(tmp_path / "run")
    assert int(found.pop("n_averaged")) == len(kept) == (6 if decay else 2)
    for name, value in found.items():
        wanted = kept[-1][name] if name in counters else expected[name]
        torch.testing.assert_close(value.double(), wanted, rtol=1e-5, atol=1e-6)
    rows = [line.split(",") for line in (tmp_path / "run" / "history.csv").read_text().splitlines()]
    averaged = [row[rows[0].index("average_map@r")] for row in rows[1:]]
    assert averaged[0] == "nan"  # it has not begun
    raw = [float(row[rows[0].index("map@r")]) for row in rows[1:]]
    values = [*raw, *map(float, averaged[1:])]
    assert metrics["validation"]["map@r"] == max(values)


@pytest.fixture(scope="module")
def averaged(recipe: Path) -> tuple[Path, str]:
    """A run whose first average is better than all weights, and its output."""
    run = recipe.parent / "averaged"
    words = ["train", "--recipe", recipe, "--out", run, *SHORT, *AVERAGED]
    result = warm.run("-m", "proxemic", *words, environment=TERMINAL)
    assert result.returncode == 0, result.stderr
    return run, result.stdout


def test_the_better_of_weights_and_average_is_kept(averaged: tuple[Path, str], here: Here) -> None:
    run, printed = averaged
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["epoch"], metrics["kept"]) == (1, "average")
    assert "epoch 1, averaged weights" in printed
    header, first, *_ = [line.split(",") for line in (run / "history.csv").read_text().splitlines()]
    row = dict(zip(header, map(float, first), strict=True))
    assert metrics["validation"] == {name: row[f"average_{name}"] for name in metrics["validation"]}
    assert row["average_map@r"] > row["map@r"]
    evaluated = here("evaluate", run, "--split", "validation", "--json")
    assert json.loads(evaluated.stdout)["validation"] == metrics["validation"]


def test_where_nothing_is_selected_the_average_is_kept(recipe: Path, tmp_path: Path, here: Here) -> None:
    flags = [*SHORT, "--training.average.decay", "0.5", "--evaluation.select_on", "last"]
    assert here("train", "--recipe", recipe, "--out", tmp_path / "run", *flags).returncode == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert (metrics["epoch"], metrics["kept"]) == (3, "average")
    averages, model = averages_of(tmp_path / "run"), load_file(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(model[name], averages[name]) for name in model)
