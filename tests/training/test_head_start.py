"""Heads of runs that begin at the principal components of the training images' features."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from images import write_folder, write_recipe
from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.models import EmbeddingModel, build_model, load_model
from proxemic.recipes.reader import read_recipe
from proxemic.runs.embed import embed_images
from proxemic.training import Recipe, train
from proxemic.training.beginning import PooledFeatures, start_head
from proxemic.training.components import build_networks
from stopping import Stopped, run

MODULE = sys.modules["proxemic.training.beginning"]
PCA = ("--model.head_init", "pca")
MEANS = ("--training.start_proxies", "class_means", "--loss.proxies_per_class", "1")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("head")
    return write_recipe(folder / "tiny.yaml", write_folder(folder / "images"))


def read(path: Path, *flags: str) -> Recipe:
    return read_recipe(path, [*PCA, "--training.epochs", "1", *flags]).recipe


@pytest.fixture(scope="module")
def recipe(path: Path) -> Recipe:
    return read(path)


def pca(features: torch.Tensor, size: int) -> torch.Tensor:
    """Return the principal components by numpy, in float64."""
    centred = features.double().numpy() - features.double().numpy().mean(0)
    rows = np.linalg.svd(centred, full_matrices=False)[2][:size]
    return torch.from_numpy(centred @ rows.T * np.sign(rows[np.arange(size), np.abs(rows).argmax(1)]))


def test_the_head_begins_at_the_training_images(recipe: Recipe) -> None:
    images, model = recipe.load().train, build_model(recipe.model)
    features = embed_images(PooledFeatures(model), images, recipe.images)
    start_head(model, nn.Identity(), images, recipe)
    expected = normalize(pca(features, 16), dim=1).float()
    torch.testing.assert_close(embed_images(model, images, recipe.images), expected, rtol=0, atol=1e-4)


def test_of_many_images_the_seed_draws_some(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    images, first = recipe.load().train, build_model(recipe.model)

    def started() -> torch.Tensor:
        model = build_model(recipe.model)  # draws from the generator of torch, of which the choice is independent
        model.load_state_dict(first.state_dict())
        start_head(model, nn.Identity(), images, recipe)
        return model.state_dict()["head.1.weight"]

    whole = started()
    monkeypatch.setattr(MODULE, "MOST_IMAGES", 20)
    assert torch.equal(started(), started())
    assert not torch.allclose(started(), whole)


def test_a_run_begins_there_once_and_its_untrained_column_does(
    recipe: Recipe, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = ("--optim.lr", "1e-12", "--optim.head_lr", "1e-12", "--model.freeze_batch_norm", "true")
    with pytest.raises(Stopped):
        run(path, tmp_path / "run", *PCA, "--training.epochs", "2", *frozen, stop_after=1)
    state = load_model(tmp_path / "run" / "checkpoints" / "start")[0].state_dict()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the head was set again")

    monkeypatch.setattr(MODULE, "begin_at_principal_components", refuse)
    metrics = train(out=tmp_path / "run", resume=True, report=[].append).metrics
    assert metrics["untrained"]["map@r"] == pytest.approx(metrics["test"]["map@r"], abs=1e-6)
    untrained = ("--evaluation.untrained", "false")
    begun = read(path, *frozen, *untrained, "--training.start_from", str(tmp_path / "run"))
    train(begun, tmp_path / "begun", report=[].append)
    from_file = read(path, *frozen, *untrained, "--model.weights", str(tmp_path / "run" / "model.safetensors"))
    train(from_file, tmp_path / "file", report=[].append)
    for name in ("run", "begun", "file"):
        weight = load_model(tmp_path / name)[0].state_dict()["head.1.weight"]
        torch.testing.assert_close(weight, state["head.1.weight"])


def networks(recipe: Recipe) -> tuple[EmbeddingModel, ProxyLoss]:
    model, loss = build_networks(recipe, recipe.load())
    assert isinstance(loss, ProxyLoss)
    return model, loss


def test_proxies_begin_at_the_means_of_their_classes(path: Path) -> None:
    recipe = read(path, *MEANS)
    images, (model, loss) = recipe.load().train, networks(recipe)
    drawn = loss.proxies.detach().clone()
    start_head(model, loss, images, recipe)
    embeddings = embed_images(model, images, recipe.images).double()
    for label in range(images.num_classes):
        mean = normalize(embeddings[images.labels == label], dim=1).mean(0)
        expected = (mean / mean.norm() * drawn[label, 0].norm()).float()
        torch.testing.assert_close(loss.proxies[label, 0].detach(), expected, rtol=1e-4, atol=1e-4)


def test_of_classes_of_which_no_image_is_drawn_proxies_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = read(path, *MEANS, "--model.head_init", "null")
    model, loss = networks(recipe)
    drawn = loss.proxies.detach().clone()
    monkeypatch.setattr(MODULE, "MOST_IMAGES", 2)
    start_head(model, loss, recipe.load().train, recipe)
    moved = (loss.proxies.detach() != drawn).any(-1).any(-1)
    assert 1 <= moved.sum() <= 2


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--loss.proxies_per_class", "2"], "2 proxies of a class would stay equal"),
        (["--training.start_from", "runs/a"], "start_from brings the proxies of a run"),
    ],
)
def test_proxies_that_cannot_begin_so_are_refused(path: Path, tmp_path: Path, flags: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        train(read(path, *MEANS, *flags), tmp_path / "run", report=[].append)
    assert not (tmp_path / "run").exists()
