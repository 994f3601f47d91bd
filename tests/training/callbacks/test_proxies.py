"""Proxies that move alike and are then spread over the clusters of their class, and pooling that becomes sharper."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.scores import SoftmaxPooling
from proxemic.recipes.reader import read_recipe
from proxemic.runs.embed import embed_images
from proxemic.training import Callback, GammaAnnealing, TrainingState, train

SHORT = ["--training.epochs", "3", "--training.loggers", "[]", "--evaluation.untrained", "false"]
SPREAD = ["--training.start_proxies", "k_means", "--training.spread_after", "1", "--loss.proxies_per_class", "3"]
ANNEALED = ["--training.anneal_gamma.begin", "1.6", "--training.anneal_gamma.epochs", "3"]


class Watch(Callback):
    """Sets the same initial proxies for any number of proxies, and records how they change."""

    def __init__(self) -> None:
        self.proxies: list[Tensor] = []
        self.before: list[Tensor] = []
        self.embedded: list[Tensor] = []
        self.steps: list[float] = []
        self.gammas: list[float] = []

    def on_train_start(self, training: TrainingState) -> None:
        loss = training.loss
        assert isinstance(loss, ProxyLoss)
        with torch.no_grad():
            generator = torch.Generator().manual_seed(0)
            begun = torch.randn(loss.num_classes, 1, loss.embedding_size, generator=generator) / 4
            loss.proxies.copy_(begun.expand_as(loss.proxies))

    def on_epoch_start(self, training: TrainingState) -> None:
        self.before.append(training.proxies.detach().clone())
        self.embedded.append(embed_images(training.model, training.data.images, training.recipe.images))

    def on_step_end(self, training: TrainingState, loss: Tensor) -> None:
        assert isinstance(training.loss, ProxyLoss)
        pooling = training.loss.scoring.pooling
        self.proxies.append(training.proxies.detach().clone())
        self.steps.append(float(training.optimizer.state[training.proxies]["step"]))
        self.gammas.append(pooling.gamma if isinstance(pooling, SoftmaxPooling) else 0.0)


def watched(path: Path, out: Path, *flags: str) -> Watch:
    watch, read = Watch(), read_recipe(path, [*SHORT, *flags]).recipe
    read.training.__dict__["callbacks"] = [watch]
    train(read, out, report=[].append)
    return watch


@pytest.mark.parametrize("pooling", ["SoftmaxPooling", "MaxPooling"])
def test_until_they_are_spread_they_move_as_one_proxy(recipe: Path, tmp_path: Path, pooling: str) -> None:
    flags = ["--loss", "ArcFaceLoss", "--loss.pooling", pooling, "--training.epochs", "2"]
    one = watched(recipe, tmp_path / "one", *flags)
    several = watched(recipe, tmp_path / "several", *flags, *SPREAD)
    steps = len(one.proxies) // 2
    assert several.proxies[0].shape[1] == 3
    for ours, theirs in zip(several.proxies[:steps], one.proxies[:steps], strict=True):
        torch.testing.assert_close(ours, theirs.expand_as(ours), rtol=1e-4, atol=1e-6)
    spread = several.before[1]
    assert not torch.allclose(spread[:, 0], spread[:, 1], atol=0.01)


def test_they_are_spread_once_over_the_clusters_of_their_class(recipe: Path, tmp_path: Path) -> None:
    watch = watched(recipe, tmp_path / "run", *SPREAD)
    read = read_recipe(recipe, [*SHORT, *SPREAD]).recipe
    labels = read.load().train.labels
    before, lengths = watch.before[1], watch.proxies[len(watch.proxies) // 3 - 1].norm(dim=2)
    torch.testing.assert_close(before.norm(dim=2), lengths)
    units = normalize(watch.embedded[1].double(), dim=1)
    for label, proxies in enumerate(normalize(before.double(), dim=2)):
        members = units[labels == label]
        nearest = (members @ proxies.T).argmax(1)
        assert len(nearest.unique()) == 3
        for k in range(3):
            mean = normalize(members[nearest == k].mean(0), dim=0)
            torch.testing.assert_close(proxies[k], mean, rtol=1e-4, atol=1e-4)
    epoch = len(watch.steps) // 3
    assert watch.steps == [*range(1, epoch + 1), *range(1, 2 * epoch + 1)]  # what Adam gathered went with the places


class KeepStart(Callback):
    """Records the proxies and the embeddings before the first step."""

    def __init__(self) -> None:
        self.proxies = self.embeddings = torch.empty(0)

    def on_train_start(self, training: TrainingState) -> None:
        self.proxies = training.proxies.detach().clone()
        self.embeddings = embed_images(training.model, training.data.images, training.recipe.images)


def test_before_the_first_step(recipe: Path, tmp_path: Path) -> None:
    read = read_recipe(recipe, [*SHORT, *SPREAD, "--training.spread_after", "0", "--training.epochs", "1"]).recipe
    start = KeepStart()
    read.training.__dict__["callbacks"] = [start]
    train(read, tmp_path / "run", report=[].append)
    labels = read.load().train.labels
    units, proxies = normalize(start.embeddings, dim=1), normalize(start.proxies, dim=2)
    nearest = torch.einsum("nd,nkd->nk", units, proxies[labels]).argmax(1)
    assert all(len(nearest[labels == label].unique()) == 3 for label in range(len(proxies)))


def test_gamma_falls_to_that_of_the_loss(recipe: Path, tmp_path: Path) -> None:
    watch = watched(recipe, tmp_path / "run", *ANNEALED, "--loss.gamma", "0.1")
    steps = len(watch.gammas) // 3
    expected = [1.6] * steps + [0.4] * steps + [0.1] * steps
    assert watch.gammas == pytest.approx(expected)


def test_what_does_not_go_together_is_refused_before_anything_is_written(recipe: Path, tmp_path: Path) -> None:
    for flags, words in (
        (["--training.start_proxies", "k_means", "--training.start_from", "runs/a"], "start_from brings the proxies"),
        ([*ANNEALED, "--loss", "ArcFaceLoss", "--loss.pooling", "MaxPooling"], "has no pooling of proxies with a gam"),
    ):
        with pytest.raises(UserError, match=words):
            train(read_recipe(recipe, [*SHORT, *flags]).recipe, tmp_path / "run", report=[].append)
    assert not (tmp_path / "run").exists()


def test_annealing_is_even_in_the_logarithm() -> None:
    annealing = GammaAnnealing(begin=2.0, epochs=5)
    gammas = [annealing.gamma(epoch, end=0.02) for epoch in range(7)]
    assert gammas[0] == 2.0
    assert gammas[4:] == [0.02] * 3
    assert all(later / earlier == pytest.approx(0.01**0.25) for earlier, later in pairwise(gammas[:5]))
