"""Runs, opened to be looked at: recipe and history of any, images, network and proxies of finished ones."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import yaml
from jaxtyping import Float
from torch import Tensor

from proxemic.data import ImageSet, Splits
from proxemic.errors import UserError
from proxemic.losses.user_defined import Loss, make_loss
from proxemic.models import EmbeddingModel, build_model, load_model
from proxemic.recipes.reader import ReadRecipe, read_recipe
from proxemic.runs.directory import RunDirectory, RunMetrics, split_fingerprint
from proxemic.runs.embed import embed_images, pick_device
from proxemic.training import beginning
from proxemic.training.recipe import Recipe
from proxemic.typed_json import read_typed


@dataclass(frozen=True)
class Run:
    """A run, finished or not, in a run directory; `UserError` if there is none."""

    path: Path

    def __post_init__(self) -> None:
        self.directory.check_run()

    @cached_property
    def directory(self) -> RunDirectory:
        """The files of the run."""
        return RunDirectory(self.path)

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe; its data are where they are now."""
        return replace(self._read.recipe, data=self.directory.locate(self._read.recipe.data))

    @cached_property
    def content(self) -> dict[str, Any]:
        """The recipe as plain values, with today's defaults for keys that an older version did not have."""
        return yaml.safe_load(self._read.yaml)

    @cached_property
    def _read(self) -> ReadRecipe:
        return read_recipe(self.directory.recipe)

    @property
    def setting(self) -> str:
        """The recipe without its seed, as text, which runs that repeat each other have in common."""
        return json.dumps(self.content | {"seed": None, "published": None}, sort_keys=True)

    @property
    def seed(self) -> int:
        """The seed of weights, order and augmentation."""
        return self.content["seed"]

    @property
    def name(self) -> str:
        """The name of its folder, or that of the folder of all seeds."""
        path = self.path.resolve()
        return path.parent.name if path.name.startswith("seed-") else path.name

    @cached_property
    def metrics(self) -> RunMetrics | None:
        """The content of ``metrics.json``; None before the run is finished."""
        return self.directory.read_metrics() if self.directory.metrics.exists() else None

    @property
    def state(self) -> str:
        """``finished``, ``unstable`` where loss or weights were no longer finite, or ``unfinished``."""
        if self.metrics is not None:
            return "finished"
        return "unstable" if self.directory.diverged.exists() else "unfinished"

    @cached_property
    def measured_before(self) -> dict[str, float]:
        """What callbacks measured before the first epoch; empty without callbacks, and in older runs."""
        path = self.directory.measured_before
        return read_typed(path, dict[str, float]) if path.exists() else {}

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """One mapping per finished epoch."""
        return self.directory.read_history()


@dataclass(frozen=True)
class FinishedRun(Run):
    """A finished run, whose parts are read at their first use; `UserError` if there is none, or it has not ended."""

    def __post_init__(self) -> None:
        super().__post_init__()
        run = self.directory
        if not (run.metrics.exists() and run.model.exists() and (run.loss.exists() or run.keeps_features)):
            raise UserError(
                f"{self.path} has no weights of a finished training: finish it with proxemic train --resume "
                f"{self.path}, or train anew."
            )

    @property
    def keeps_features(self) -> bool:
        """Whether the run keeps the pretrained network, without a head and a loss, as no epoch was better."""
        return self.directory.keeps_features

    @cached_property
    def splits(self) -> Splits:
        """The images that the run was trained on; the proxies belong to their classes."""
        splits = self.recipe.load()
        self.directory.check_images(split_fingerprint(splits))
        return splits

    @cached_property
    def test(self) -> ImageSet:
        """The images of the test classes; `UserError` if there are none, or for a trial of a search."""
        self.directory.check_run(test=True)
        return self.splits.test_images

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of the training classes by label, as ``loss.predict`` returns them and the proxies are ordered.

        Reads no images, unless the run is so old that it has no ``classes.json``.
        """
        classes = self.directory.read_classes()
        return self.splits.train.class_names if classes is None else classes.train

    @cached_property
    def loss(self) -> Loss:
        """The loss of the phase of the chosen epoch, with its weights; `UserError` where the run keeps features."""
        if self.keeps_features:
            raise UserError(
                f"{self.path} has no proxies, as no epoch was better than the features of the network before training, "
                "which it keeps: train anew with a lower --optim.lr, or with --evaluation.start false."
            )
        recipe = self.recipe.from_its_first_phase()
        assert self.metrics is not None
        first = self.metrics["phases"][0]["epochs"] if "phases" in self.metrics else recipe.lengths[0]
        phase = recipe.second_phase if recipe.second_phase and self.metrics["epoch"] > first else recipe
        loss = make_loss(phase.loss, self._num_classes, recipe.model.embedding_size)
        beginning.load_loss(self.directory, loss)
        return loss

    def untrained_loss(self) -> Loss:
        """Make the loss of the first phase before training, as the recipe's seed initializes it."""
        config = replace(self.recipe.model, input_size=self.model.config.input_size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            build_model(config)  # draws first, as when the run was begun
            first = self.recipe.from_its_first_phase()
            return make_loss(first.loss, self._num_classes, first.model.embedding_size)

    @cached_property
    def model(self) -> EmbeddingModel:
        """The network of the chosen epoch, in evaluation mode."""
        return load_model(self.path, self.recipe.model.custom_backbone)[0].eval()

    def embed(self, images: ImageSet) -> Float[Tensor, "images dim"]:
        """Embed images as the run evaluates them, on the best available device."""
        return embed_images(
            self.model.to(pick_device("auto")),
            images,
            self.recipe.images,
            batch_size=self.recipe.evaluation.batch_size,
            workers=self.recipe.batches.workers,
        )

    @property
    def _num_classes(self) -> int:
        # From the file, since images may be large, or no longer there.
        proxies = self.directory.read_loss().get("proxies")
        return len(self.class_names if proxies is None else proxies)


def find_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """Open the finished runs that a user names; `UserError` if one is not there or not finished."""
    return [FinishedRun(path) for path in named_runs(paths)]


def named_runs(paths: Sequence[Path]) -> list[Path]:
    """Return each directory once, without files that a pattern such as ``seed-*`` matches, such as logs."""
    return [path for path in dict.fromkeys(paths) if path.is_dir() or not path.exists()] or list(paths)
