"""The directory of a training run: its files and the classes of its images."""

import csv
import hashlib
import json
import os
import platform
import shutil
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Required, TypedDict

import pyarrow as pa
import safetensors.torch
import torch
from pyarrow import feather
from safetensors import SafetensorError, safe_open
from torch import Tensor

from proxemic.data import FilePixels, ImageSet, ImageSource, Splits
from proxemic.data.rows import Rows
from proxemic.data.sources.own_source import SPLIT_NAMES, NewImages, OwnSource
from proxemic.errors import UserError
from proxemic.files import check_regular, write_atomically, write_csv, write_json, write_text
from proxemic.locks import LOCK
from proxemic.typed_json import read_typed


@dataclass(frozen=True)
class RunClasses:
    """The path of a run's images and the names of their classes, in the order of labels.

    ``earlier`` contains the classes on which the run's initial weights were trained.
    """

    root: str | None
    train: tuple[str, ...]
    validation: tuple[str, ...] | None = None
    test: tuple[str, ...] | None = None
    earlier: tuple[str, ...] = ()

    @property
    def trained(self) -> frozenset[str]:
        """All classes on which the network was trained, in this run and before."""
        return frozenset({*self.train, *self.earlier})


class RunMetrics(TypedDict, total=False):
    """The parts of ``metrics.json`` that are read again; metrics are in [0, 1]."""

    test: dict[str, float]
    start: dict[str, float]
    untrained: dict[str, float]
    validation: dict[str, float]
    measured: dict[str, float]
    measured_before: dict[str, float]
    chance: dict[str, float]
    epoch: Required[int]
    kept: str
    selected_on: Required[str]
    seed: int
    precision: str
    phases: list[dict[str, Any]]
    test_classes: int | None
    test_queries: int
    train_classes: int
    train_images: int


class Environment(TypedDict, total=False):
    """The content of ``environment.json``: the machine, the command, and the state in which the run began."""

    command: list[str]
    python: str
    platform: str
    packages: dict[str, str]
    processors: int | None
    threads: int
    accelerator: str | None
    processes: int
    images: str
    test: bool
    epochs: int | None
    precision: dict[str, Literal["32-true", "bf16-mixed", "16-mixed"]]


