"""A run is never worse than its start, as the network before the first step may be chosen."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import warm
from command_line import TERMINAL, Here, assert_refused
from onnx_files import network
from proxemic.data import EmbeddingDataset
from proxemic.models import build_model, load_model
from proxemic.models.model import without_head
from proxemic.recipes.reader import read_recipe
from proxemic.runs.starts import better_start
from proxemic.studies import load_loss
from proxemic.studies.finished import FinishedRun

WORSE = ["--evaluation.start", "true", "--optim.lr", "0.1", "--training.epochs", "2", "--training.loggers", "[]"]


@pytest.fixture(scope="module")
def worse(recipe: Path) -> tuple[Path, str]:
    """A run whose epochs are all worse than its start, and its output."""
    run = recipe.parent / "worse"
    result = warm.run("-m", "proxemic", "train", "--recipe", recipe, "--out", run, *WORSE, environment=TERMINAL)
    assert result.returncode == 0, result.stderr
    return run, result.stdout


def metrics_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "metrics.json").read_text())


def naive_metrics(embeddings: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """Compute Recall@1 and MAP@R, query by query."""
    found, precisions = [], []
    unit = torch.nn.functional.normalize(embeddings.double(), dim=1)
    for query in range(len(unit)):
        others = [index for index in range(len(unit)) if index != query]
        others.sort(key=lambda index: -float(unit[query] @ unit[index]))
        right = [float(labels[index] == labels[query]) for index in others]
        relevant = int(sum(right))
        found.append(right[0])
        precisions.append(sum(right[k] * sum(right[: k + 1]) / (k + 1) for k in range(relevant)) / relevant)
    return {"recall@1": sum(found) / len(found), "map@r": sum(precisions) / len(precisions)}


def test_both_starts_are_evaluated_and_the_better_one_is_kept(recipe: Path, worse: tuple[Path, str]) -> None:
    run, printed = worse
    metrics = metrics_of(run)
    read = read_recipe(recipe, WORSE).recipe
    splits = read.load()
    torch.manual_seed(read.seed)
    model = build_model(read.model).eval()
    for part, prefix in ((splits.validation, "validation_"), (splits.test, "")):
        assert part is not None
        data = EmbeddingDataset(part, read.images.evaluation())
        images = torch.stack([data[index][0] for index in range(len(data))])
        with torch.no_grad():
            features = model.backbone(images).mean(dim=(2, 3))  # average pooling
            embeddings = {"start": features, "untrained": model(images)}
        for name, embedding in embeddings.items():
            found, expected = metrics[prefix + name], naive_metrics(embedding, part.labels)
            assert {key: found[key] for key in expected} == pytest.approx(expected, abs=1e-9)
    assert (metrics["epoch"], metrics["kept"]) == (0, "start")
    assert metrics["validation"] == metrics["validation_start"]
    assert metrics["test"] == metrics["start"]
    assert metrics["validation"]["map@r"] > metrics["validation_untrained"]["map@r"]
    assert "No epoch was better than the network before training" in printed
    assert "the run keeps the network before training; try " in printed
    assert "--model.train head or a lower --optim.lr, which is 0.1." in printed
    assert "the network before training" in printed.split("Wrote")[1]
    header = next(line for line in printed.splitlines() if "metric" in line and "test" in line)
    columns = [word.strip() for word in header.split("┃") if word.strip()]
    assert columns == ["metric", "test", "before training", "before training, new head", "chance", "gain"]


def test_the_network_from_before_training_is_kept_as_a_model_without_head_and_proxies(
    worse: tuple[Path, str], here: Here, recipe: Path
) -> None:
    run, _ = worse
    model = load_model(run)[0]
    assert (model.config.head, model.config.embedding_size) == ("none", 64)
    assert not (run / "loss.safetensors").exists()
    evaluated = here("evaluate", run, "--json")
    assert json.loads(evaluated.stdout)["test"] == metrics_of(run)["start"]
    drawn = here("analyze", "map", run, "--method", "pca", "--out", run.parent / "map")
    assert drawn.returncode == 0, drawn.stderr
    assert "which has no proxies: the map has none" in drawn.stdout
    assert_refused(here("analyze", "theorems", run), [f"{run} has no proxies", "lower --optim.lr"])
    with pytest.raises(Exception, match="has no proxies, because no epoch was better"):
        load_loss(run)
    begun = here("train", "--recipe", recipe, "--out", run.parent / "next", "--training.start_from", run)
    assert_refused(begun, ["keeps the network before training", f"--model.weights {run / 'model.safetensors'}"])
    resumed = here("train", "--resume", run)
    assert "the network before training" in resumed.stdout


def test_a_start_with_its_head_keeps_its_proxies(recipe: Path, tmp_path: Path, here: Here) -> None:
    # Equal starts, as there is no head, and rates that change no digit.
    flags = ["--model.head", "none", "--model.embedding_size", "64", "--model.freeze_batch_norm", "true"]
    rates = ["--evaluation.start", "true", "--optim.lr", "1e-12", "--optim.loss_lr", "1e-12", "--training.epochs", "1"]
    result = here("train", "--recipe", recipe, "--out", tmp_path / "run", *flags, *rates)
    assert result.returncode == 0, result.stderr
    metrics = metrics_of(tmp_path / "run")
    assert (metrics["epoch"], metrics["kept"]) == (0, "untrained")
    assert metrics["start"] == metrics["untrained"] == metrics["test"]
    run = FinishedRun(tmp_path / "run")
    assert torch.equal(run.loss.state_dict()["proxies"], run.untrained_loss().state_dict()["proxies"])
    assert "the run keeps the network before training, new head" in result.stdout


def test_without_selection_the_start_is_shown_and_the_last_epoch_taken(
    recipe: Path, tmp_path: Path, here: Here
) -> None:
    result = here("train", "--recipe", recipe, "--out", tmp_path / "run", *WORSE, "--evaluation.select_on", "last")
    assert result.returncode == 0, result.stderr
    metrics = metrics_of(tmp_path / "run")
    assert (metrics["epoch"], metrics["kept"]) == (2, "epoch")
    assert metrics.keys() >= {"start", "untrained"}
    assert not any("validation" in name for name in metrics)
    assert "start  " not in result.stdout


def test_the_start_does_not_move_the_training(
    recipe: Path, tmp_path: Path, here: Here, worse: tuple[Path, str]
) -> None:
    flags = [*WORSE, "--evaluation.start", "false"]
    assert here("train", "--recipe", recipe, "--out", tmp_path / "run", *flags).returncode == 0
    one, other = (
        torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["model"]
        for run in (tmp_path / "run", worse[0])
    )
    assert all(torch.equal(one[name], other[name]) for name in other)
    metrics = metrics_of(tmp_path / "run")
    assert metrics["kept"] == "epoch"
    assert "start" not in metrics
    assert "untrained" in metrics


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_the_network_of_an_onnx_file_is_kept_without_a_head(recipe: Path, tmp_path: Path, here: Here) -> None:
    (tmp_path / "net.onnx").write_bytes(network(("n", 3, 28, 28)))
    words = ["train", "--recipe", recipe, "--model.backbone", str(tmp_path / "net.onnx"), *WORSE, "--optim.lr", "10"]
    more = ["--training.average.decay", "0.5", "--model.train", "head"]
    result = here(*words, *more, "--out", tmp_path / "run")
    assert result.returncode == 0, result.stderr
    metrics = metrics_of(tmp_path / "run")
    assert metrics["kept"] == "start"
    assert load_model(tmp_path / "run")[0].config.embedding_size == 5
    assert json.loads(here("evaluate", tmp_path / "run", "--json").stdout)["test"] == metrics["start"]


def test_of_equal_starts_that_with_a_head_is_taken() -> None:
    def better(start: float, untrained: float) -> str:
        return better_start({"start": {"map@r": start}, "untrained": {"map@r": untrained}}, "map@r")

    assert [better(0.3, 0.3), better(0.4, 0.3), better(0.3, 0.4)] == ["untrained", "start", "untrained"]
    assert better_start({}, "map@r") == ""


def test_a_network_without_its_head_shares_weights_and_leaves_the_network_as_it_is(recipe: Path) -> None:
    model = build_model(read_recipe(recipe, ["--model.layer_norm", "true"]).recipe.model)
    bare = without_head(model)
    assert next(bare.backbone.parameters()) is next(model.backbone.parameters())
    images = torch.rand(2, 3, 28, 28)
    with torch.no_grad():
        assert model(images).shape == (2, 16)
        features = model.features(images)
        torch.testing.assert_close(bare(images), torch.nn.functional.normalize(features, dim=1))
    assert (model.config.head, bare.config.head, bare.config.layer_norm) == ("linear", "none", False)
