"""Interpolated weights are kept if they are better."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from command_line import Here
from proxemic.data import EmbeddingDataset
from proxemic.metrics import retrieval_metrics
from proxemic.models import build_model, load_model, save_model
from proxemic.recipes.reader import read_recipe
from proxemic.training import RunDirectory, train

# Rates that are far too high, so that weights nearer to the start are better.
FLAGS = [
    *("--optim.lr", "0.1", "--training.epochs", "2", "--training.loggers", "[]", "--evaluation.untrained", "false"),
    *("--training.interpolate", "[0.001, 0.5]"),
]
FILES = ("model.safetensors", "model.json", "loss.safetensors", "metrics.json")


@pytest.fixture(scope="module")
def interpolated(recipe: Path) -> tuple[Path, str]:
    """A run, its lines for the user, and a copy as if killed just after it replaced the chosen weights."""
    run, said = recipe.parent / "run", list[str]()

    def save_and_copy(*arguments: Any) -> None:
        save_model(*arguments)
        shutil.copytree(run, recipe.parent / "killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.training.results.save_model", save_and_copy)
        train(read_recipe(recipe, FLAGS), run, report=said.append)
    return run, "\n".join(said)


def metrics_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_text())


def between(recipe: Path, start: Path, end: dict[str, torch.Tensor], share: float) -> dict[str, float]:
    """Return the validation metrics of (1 − α) start + α end, summed in float64."""
    read = read_recipe(recipe).recipe
    images = read.load().validation
    assert images is not None
    weights = {
        name: ((1 - share) * value.double() + share * end[name].double()).float()
        if value.is_floating_point()
        else end[name]
        for name, value in load_file(start).items()
    }
    model = build_model(read.model).eval()
    model.load_state_dict(weights)
    data = EmbeddingDataset(images, read.images.evaluation())
    with torch.no_grad():
        embeddings = model(torch.stack([data[index][0] for index in range(len(data))]))
    return dict(retrieval_metrics(embeddings, images.labels, recall_at=(1, 2), ndcg_at=(2,)))


def test_the_best_of_the_weights_between_start_and_chosen_epoch_is_kept(
    recipe: Path, interpolated: tuple[Path, str], here: Here
) -> None:
    run, printed = interpolated
    metrics, checkpoints = metrics_of(run), run / "checkpoints"
    chosen = load_file(checkpoints / "chosen" / "model.safetensors")
    assert [value["alpha"] for value in metrics["interpolated"]] == [0.001, 0.5]
    for value in metrics["interpolated"]:
        expected = between(recipe, checkpoints / "start" / "model.safetensors", chosen, value["alpha"])
        assert {name: value[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    better = max(metrics["interpolated"], key=lambda value: value["map@r"])
    assert (metrics["kept"], metrics["alpha"]) == ("interpolation", better["alpha"])
    history = (run / "history.csv").read_text().splitlines()
    column = history[0].split(",").index("map@r")
    best = max(float(row.split(",")[column]) for row in history[1:])
    assert metrics["validation"]["map@r"] == better["map@r"] > best
    way = f"{better['alpha']} of the way from the start to epoch {metrics['epoch']}"
    assert f"The run keeps the weights at {way}: validation map@r" in printed
    evaluated = here("evaluate", run, "--json")
    assert json.loads(evaluated.stdout)["test"] == metrics["test"]
    assert (run / "loss.safetensors").read_bytes() == (checkpoints / "chosen" / "loss.safetensors").read_bytes()


def test_where_the_start_is_kept_the_end_is_the_last_epoch(recipe: Path, tmp_path: Path, here: Here) -> None:
    run = tmp_path / "run"
    result = here("train", "--recipe", recipe, "--out", run, *FLAGS, "--evaluation.start", "true")
    assert result.returncode == 0, result.stderr
    metrics = metrics_of(run)
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    end = {name.removeprefix("model."): value for name, value in state.items() if name.startswith("model.")}
    for value in metrics["interpolated"]:
        expected = between(recipe, run / "checkpoints" / "start" / "model.safetensors", end, value["alpha"])
        assert {name: value[name] for name in expected} == pytest.approx(expected, abs=1e-6)
    assert (metrics["epoch"], metrics["kept"]) == (2, "interpolation")  # better than the start, which was kept before
    assert torch.equal(load_file(run / "loss.safetensors")["proxies"], state["loss.proxies"])
    RunDirectory(run).restore_chosen()
    assert load_model(run)[0].config.head == "none"
    assert not (run / "loss.safetensors").exists()
    assert not (run / "checkpoints" / "chosen").exists()


def test_a_run_that_is_killed_once_it_has_replaced_what_was_chosen(interpolated: tuple[Path, str]) -> None:
    killed = interpolated[0].with_name("killed")
    train(out=killed, resume=True, report=[].append)
    for file in (*FILES, "checkpoints/chosen/model.safetensors"):
        assert (killed / file).read_bytes() == (interpolated[0] / file).read_bytes(), file