class RunDirectory:
    """Name, read and write the files in ``runs/<name>/``.

    Args:
        path: The directory.

    Attributes:
        recipe: Every value of the recipe, defaults included (YAML).
        environment: The machine, libraries and command, a fingerprint of the images, and the number of epochs (JSON).
        classes: The names of the classes of each split, and the path of the images (JSON); missing in older runs.
        split: Path within the data, label and split of each image (Arrow); it exists if these are the user's files.
        metrics: The final metrics (JSON); it exists once the run is finished.
        measured_before: What callbacks measured before training (JSON); it exists if there are such callbacks.
        history: One row per epoch (CSV).
        model: The weights of the selected epoch; ``model.json`` next to it describes how to build the network.
        frozen: The network of an ONNX file; it exists if that is the backbone.
        loss: The weights of the loss, such as proxies, in the selected epoch.
        checkpoint: The state from which ``--resume`` continues.
        start: The network before training, in a folder with ``model.json``.
        report: A page about the run, written by the command line at the end.
        diverged: Why training stopped, if loss or weights were not finite; removed when training resumes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.environment = path / "environment.json"
        self.classes = path / "classes.json"
        self.split = path / "split.arrow"
        self.metrics = path / "metrics.json"
        self.measured_before = path / "measured-before.json"
        self.history = path / "history.csv"
        self.model = path / "model.safetensors"
        self.frozen = path / "backbone.onnx"
        self.loss = path / "loss.safetensors"
        self.checkpoint = path / "checkpoints" / "last.ckpt"
        self.start = path / "checkpoints" / "start"
        self.report = path / "report.html"
        self.diverged = path / "diverged.txt"

    @classmethod
    def of_model(cls, path: Path) -> "RunDirectory":
        """Return the run directory of a model, given that directory or its ``model.safetensors``."""
        return cls(path if path.is_dir() else path.parent)

    def files(self) -> tuple[Path, ...]:
        """List the files of a finished run, including ``model.json``."""
        weights = (self.model, self.model.with_suffix(".json"), self.loss, self.checkpoint)
        return (self.recipe, self.environment, self.classes, self.metrics, self.history, *weights)

    @property
    def keeps_features(self) -> bool:
        """Whether a finished run kept the network before training, without head and loss, as no epoch was better."""
        return self.metrics.exists() and self.read_metrics().get("kept") == "start"

    @property
    def stopped(self) -> str | None:
        """Where an unfinished run stopped, such as "stopped in epoch 1 of 30"; None if it is finished or not a run."""
        if self.metrics.exists() or not (self.recipe.is_file() and self.environment.is_file()):
            return None
        done = len(self.history.read_text(encoding="utf-8").splitlines()) - 1 if self.history.exists() else 0
        epochs = self.read_environment().get("epochs")
        if done == epochs:
            return f"stopped after epoch {done} of {epochs}, before it was evaluated"
        return f"stopped in epoch {done + 1}{f' of {epochs}' if isinstance(epochs, int) else ''}"

    def read_metrics(self) -> RunMetrics:
        """Read ``metrics.json``; `UserError` if the file is missing or damaged."""
        return read_typed(self.metrics, RunMetrics)

    def read_environment(self) -> Environment:
        """Read ``environment.json``; `UserError` if the file is missing or damaged."""
        return read_typed(self.environment, Environment)

    def record_epochs(self, epochs: int) -> None:
        """Write the largest number of epochs of the run, for `stopped`."""
        environment = self.read_environment()
        if environment.get("epochs") != epochs:
            write_json(self.environment, environment | {"epochs": epochs})

    def check_new(self) -> None:
        """Raise `UserError` unless the directory is absent or empty."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, but --out needs a folder: choose another name.")
        if self.recipe.exists():
            raise UserError(
                f"{self.path} holds another run: choose another --out, or continue that one with --resume {self.path}."
            )
        # A run killed before all of its first files were written is not a run.
        begun = {self.environment, self.classes, self.split, self.checkpoint.parent, self.checkpoint.with_name(LOCK)}
        if any(path not in begun and path.suffix != ".tmp" for path in self.path.rglob("*")):
            raise UserError(f"{self.path} is not empty, but --out needs a new or an empty folder: choose another name.")

    def check_run(self, test: bool = False) -> None:
        """Raise `UserError` unless the directory holds a run; with ``test``, also for a trial of `tune`."""
        if not self.recipe.is_file():
            raise UserError(
                f"{self.path} does not hold a run (it has no recipe.yaml): give a directory that proxemic train made."
            )
        # The second phase is written last; all other keys that a file cut short may lack have defaults.
        if "\nsecond_phase:" not in self.recipe.read_text(encoding="utf-8", errors="replace"):
            raise UserError(f"{self.recipe} is damaged (its end is missing): put it back from a copy.")
        if test and not self.read_environment().get("test", True):
            raise UserError(
                f"{self.path} is a trial of proxemic tune, which must not be evaluated on the test classes: "
                "continue tuning, or train its recipe.yaml into a new --out."
            )

    def check_images(self, split_fingerprint: str) -> None:
        """Raise `UserError` unless the images have the classes and labels with which the run began."""
        if not self.has_images(split_fingerprint):
            raise UserError(
                f"The images are not those that {self.path} was begun with (classes, labels or sequences differ), "
                "so its split is lost: put the images back, begin a new run, or evaluate other images with --data.root."
            )

    def has_images(self, split_fingerprint: str) -> bool:
        """Return whether images have the classes and labels with which the run began."""
        return self.read_environment().get("images") == split_fingerprint

    def begun_like(self, other: "RunDirectory") -> bool:
        """Return whether another run began with the same images in the same split."""
        return self.read_environment().get("images") == other.read_environment().get("images")

    def load(self, source: ImageSource, new_images: NewImages = "leave", *, complete: bool = False) -> Splits:
        """Load the run's images in its split; notes name images that were added or removed since the run began.

        Args:
            source: The source of the images, at its current path.
            new_images: How to treat images that were added later: see `OwnSource.load_again`.
            complete: Refuse missing images.

        Raises:
            UserError: If images are missing (with ``complete``), or, for other data than the user's own files, if
                classes or labels differ.
            ValueError: If the images cannot be read.
        """
        if self.split.exists() and isinstance(source, OwnSource):
            splits = source.load_again(self.read_split(), new_images, complete=complete)
            if not complete:
                return splits
        else:
            splits = source.load()
        self.check_images(split_fingerprint(splits))
        return splits

    def read_split(self) -> Rows:
        """Read ``split.arrow``; `UserError` if it is missing or damaged."""
        if self.split.exists() and not self.split.is_file():
            raise UserError(f"{self.split} is not a regular file: put the file back from a copy.")
        try:
            table = feather.read_table(self.split)
            table.validate(full=True)
            if table.column_names != ["path", "label", "split"] or not {*table["split"].to_pylist()} <= {*SPLIT_NAMES}:
                raise ValueError("its content is wrong")
            return Rows(table)
        except (OSError, pa.ArrowException, ValueError) as error:
            raise UserError(f"{self.split} cannot be read ({error}): put the file back from a copy.") from error

    def create(
        self,
        recipe_yaml: str,
        source: ImageSource,
        splits: Splits,
        *,
        earlier: Iterable[str] = (),
        test: bool = True,
        processes: int = 1,
        precision: Mapping[str, str] | None = None,
    ) -> None:
        """Make the directory, and write the recipe and a record of the machine and the images.

        ``earlier`` contains the classes on which the initial weights were trained. A run without ``test`` can never be
        evaluated on the test classes. ``precision`` is the one selected for ``auto``.
        """
        if self.recipe.exists():  # another run has begun there in the meantime
            self.check_new()
        begun = {"processes": processes, "images": split_fingerprint(splits), "test": test}
        taken = {"precision": dict(precision)} if precision else {}
        write_json(self.environment, _environment() | begun | taken)
        root = getattr(source, "root", None)
        place = root and str(Path(root).absolute())
        held_out = (None if part is None else part.class_names for part in (splits.validation, splits.test))
        classes = RunClasses(place, splits.train.class_names, *held_out, earlier=tuple(sorted(earlier)))
        write_json(self.classes, asdict(classes))
        if splits.rows is not None:
            with write_atomically(self.split) as temporary:
                feather.write_feather(splits.rows.columns, str(temporary), compression="zstd")
        write_text(self.recipe, recipe_yaml)

    def read_classes(self) -> RunClasses | None:
        """Read ``classes.json``; return None for an older run without it."""
        return read_typed(self.classes, RunClasses) if self.classes.exists() else None

    def locate(self, source: ImageSource) -> ImageSource:
        """Return the source of the run's images; relative paths are resolved in the directory where the run began."""
        root, classes = getattr(source, "root", None), self.read_classes()
        begun = None if classes is None else classes.root
        if root is None or Path(root).is_absolute() or begun is None or not Path(begun).exists():
            return source
        if not is_dataclass(source):
            return source
        typed_in = Path(*Path(begun).parts[: -len(Path(root).parts)])
        paths = {field.name: getattr(source, field.name) for field in fields(source)}
        moved = {name: typed_in / path for name, path in paths.items() if isinstance(path, Path)}
        return replace(source, **moved | {"root": Path(begun)})

    def check_root(self, source: ImageSource) -> None:
        """Raise `UserError` if the data of the run are gone; the message names the flag ``--data.root``."""
        root = source.root if isinstance(source, OwnSource) else None
        if root is not None and "{" not in str(root) and not Path(root).exists():
            raise UserError(
                f"{root}, the data of {self.path}, does not exist: put it back, or give its current path with "
                "--data.root."
            )

    def write_loss(self, state: Mapping[str, Tensor]) -> None:
        """Write the weights of the loss and their checksum."""
        content = safetensors.torch.save(dict(state), {"crc32": _checksum(state)})
        with write_atomically(self.loss) as temporary:
            temporary.write_bytes(content)  # as bytes first, because safetensors hides why writing to a file fails

    def read_loss(self) -> dict[str, Tensor]:
        """Read the weights of the loss; `UserError` if they are damaged."""
        try:
            check_regular(self.loss)
            with safe_open(self.loss, "pt") as file:
                noted = (file.metadata() or {}).get("crc32")
            state = safetensors.torch.load_file(self.loss)
        except (OSError, SafetensorError) as error:
            raise UserError(
                f"{self.loss} is not readable as safetensors ({error}): put it back from a copy."
            ) from error
        if noted not in (None, _checksum(state)):
            raise UserError(f"{self.loss} is damaged (its checksum is wrong): put it back from a copy.")
        return state

    def drop_weights(self, *, model: bool = True) -> None:
        """Remove the checkpoint and, by default, the weights; keep the metrics."""
        for path in (self.model, self.model.with_suffix(".json"), self.frozen, self.loss) if model else ():
            path.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoint.parent, ignore_errors=True)

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the rows of all epochs anew, so that a resumed run neither repeats nor loses one."""
        write_csv(self.history, list(rows[0]), ([row[name] for name in rows[0]] for row in rows))

    def read_history(self) -> list[dict[str, float]]:
        """Return one dictionary per finished epoch."""
        if not self.history.exists():
            return []
        check_regular(self.history)
        with self.history.open(newline="") as file:
            return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def split_fingerprint(splits: Splits) -> str:
    """Hash the classes, labels, boxes and sequences, which must not change before a run is resumed."""
    parts = (splits.train, splits.validation, splits.test)
    text = [None if part is None else (part.class_names, _labels(part), *_more(part)) for part in parts]
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()


def _labels(images: ImageSet) -> list[int] | str:
    """Return the labels, or their hash for vectors, of which there may be millions."""
    if images.kind == "images":
        return images.labels.tolist()
    return hashlib.sha256(images.labels.numpy().astype("<i8").tobytes()).hexdigest()


def _more(images: ImageSet) -> list[object]:
    """Return boxes and sequences, if any; without them, fingerprints of older runs stay valid."""
    boxes = images.pixels.boxes if isinstance(images.pixels, FilePixels) and any(images.pixels.boxes) else None
    sequences = None if images.sequences is None else images.rows.texts("sequence")
    return [] if boxes is None and sequences is None else [boxes, sequences]


def _environment() -> dict[str, Any]:
    packages = ("proxemic", "torch", "torchvision", "timm", "numpy")
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version(name) for name in packages},
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _checksum(state: Mapping[str, Tensor]) -> str:
    checksum = 0
    for name in sorted(state):
        content = state[name].detach().cpu().contiguous().flatten().view(torch.uint8)
        checksum = zlib.crc32(content.numpy().data, checksum)
    return f"{checksum:08x}"
