"""The run directory: what a training run leaves behind."""

import csv
import hashlib
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from proxemic.data import FilePixels, ImageSet, ImageSource, Splits
from proxemic.errors import UserError
from proxemic.files import read_json, write_csv, write_json, write_text
from proxemic.locks import LOCK
from proxemic.training.run_classes import RunClasses


@dataclass(frozen=True)
class RunDirectory:
    """Names and formats of the files in ``runs/<name>/``.

    Args:
        path: The directory.
    """

    path: Path

    @property
    def recipe(self) -> Path:
        """Every value of the recipe, defaults included (YAML)."""
        return self.path / "recipe.yaml"

    @property
    def environment(self) -> Path:
        """The machine, the libraries, the command, a fingerprint of the images (JSON)."""
        return self.path / "environment.json"

    @property
    def classes(self) -> Path:
        """The names of the classes of each split, and where the images were (JSON); older runs have none."""
        return self.path / "classes.json"

    @property
    def metrics(self) -> Path:
        """The final metrics (JSON); there once the run is finished."""
        return self.path / "metrics.json"

    @property
    def measured_before(self) -> Path:
        """What callbacks measured before the first epoch (JSON); there where the recipe has such callbacks."""
        return self.path / "measured-before.json"

    @property
    def history(self) -> Path:
        """One row an epoch (CSV)."""
        return self.path / "history.csv"

    @property
    def model(self) -> Path:
        """The weights of the chosen epoch; ``model.json`` beside it says how to build the network."""
        return self.path / "model.safetensors"

    @property
    def loss(self) -> Path:
        """The loss's own weights, the proxies, of the chosen epoch."""
        return self.path / "loss.safetensors"

    @property
    def checkpoint(self) -> Path:
        """What ``--resume`` starts from."""
        return self.path / "checkpoints" / "last.ckpt"

    @property
    def diverged(self) -> Path:
        """Why training broke off, where loss or weights were no longer finite; gone once it goes on."""
        return self.path / "diverged.txt"

    def files(self) -> tuple[Path, ...]:
        """All of these, with the model's description."""
        weights = (self.model, self.model.with_suffix(".json"), self.loss, self.checkpoint)
        return (self.recipe, self.environment, self.classes, self.metrics, self.history, *weights)

    def check_new(self) -> None:
        """Raise `UserError` unless the directory is absent or empty."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, but --out needs a folder: choose another name.")
        if self.recipe.exists():
            raise UserError(
                f"{self.path} holds another run: choose another --out, or continue that one with --resume {self.path}."
            )
        # What a kill before the last of the first files of a run leaves is no run.
        begun = {self.environment, self.classes, self.checkpoint.parent, self.checkpoint.with_name(LOCK)}
        if any(path not in begun and path.suffix != ".tmp" for path in self.path.rglob("*")):
            raise UserError(f"{self.path} is not empty, but --out needs a new or an empty folder: choose another name.")

    def check_run(self, test: bool = False) -> None:
        """Raise `UserError` unless the directory holds a run.

        Args:
            test: It will be evaluated on the test classes, which a search must not look at.
        """
        if not self.recipe.is_file():
            raise UserError(
                f"{self.path} holds no run (there is no recipe.yaml in it): give a directory that proxemic train made."
            )
        if test and not self.read_environment().get("test", True):
            raise UserError(
                f"{self.path} is a trial of a search, which must not be judged on the test classes: go on with the "
                "search, or train its recipe.yaml into a new --out."
            )

    def check_images(self, split_fingerprint: str) -> None:
        """Raise `UserError` unless the images have the classes and labels that the run was begun with."""
        if not self.has_images(split_fingerprint):
            raise UserError(
                f"The images are not those that {self.path} was begun with (classes or labels differ), so its split "
                "of them is lost: put them back, begin a new run, or judge other images with --data.root."
            )

    def has_images(self, split_fingerprint: str) -> bool:
        """Whether images have the classes and labels that the run was begun with."""
        return self.read_environment().get("images") == split_fingerprint

    def create(
        self,
        recipe_yaml: str,
        source: ImageSource,
        splits: Splits,
        *,
        earlier: Iterable[str] = (),
        test: bool = True,
        processes: int = 1,
    ) -> None:
        """Make the directory: the recipe, and a record of the machine and of the images.

        Args:
            recipe_yaml: All values of the recipe.
            source: Where the images come from.
            splits: The images.
            earlier: Classes that the weights which the run begins with were trained on.
            test: The run is to be evaluated on the test classes.
            processes: How many train it.
        """
        images = {"processes": processes, "images": split_fingerprint(splits), "test": test}
        write_json(self.environment, _environment() | images)
        write_json(self.classes, asdict(RunClasses.of(source, splits, earlier)))
        write_text(self.recipe, recipe_yaml)

    def read_environment(self) -> dict[str, Any]:
        """The content of ``environment.json``.

        Raises:
            UserError: If it is missing or damaged.
        """
        return read_json(self.environment)

    def read_classes(self) -> RunClasses | None:
        """The content of ``classes.json``; None for an older run, which has none.

        Raises:
            UserError: If it is damaged.
        """
        return RunClasses.read(self.classes) if self.classes.exists() else None

    def locate(self, source: ImageSource) -> ImageSource:
        """The images of the run's recipe, also from another working directory; see `RunClasses.locate`."""
        classes = self.read_classes()
        return source if classes is None else classes.locate(source)

    def drop_weights(self, *, model: bool = True) -> None:
        """Remove what is large: the checkpoint and, unless they are to stay, the weights; the figures stay."""
        for path in (self.model, self.model.with_suffix(".json"), self.loss) if model else ():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write all epochs anew, so that a resumed run never repeats or loses a row."""
        write_csv(self.history, list(rows[0]), ([row[name] for name in rows[0]] for row in rows))

    def read_history(self) -> list[dict[str, float]]:
        """One dict an epoch."""
        with self.history.open(newline="") as file:
            return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def split_fingerprint(splits: Splits) -> str:
    """Of the classes and labels, and of boxes and sequences: what a resumed run must find again."""
    parts = (splits.train, splits.validation, splits.test)
    text = [None if part is None else (part.class_names, part.labels.tolist(), *_more(part)) for part in parts]
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()


def _more(images: ImageSet) -> list[object]:
    """What a table says besides, where it does: runs made before keep their fingerprints."""
    boxes = images.pixels.boxes if isinstance(images.pixels, FilePixels) and any(images.pixels.boxes) else None
    sequences = None if images.sequences is None else images.sequences.texts()
    return [] if boxes is None and sequences is None else [boxes, sequences]


def _environment() -> dict[str, Any]:
    packages = ("proxemic", "torch", "torchvision", "lightning", "timm", "numpy")
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in packages},
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
