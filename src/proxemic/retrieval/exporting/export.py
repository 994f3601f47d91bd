"""Export a model to a file for other programs and verify its accuracy."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Literal, get_args

import torch

from proxemic.addresses import is_pretrained_name
from proxemic.data import ImageSet, Preprocessing
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import check_folder, read_json, working_folder, write_atomically
from proxemic.models import EmbeddingModel
from proxemic.models.backbones.onnx_backbone import read_note
from proxemic.outputs import check_output
from proxemic.retrieval.exporting.card import write_card
from proxemic.retrieval.exporting.graphs import (
    HalfPrecision,
    Program,
    check_exportable,
    is_convolutional,
    note,
    quantize,
    write_onnx,
    write_program,
)
from proxemic.retrieval.exporting.parity import check, labelled_images, measure, whole_classes
from proxemic.retrieval.searching.held_out import own_splits, run_of
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.runs.directory import RunDirectory
from proxemic.runs.evaluate import EvaluationConfig
from proxemic.runs.library_preprocessing import LibraryPreprocessing
from proxemic.runs.onnx_files import ONNX_NOTE
from proxemic.runs.pretrained import model_path
from proxemic.tables import percent

Target = Literal["onnx", "torch"]
SUFFIXES: dict[Target, str] = {"onnx": ".onnx", "torch": ".pt2"}
FORMAT = 1


@dataclass(frozen=True)
class Exported:
    """An exported file and its measured accuracy.

    Args:
        path: The file; `description` and `card` lie next to it.
        description: The JSON file with the preprocessing of images.
        card: The model card.
        precision: ``float32``, ``float16`` or ``int8``.
        bytes: Size of the file.
        data: A description of the images on which the file was compared with the model.
        images: Number of these images.
        difference: Largest difference of a dimension of the embeddings, in units of the embeddings' mean length.
        recall: Recall@1 of the model, from 0 to 1.
        exported_recall: Recall@1 of the file, from 0 to 1.
    """

    path: Path
    description: Path
    card: Path
    precision: str
    bytes: int
    data: str
    images: int
    difference: float
    recall: float
    exported_recall: float

    def text(self) -> str:
        """Summarise the export in a few lines."""
        price = 100 * (self.exported_recall - self.recall)
        recall = f"{percent(self.exported_recall)}, of the model {percent(self.recall)}"
        return (
            f"{self.path}: {self.precision}, {self.bytes / 1e6:,.1f} MB\n"
            f"Recall@1 on {self.data}: {recall} ({price:+.2f}); "
            f"largest difference of embeddings {self.difference:.1e}\n"
            f"Next to it: {self.description.name} (how photos are prepared) and {self.card.name} (the model card)"
        )


def export(
    model: str | os.PathLike[str],
    to: Target = "onnx",
    out: str | os.PathLike[str] | None = None,
    *,
    source: str | os.PathLike[str] | None = None,
    most_images: int | None = None,
    half: bool = False,
    int8: bool = False,
    licence: str | None = None,
    unfinished: bool = False,
    batch_size: int = 64,
    workers: int = 0,
    report: Callable[[str], object] | None = None,
) -> Exported:
    """Export a model to a file, and compare the file with the model on images.

    The file maps prepared images ``[batch, channels, size, size]`` of any batch size to the embeddings of `Embedder`.
    It is written only if its embeddings differ from the model's by at most 1e-4 and its Recall@1 is the same; with
    ``half`` and ``int8``, both may differ and are reported. ``NAME.json`` with the preprocessing and the model card
    ``NAME.md`` are written next to ``NAME.onnx``.

    Args:
        model: The directory of a run, or a ``model.safetensors``.
        to: ``onnx``, or ``torch`` for a program of `torch.export` (``.pt2``).
        out: The file; None takes ``export/model.onnx`` and the like in the directory of the model. An earlier export
            is replaced.
        source: Labelled images for the comparison, a folder or a table; None takes the test images of the run.
        most_images: Compare on about this many images, of random whole classes; None compares on all.
        half: Compute the backbone in float16.
        int8: Quantise to 8 bits (``onnx`` only). Convolutional networks are calibrated on training images of the run.
        licence: Licence for the card, as hubs name it, such as ``mit``.
        unfinished: Also export the model of an unfinished run; the card then says when it stopped.
        batch_size: Images per batch of the network.
        workers: Processes that read images.
        report: Called with notes for the user. None logs them.

    Returns:
        The file and its accuracy.

    Raises:
        UserError: If an argument is invalid, the network cannot be exported, or the file differs from the model.
        ValueError: If a file of the model is damaged.
        ImportError: If onnx, onnxscript or onnxruntime is not installed.

    Example::

        exported = export("runs/photos", int8=True)
        exported.recall - exported.exported_recall  # the price
        Embedder.load(exported.path).embed(["a.jpg"])
    """
    report = report or getLogger("proxemic").info
    named = is_pretrained_name(model)
    model = model_path(model)
    _check(model, to, half=half, int8=int8, most_images=most_images)
    if to == "onnx":
        with optional_dependency("onnx"):  # before the minutes in which images are embedded
            import onnx  # noqa: F401
            import onnxruntime  # noqa: F401
            import onnxscript  # noqa: F401
    target = _target(Path() if named else model, to, out, half=half, int8=int8)
    of_run = RunDirectory.of_model(Path(model))
    if of_run.stopped and not unfinished:
        raise UserError(
            f"{model} {of_run.stopped}: finish it by proxemic train --resume {of_run.path}, or export what it has "
            "with --unfinished."
        )
    embedder = Embedder.load(model, device="cpu")
    check_exportable(embedder.model)
    preprocessing = embedder.transform
    if isinstance(preprocessing, LibraryPreprocessing):
        raise UserError(
            f"The images of this model are prepared by {preprocessing.library} itself, with settings that a file for "
            "other programs cannot describe: export another network."
        )
    assert isinstance(preprocessing, Preprocessing)
    run = run_of(embedder)
    calibrates = int8 and is_convolutional(embedder.model)
    if calibrates and run is None:
        raise UserError("--int8 is calibrated on training images, which only a run knows: export the run.")
    images, training, data = _images(embedder, run, source, calibrates, report)
    whole = len(images)
    images = images if most_images is None else whole_classes(images, most_images)
    drawn = "" if len(images) == whole else f" of {whole:,}"
    data = f"{len(images):,}{drawn} {data}" + (f", those of {images.num_classes:,} classes" if drawn else "")
    config = EvaluationConfig(distance=embedder.distance)
    if run is not None:
        from proxemic.recipes.reader import read_evaluation  # which imports much

        config = read_evaluation(run.recipe).evaluation
    measured = partial(measure, config=config, batch_size=batch_size, workers=workers, report=report)
    reference = measured(embedder, images, description="the model")
    images = reference.images
    with working_folder(target) as folder:
        made = folder / target.name
        report(f"Writing {target.name}")
        sample = torch.zeros(2, preprocessing.channels, preprocessing.size, preprocessing.size)
        network = embedder.model
        if half:
            assert isinstance(network, EmbeddingModel)
            network = HalfPrecision(network)
        quantisation = None
        precision = "int8" if int8 else "float16" if half else "float32"
        usage = {"preprocessing": preprocessing.as_dict(), "distance": embedder.distance}
        if to == "torch":
            write_program(network, sample, made)
            loaded = Embedder(Program(made), preprocessing, distance=embedder.distance)
        else:
            write_onnx(network, sample, made)
            if int8:
                quantize(made, made, embedder, training)
                quantisation = "dynamic" if training is None else "static"
            note(made, ONNX_NOTE, json.dumps(usage))
            loaded = Embedder.load(made)
        exported = measured(loaded, images, description=made.name)
        if precision == "float32":
            check(reference, exported)
        beside, card_file = target.with_suffix(".json"), target.with_suffix(".md")
        measures = (data, len(images), reference.difference(exported), reference.recall, exported.recall)
        found = Exported(target, beside, card_file, precision, made.stat().st_size, *measures)
        network = embedder.model
        model_name = network.config.backbone_name if isinstance(network, EmbeddingModel) else type(network).__name__
        classes = None if run is None or source is None else run.read_classes()
        description = {
            "format": FORMAT,
            "file": target.name,
            "sha256": hashlib.sha256(made.read_bytes()).hexdigest(),
            "bytes": found.bytes,
            **usage,
            "dim": embedder.dim,
            "precision": precision,
            **({"quantisation": quantisation} if quantisation else {}),
            "backbone": model_name,
            "model": embedder.checksum,
            **({"unfinished": of_run.stopped} if of_run.stopped else {}),
            "parity": {
                "data": found.data,
                "images": found.images,
                "largest_difference": found.difference,
                "recall@1": {"model": found.recall, "file": found.exported_recall},
            },
        }
        card = write_card(
            target,
            name=target.stem if run is None else run.path.name,
            description=description,
            images=data,
            model=reference,
            exported=exported,
            run=run,
            whole_test=source is None and len(images) == whole,
            trained_on=0 if classes is None else len({*images.class_names} & classes.trained),
            licence=licence,
        )
        _put_in_place(made, found, json.dumps(description, indent=2) + "\n", card)
    return found


def _check(model: str | os.PathLike[str], to: str, *, half: bool, int8: bool, most_images: int | None) -> None:
    if to not in get_args(Target):
        raise UserError(f"--to is {to}, but must be onnx or torch.")
    if half and int8:
        raise UserError("--half and --int8 are both given, but a file has one precision: drop one.")
    if int8 and to == "torch":
        raise UserError("--int8 is done by ONNX Runtime, but --to is torch: take --to onnx.")
    if most_images is not None and most_images < 2:
        raise UserError(f"--images is {most_images}, but must be 2 or more.")
    if Path(model).suffix.lower() in SUFFIXES.values():
        raise UserError(f"{model} is an exported file already: give the directory of a run, or a model.safetensors.")


def _target(model: Path, to: Target, out: str | os.PathLike[str] | None, *, half: bool, int8: bool) -> Path:
    """Choose the file to write; refuse to replace anything but an earlier export."""
    suffix = SUFFIXES[to]
    kind = f"{'-torch' if to == 'torch' else ''}{'-half' if half else '-int8' if int8 else ''}"
    folder = model if model.is_dir() else model.parent
    target = folder / "export" / f"model{kind}{suffix}" if out is None else Path(out)
    if target.suffix != suffix or target.is_dir():
        raise UserError(f"--out is {target}, but must be the name of a file that ends in {suffix}, as {to} is written.")
    check_folder(target)
    beside = target.with_suffix(".json")
    if beside.exists() and read_json(beside).get("file") != target.name:
        raise UserError(
            f"{beside} belongs to another model, but would be replaced by that of {target.name}: give another --out."
        )
    if not beside.exists():  # a kill may have left an export without its description
        check_output(target, lambda path: to == "onnx" and read_note(path.read_bytes(), ONNX_NOTE) is not None)
        check_output(target.with_suffix(".md"), lambda _: target.exists())
    return target


def _images(
    embedder: Embedder,
    run: RunDirectory | None,
    source: str | os.PathLike[str] | None,
    calibrates: bool,
    report: Callable[[str], object],
) -> tuple[ImageSet, ImageSet | None, str]:
    """Return the images of the comparison, the training images if calibration needs them, and a description."""
    if source is not None:
        training = own_splits(run, report, test=False).train if run is not None and calibrates else None
        images = labelled_images(source)
        return images, training, f"images of {images.num_classes:,} classes of {Path(source).name}"
    if run is None:
        raise UserError(
            f"{embedder.path} is not a run with known test images: give labelled photos to compare the file on "
            "(--data.root)."
        )
    splits = own_splits(run, report, test=True)
    if splits.test is None:
        raise UserError(f"{run.path} has no test classes to compare the file on: give labelled photos (--data.root).")
    return splits.test, splits.train if calibrates else None, f"test images of {splits.test.num_classes:,} classes"


def _put_in_place(made: Path, found: Exported, description: str, card: str) -> None:
    """Write the three files in an order that leaves a usable file, or none, if the process is killed in between."""
    found.path.parent.mkdir(parents=True, exist_ok=True)
    found.description.unlink(missing_ok=True)  # of the file that is replaced
    with write_atomically(found.path) as temporary:
        shutil.copyfile(made, temporary)
    for path, text in ((found.description, description), (found.card, card)):
        with write_atomically(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
