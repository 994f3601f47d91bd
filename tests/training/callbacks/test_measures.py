"""Measures before the first epoch and after each are the same in interrupted and other runs."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from command_line import Here, assert_refused, warm_proxemic
from proxemic.analysis.gap import gap_bounds, softmax_form, squared_gaps
from proxemic.metrics.proxies import average_distance_to_proxy
from proxemic.studies.finished import FinishedRun, Run
from proxemic.training import ProxyGap

MEASURED = """\
extends: {tiny}
loss: {{class_path: proxemic.losses.NormalizedSoftmaxLoss}}
training:
  epochs: 3
  loggers: []
  callbacks:
  - class_path: proxemic.training.ProxyGap
  - class_path: proxemic.training.DistanceToProxy
  - class_path: proxemic.training.Snapshots
evaluation: {{select_on: last}}
"""


@pytest.fixture(scope="module")
def recipe(recipe: Path) -> Path:
    path = recipe.with_name("measured.yaml")
    path.write_text(MEASURED.format(tiny=recipe))
    return path


@pytest.fixture(scope="module")
def run(recipe: Path) -> Path:
    result = warm_proxemic("train", "--recipe", recipe, "--out", recipe.parent / "run")
    assert result.returncode == 0, result.stderr
    return recipe.parent / "run"


def test_the_columns_are_what_the_weights_give(run: Path) -> None:
    finished = FinishedRun(run)
    proxies, scale = softmax_form(finished.loss)
    train = finished.splits.train
    last, bounds = finished.history[-1], gap_bounds(proxies)
    assert last["gap"] == pytest.approx(float(squared_gaps(proxies).mean()))
    assert last["gap_at_scale"] == pytest.approx(float(squared_gaps(proxies, scale=scale).mean()))
    assert (last["gap_lower"], last["gap_upper"]) == pytest.approx((bounds.lower, bounds.upper))
    assert last["mean_proxy_norm"] == pytest.approx(bounds.mean_proxy_norm)
    directions = torch.nn.functional.normalize(proxies, dim=1).unsqueeze(1)
    expected = average_distance_to_proxy(finished.embed(train), train.labels, directions)
    assert last["avg_dtp"] == pytest.approx(expected, rel=1e-5)
    assert len({row["avg_dtp"] for row in finished.history}) == 3


def test_the_result_has_them_apart_from_what_was_evaluated(run: Path) -> None:
    content = json.loads((run / "metrics.json").read_text())
    names = {*ProxyGap.names, "avg_dtp"}
    assert content["measured"] == {name: FinishedRun(run).history[-1][name] for name in content["measured"]}
    assert content["measured"].keys() == names
    assert not names & content["test"].keys()
    assert content["measured_before"] == FinishedRun(run).measured_before
    assert content["measured_before"].keys() == names
    snapshot = load_file(run / "snapshots" / "epoch-0000.safetensors")
    places = (snapshot["embeddings"], snapshot["labels"], snapshot["proxies"])
    assert content["measured_before"]["avg_dtp"] == pytest.approx(average_distance_to_proxy(*places))


def test_snapshots_are_kept_from_before_the_training_on(run: Path) -> None:
    paths = sorted((run / "snapshots").iterdir())
    assert [path.name for path in paths] == [f"epoch-{epoch:04d}.safetensors" for epoch in range(4)]
    train = FinishedRun(run).splits.train
    contents = [load_file(path) for path in paths]
    for content in contents:
        assert content["embeddings"].shape == (len(train), 16)
        assert torch.equal(content["labels"], train.labels)
        assert content["proxies"].shape == (train.num_classes, 1, 16)
    assert torch.allclose(contents[-1]["embeddings"], FinishedRun(run).embed(train), atol=1e-6)
    untrained = torch.nn.functional.normalize(FinishedRun(run).untrained_loss().state_dict()["proxies"], dim=2)
    assert torch.allclose(contents[0]["proxies"], untrained, atol=1e-6)


def test_measuring_changes_no_weight(recipe: Path, run: Path, tmp_path: Path) -> None:
    few = "[{class_path: proxemic.training.Snapshots, init_args: {every_n_epochs: 2}}]"
    result = warm_proxemic("train", "--recipe", recipe, "--out", tmp_path / "few", "--training.callbacks", few)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "few" / "model.safetensors").read_bytes() == (run / "model.safetensors").read_bytes()
    assert "measured" not in json.loads((tmp_path / "few" / "metrics.json").read_text())
    kept = sorted((tmp_path / "few" / "snapshots").iterdir())
    assert [path.name for path in kept] == ["epoch-0000.safetensors", "epoch-0002.safetensors"]
    assert all(path.read_bytes() == (run / "snapshots" / path.name).read_bytes() for path in kept)


def test_losses_that_do_not_fit_are_refused_before_anything_is_written(
    recipe: Path, here: Here, tmp_path: Path
) -> None:
    result = here("train", "--recipe", recipe, "--out", tmp_path / "out", "--loss", "ArcFaceLoss")
    assert_refused(result, ["ProxyGap is among training.callbacks", "ArcFaceLoss", "NormalizedSoftmaxLoss"])
    second = tmp_path / "second.yaml"
    second.write_text(f"extends: {recipe}\nsecond_phase: {{epochs: 1, loss: {{proxies_per_class: 2}}}}\n")
    result = here("train", "--recipe", second, "--out", tmp_path / "out", "--loss.proxies_per_class", "2")
    assert_refused(result, ["ProxyGap is among training.callbacks", "2 proxies per class"])
    result = here(
        "train", "--recipe", "glyphs-small/contrastive", "--out", tmp_path / "pairs", "--data.train_classes", "48",
        "--training.callbacks", "[{class_path: proxemic.training.DistanceToProxy}]",
    )  # fmt: skip
    assert_refused(result, ["DistanceToProxy is among training.callbacks", "PairwiseLoss", "has no proxies"])
    assert [path.name for path in tmp_path.iterdir()] == ["second.yaml"]


def test_a_training_that_diverges_is_marked_until_it_goes_on(recipe: Path, here: Here, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = here("train", "--recipe", recipe, "--out", out, "--optim.lr", "1e30", "--optim.schedule", "null")
    assert_refused(result, ["The loss became nan"])
    assert (out / "diverged.txt").read_text().startswith("The loss became nan")
    assert (Run(out).state, Run(out).history) == ("unstable", [])
    text = (out / "recipe.yaml").read_text()
    assert "lr: 1.0e+30" in text
    (out / "recipe.yaml").write_text(text.replace("lr: 1.0e+30", "lr: 0.001"))
    assert here("train", "--resume", out).returncode == 0
    assert Run(out).state == "finished"
    assert not (out / "diverged.txt").exists()


def test_a_loss_without_proxies_has_snapshots_of_embeddings_alone(recipe: Path, here: Here, tmp_path: Path) -> None:
    pytest.importorskip("pytorch_metric_learning")
    callbacks = "[{class_path: proxemic.training.Snapshots}]"
    flags = ["--loss", "pytorch_metric_learning.losses.SupConLoss", "--training.callbacks", callbacks]
    result = here("train", "--recipe", recipe, "--out", tmp_path / "run", "--training.epochs", "1", *flags)
    assert result.returncode == 0, result.stderr
    snapshot = load_file(tmp_path / "run" / "snapshots" / "epoch-0001.safetensors")
    assert snapshot.keys() == {"embeddings", "labels"}
