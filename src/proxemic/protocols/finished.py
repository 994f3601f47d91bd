"""A finished run, opened to be looked at: its recipe, its images, its network and its proxies."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from proxemic.data import ImageSet, Splits
from proxemic.errors import UserError
from proxemic.losses import PairwiseLoss, ProxyLoss
from proxemic.models import EmbeddingModel, build_model, load_model
from proxemic.recipes.reader import read_recipe, read_yaml
from proxemic.training.embed import embed_images
from proxemic.training.recipe import Recipe
from proxemic.training.run import RunDirectory, fingerprint
from proxemic.training.starting import load_loss

__all__ = ["FinishedRun", "find_runs"]


@dataclass(frozen=True)
class FinishedRun:
    """A run whose training has ended; its parts are read when they are asked for, once.

    Args:
        path: The run directory.

    Raises:
        UserError: If there is no run, or it is not finished.
    """

    path: Path

    def __post_init__(self) -> None:
        run = RunDirectory(self.path)
        run.check_run()
        if not (run.metrics.exists() and run.model.exists() and run.loss.exists()):
            raise UserError(
                f"{self.path} has no weights of a finished training: finish it with proxemic train --resume "
                f"{self.path}, or train anew."
            )

    @cached_property
    def recipe(self) -> Recipe:
        """What was trained."""
        return read_recipe(RunDirectory(self.path).recipe).recipe

    @cached_property
    def splits(self) -> Splits:
        """The images, which must be those that the run was trained on, as its proxies belong to their classes."""
        splits = self.recipe.load()
        RunDirectory(self.path).check_images(fingerprint(splits))
        return splits

    @cached_property
    def test(self) -> ImageSet:
        """The images of the test classes.

        Raises:
            UserError: If the run is a trial of a search, which must not look at them.
        """
        RunDirectory(self.path).check_run(test=True)
        return self.splits.test

    @cached_property
    def loss(self) -> ProxyLoss | PairwiseLoss:
        """The loss of the phase that the chosen epoch was in, with the chosen weights."""
        run = RunDirectory(self.path)
        recipe = self.recipe.from_its_first_phase()
        epoch, second = json.loads(run.metrics.read_text(encoding="utf-8"))["epoch"], recipe.second_phase
        in_second = second is not None and epoch > recipe.training.epochs - second.epochs
        loss = (second if in_second else recipe).loss(self._num_classes, recipe.model.embedding_size)
        load_loss(run, loss)
        return loss

    def untrained_loss(self) -> ProxyLoss | PairwiseLoss:
        """The same loss as it was before the training, by the recipe's seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.recipe.seed)
            build_model(self.recipe.model)  # draws first, as when the run was begun
            return self.recipe.from_its_first_phase().loss(self._num_classes, self.recipe.model.embedding_size)

    @cached_property
    def model(self) -> EmbeddingModel:
        """The network of the chosen epoch, in evaluation mode."""
        return load_model(self.path)[0].eval()

    def embed(self, images: ImageSet) -> Float[Tensor, "images dim"]:
        """Embed images as the run judges them."""
        return embed_images(
            self.model,
            images,
            self.recipe.images,
            batch_size=self.recipe.evaluation.batch_size,
            workers=self.recipe.batches.workers,
        )

    @property
    def setting(self) -> str:
        """The recipe but for its seed, as text: what runs that are repetitions of each other have in common."""
        return json.dumps(read_yaml(RunDirectory(self.path).recipe) | {"seed": None}, sort_keys=True)

    @property
    def name(self) -> str:
        """What to call it: its folder's name, or that of the folder of all seeds."""
        return self.path.resolve().parent.name if self.path.name.startswith("seed-") else self.path.name

    @property
    def _num_classes(self) -> int:
        # From the file, since images may be large, or no longer there.
        with safe_open(RunDirectory(self.path).loss, "pt") as file:
            if "proxies" in file.keys():  # noqa: SIM118 - it is no mapping
                return file.get_slice("proxies").get_shape()[0]
        return self.splits.train.num_classes


def find_runs(paths: list[Path]) -> list[FinishedRun]:
    """Open the runs that a user names, each once; what a pattern such as ``seed-*`` finds beside them is left out.

    Raises:
        UserError: If one is not there, is no run, or is not finished.
    """
    runs = [path for path in dict.fromkeys(paths) if path.is_dir() or not path.exists()]
    return [FinishedRun(path) for path in runs or paths]
