"""Read runs: the recipe and history of any run; the images, network and proxies of a finished one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from proxemic.data import ImageSet, Splits
from proxemic.data.rows import first_few
from proxemic.data.sources.own_source import NewImages
from proxemic.errors import UserError
from proxemic.losses.user_defined import Loss, make_loss
from proxemic.models import EmbeddingModel, build_model, load_model
from proxemic.recipes.reader import ReadRecipe, read_recipe
from proxemic.runs.directory import RunDirectory, RunMetrics
from proxemic.runs.embed import embed_images, pick_device
from proxemic.training import beginning
from proxemic.training.recipe import Recipe
from proxemic.typed_json import read_typed


@dataclass(frozen=True)
class Run:
    """A finished or unfinished run; `UserError` if the path is not a run directory."""

    path: Path

    def __post_init__(self) -> None:
        self.directory.check_run()

    @cached_property
    def directory(self) -> RunDirectory:
        """The files of the run."""
        return RunDirectory(self.path)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe, with the current location of its data."""
        return replace(self._read.recipe, data=self.directory.locate(self._read.recipe.data))

    @cached_property
    def content(self) -> dict[str, Any]:
        """The recipe as plain values; keys that are newer than the run have today's defaults."""
        return yaml.safe_load(self._read.yaml)

    @cached_property
    def _read(self) -> ReadRecipe:
        return read_recipe(self.directory.recipe)

    @property
    def setting(self) -> str:
        """The recipe without its seed, as text: repetitions of a run have the same."""
        return json.dumps(self.content | {"seed": None, "published": None}, sort_keys=True)

    @property
    def seed(self) -> int:
        """The seed of weights, order and augmentation."""
        return self.content["seed"]

    @property
    def name(self) -> str:
        """The name of the run directory, or of its parent if the run directory is called ``seed-N``."""
        path = self.path.resolve()
        return path.parent.name if path.name.startswith("seed-") else path.name

    @cached_property
    def metrics(self) -> RunMetrics | None:
        """The content of ``metrics.json``; None if the run is unfinished."""
        return self.directory.read_metrics() if self.directory.metrics.exists() else None

    @property
    def state(self) -> str:
        """``finished``, ``unstable`` if the loss or the weights became infinite or NaN, or ``unfinished``."""
        if self.metrics is not None:
            return "finished"
        return "unstable" if self.directory.diverged.exists() else "unfinished"

    @cached_property
    def measured_before(self) -> dict[str, float]:
        """Values that callbacks measured before training; empty for older runs and without such callbacks."""
        path = self.directory.measured_before
        return read_typed(path, dict[str, float]) if path.exists() else {}

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """The rows of ``history.csv``, one per finished epoch."""
        return self.directory.read_history()


@dataclass(frozen=True)
class FinishedRun(Run):
    """A finished run, whose parts are read on first use; `UserError` if the run is missing or unfinished.

    ``new_images`` sets how images that were added after the run began are treated: see `OwnSource.load_again`.
    """

    new_images: NewImages = "leave"

    def __post_init__(self) -> None:
        super().__post_init__()
        run = self.directory
        if not (run.metrics.exists() and run.model.exists() and (run.loss.exists() or run.keeps_features)):
            raise UserError(
                f"{self.path} has no weights of a finished training: finish it with proxemic train --resume "
                f"{self.path}, or train again."
            )

    @property
    def keeps_features(self) -> bool:
        """Whether the run kept the pretrained network without head and loss, because no epoch was better."""
        return self.directory.keeps_features

    @cached_property
    def splits(self) -> Splits:
        """The splits of the run's data; some images may be missing by now (`train` refuses missing classes)."""
        recipe = self.recipe
        return recipe.add_noise(recipe.load_clean(partial(self.directory.load, new_images=self.new_images)))

    @property
    def train(self) -> ImageSet:
        """The training images; `UserError` if a class has lost all images, or a run with label noise any."""
        train = self.splits.train
        if self.recipe.training.label_noise > 0:  # wrong labels are drawn anew, from all images
            self.recipe.load_clean(partial(self.directory.load, complete=True))
        if missing := [name for name in self.class_names if name not in {*train.class_names}]:
            raise UserError(
                f"{len(missing):,} training classes of {self.path} have no images any more ({first_few(missing)}): put "
                "them back."
            )
        return train

    @cached_property
    def test(self) -> ImageSet:
        """The images of the test classes; `UserError` if there are none, or if the run is a trial of `tune`."""
        self.directory.check_run(test=True)
        return self.splits.test_images

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names of the training classes, indexed by the labels of ``loss.predict`` and of the proxies.

        Images are read only if the run is too old to have a ``classes.json``.
        """
        classes = self.directory.read_classes()
        return self.splits.train.class_names if classes is None else classes.train

    @cached_property
    def loss(self) -> Loss:
        """The loss with its weights, in the phase of the selected epoch; `UserError` if the run kept features."""
        if self.keeps_features:
            raise UserError(
                f"{self.path} has no proxies, because no epoch was better than the features of the network before "
                "training, which the run kept: train again with a lower --optim.lr, or with --evaluation.start false."
            )
        recipe = self.recipe
        assert self.metrics is not None
        first = self.metrics["phases"][0]["epochs"] if "phases" in self.metrics else recipe.lengths[0]
        phase = recipe.second_phase if recipe.second_phase and self.metrics["epoch"] > first else recipe
        loss = make_loss(phase.loss, self._num_classes, recipe.model.embedding_size)
        beginning.load_loss(self.directory, loss)
        return loss

    def untrained_loss(self) -> Loss:
        """Create the loss of the first phase as it was before training, from the recipe's seed."""
        config = replace(self.recipe.model, input_size=self.model.config.input_size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            build_model(config)  # draws random numbers first, as in the run
            return make_loss(self.recipe.loss, self._num_classes, config.embedding_size)

    @cached_property
    def model(self) -> EmbeddingModel:
        """The network of the selected epoch, in evaluation mode."""
        return load_model(self.path, self.recipe.model.custom_backbone)[0].eval()

    def embed(self, images: ImageSet) -> Float[Tensor, "images dim"]:
        """Embed images with the run's preprocessing for evaluation, on the best available device."""
        return embed_images(
            self.model.to(pick_device("auto")),
            images,
            self.recipe.images,
            batch_size=self.recipe.evaluation.batch_size,
            workers=self.recipe.batches.workers,
        )

    @property
    def _num_classes(self) -> int:
        # From the file: the images may be large, or gone.
        proxies = self.directory.read_loss().get("proxies")
        return len(self.class_names if proxies is None else proxies)


def find_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """Open the finished runs that a user names; `UserError` if one is missing or unfinished."""
    return [FinishedRun(path) for path in named_runs(paths)]


def named_runs(paths: Sequence[Path]) -> list[Path]:
    """Drop duplicates, and files such as logs that a pattern like ``seed-*`` also matches."""
    return [path for path in dict.fromkeys(paths) if path.is_dir() or not path.exists()] or list(paths)
