"""Evaluate a model on pairs of faces (LFW, CFP-FP, AgeDB-30, CALFW, CPLFW), or on the user's own pairs."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from proxemic.errors import UserError
from proxemic.files import readable, write_text
from proxemic.outputs import check_output, is_verification
from proxemic.published import PublishedFigure, PublishedRow
from proxemic.studies.beside_paper import page
from proxemic.studies.targets import check_outputs, check_target, is_run, target_path
from proxemic.tables import MISSING, Format, Table, format_of, percent, without_nan

if TYPE_CHECKING:
    from proxemic.data import FacePairs, ImageSource
    from proxemic.metrics import RetrievalResults, VerificationMetrics

SETS = ("lfw", "cfp_fp", "agedb_30", "calfw", "cplfw")
"""The default sets of pairs."""

_FAR = 1e-3
_TAR = f"tar@far={_FAR:g}"


@dataclass(frozen=True)
class Verification:
    """The metrics of a model on sets of pairs.

    Args:
        model: Model, as the user named it.
        data: Folder of the sets or of the images, or file of vectors.
        distance: Distance between embeddings.
        flip: Whether the embeddings of an image and of its mirror image are added.
        sets: Metrics by set.
        stopped: Where the model's run stopped; None if it is finished.
    """

    model: str
    data: str
    distance: str
    flip: bool
    sets: Mapping[str, "VerificationMetrics"]
    stopped: str | None = None

    def write(self, path: Path) -> None:
        """Write to a file in the format of its suffix: ``.json``, ``.csv`` or ``.md``."""
        write_text(path, self.text(format_of(path)) + "\n")

    def text(self, form: Format = "table") -> str:
        """Return the metrics as text."""
        if form == "json":
            facts: dict[str, Any] = {"model": self.model, "data": self.data}
            facts |= {"distance": self.distance, "flip": self.flip}
            facts |= {"unfinished": self.stopped} if self.stopped else {}
            sets = {name: _summary(group) for name, group in self.sets.items()}
            return json.dumps(without_nan(facts | {"sets": sets}), indent=2)
        if form == "csv":
            return Table.of_records(self.rows()).text("csv")
        from proxemic.data.faces import VERIFICATION_SETS  # imports torch

        flipped = ", each image with its mirror image" if self.flip else ""
        title = f"Verification by {self.distance} distance{flipped}; in percent, but thresholds are distances"
        header = ["set", "pairs", "accuracy ± std", "threshold", "AUC", f"TAR@FAR={_FAR:g}"]
        rows = []
        for name, pairs, accuracy, std, threshold, auc, tar in (row.values() for row in self.rows()):
            shown = VERIFICATION_SETS[name].title if name in VERIFICATION_SETS else readable(name)
            spread = "" if std is None else f" ± {100 * std:.2f}"
            numbers = "" if pairs is None else f"{pairs:,}", f"{100 * accuracy:.2f}{spread}"
            rows.append([shown, *numbers, "" if threshold is None else f"{threshold:.4f}", percent(auc), percent(tar)])
        few = min(metrics.pairs - metrics.same for metrics in self.sets.values())
        note = f"A FAR of {_FAR:g} needs {math.ceil(1 / _FAR):,} different pairs, but there are {few:,}."
        return Table(header, rows, title, [note] if few * _FAR < 1 else []).text(form)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per set and, for several sets, a row of means; NaN is a TAR that cannot be measured."""
        columns = ("pairs", "accuracy", "std", "threshold", "auc", _TAR)
        rows = []
        for name, metrics in self.sets.items():
            values = _summary(metrics) | {"threshold": fmean(metrics.accuracy.thresholds)}
            rows.append({"set": name} | {key: values[key] for key in columns})
        if len(rows) == 1:
            return rows
        means = {key: fmean(row[key] for row in rows) for key in ("accuracy", "auc", _TAR)}
        return [*rows, dict.fromkeys(rows[0]) | means | {"set": "mean"}]

    def against_paper(self) -> str:
        """Write Markdown with the accuracies next to the paper's Table V; `UserError` if the model is not a run."""
        from proxemic.studies.finished import Run  # imports torch

        accuracies = {name: metrics.accuracy.mean for name, metrics in self.sets.items()}
        return verification_against_paper(self.model, Run(Path(self.model)).content, accuracies)


def verify(
    target: str | Path,
    *,
    sets: Sequence[str] | None = None,
    pairs: str | Path | None = None,
    data: str | Path | None = None,
    distance: Literal["cosine", "euclidean"] | None = None,
    flip: bool = True,
    workers: int | None = None,
    out: str | Path | None = None,
    report: Callable[[str], object] | None = None,
) -> Verification:
    """Verify whether pairs show the same person or class: ten folds, each with the best threshold of the other nine.

    Args:
        target: A run directory, a ``model.safetensors``, or a pretrained network (``timm:NAME``, ``hf:NAME``, see
            `proxemic.runs.pretrained.model_path`).
        sets: Names of sets of pairs; see `proxemic.data.VERIFICATION_SETS`. None takes all five.
        pairs: A table of your own pairs (CSV or Parquet) instead of the sets, with the columns ``first``,
            ``second``, ``same`` (true or false) and optionally ``fold``; without folds, ten are dealt. A model of
            vectors needs it.
        data: Folder with ``NAME.bin`` of each set, or with ``lfw/`` and ``pairs.txt``; None takes the run's data. With
            ``pairs`` of images, the folder to which their paths are relative; None takes the folder of the run's data,
            or of the table. With ``pairs`` of vectors, the file of vectors, whose rows are named by the column ``path``
            or numbered from 0; None takes the run's.
        distance: Distance between embeddings; None takes the run's, or cosine.
        flip: Add the embedding of the mirror image to the embedding of each image; ignored for vectors.
        workers: Number of processes that load images; None takes the run's, or 0.
        out: File to write (``.json``, ``.csv`` or ``.md``); None writes ``verification.json`` into a run directory, and
            nothing for another model.
        report: Called with notes for the user, such as pairs that a set lacks. None logs the notes.

    Raises:
        UserError: If an argument is refused, or a file cannot be read or written.
        ValueError: If ``workers`` is out of its range, or a table of pairs cannot be used.
    """
    named, target, report = str(target), target_path(target), report or getLogger("proxemic").info
    out, table, data = (None if path is None else Path(path) for path in (out, pairs, data))
    if out is not None:
        format_of(out)
    check_target(target, ("a run directory", "a model.safetensors", "timm:NAME", "hf:NAME"))
    if sets is not None and table is not None:
        raise UserError("--sets names published sets, and --pairs is a table of your own: leave out one of them.")

    from proxemic.data import OwnVectors
    from proxemic.data.embeddings import open_rows
    from proxemic.data.faces import read_own_pairs, read_verification_set
    from proxemic.models import takes_vectors
    from proxemic.recipes.reader import own_backbone, read_evaluation
    from proxemic.runs.embed import embed_images, load_embedder, pick_device
    from proxemic.runs.evaluate import results_of
    from proxemic.runs.faces import FlipSum
    from proxemic.studies.evaluation import check_made_by
    from proxemic.training import EvaluationConfig, RunDirectory
    from proxemic.training.config import BatchConfig

    config, batches, source = EvaluationConfig(), BatchConfig(), None
    if is_run(target):
        recipe = read_evaluation(RunDirectory(target).recipe)
        config, batches, source = recipe.evaluation, recipe.batches, RunDirectory(target).locate(recipe.data)
    workers = (batches if workers is None else BatchConfig(workers=workers)).workers  # BatchConfig checks it
    of_vectors = takes_vectors(target)
    if of_vectors and table is None:
        raise UserError(
            f"{target} takes vectors, but the sets of pairs are images of faces: give --pairs FILE, a table of pairs "
            "of vectors with the columns first, second and same."
        )
    place = _place(data, source, table, of_vectors)
    labels = source.labels if data is None and isinstance(source, OwnVectors) else None
    check_outputs([out], [target, place, table, labels])
    check_output(out, is_verification)
    if table is None:
        packs = {name: read_verification_set(name, place) for name in (SETS if sets is None else sets)}
    else:
        packs = {table.name: read_own_pairs(table, open_rows(place, labels).pixels if of_vectors else place)}
    if not packs:
        raise UserError(f"--sets names no set, but must name at least one, as {','.join(SETS)} does.")
    for _, notes in packs.values():
        for note in notes:
            report(note)
    model, preprocessing = load_embedder(target, own_backbone(target))
    model.to(pick_device("auto"))
    distance, flip, metrics = distance or config.distance, flip and not of_vectors, {}
    network = FlipSum(model) if flip else model
    for name, (pack, _) in packs.items():
        images = pack.images()
        check_made_by(target, model, images, report)
        embeddings = embed_images(
            network, images, preprocessing, batch_size=config.batch_size, workers=workers, description=name
        )
        try:
            metrics[name] = verify_pairs(results_of(embeddings, images, distance), pack)
        except ValueError as error:
            raise UserError(f"{name} cannot be evaluated: {error}") from error
    stopped = RunDirectory.of_model(target).stopped
    verification = Verification(named, str(place), distance, flip, metrics, stopped)
    if out is None and is_run(target):
        out = target / "verification.json"
    if out is not None:
        verification.write(out)
    return verification


def verify_pairs(results: "RetrievalResults", pairs: "FacePairs") -> "VerificationMetrics":
    """Verify pairs by the distances of their embeddings, in their folds."""
    from proxemic.metrics import pair_distances, verification_metrics

    x = results.embeddings
    distances = pair_distances(x[pairs.first], x[pairs.second], distance=results.distance)
    return verification_metrics(distances, pairs.same, folds=pairs.folds, far=(_FAR,))


def verification_against_paper(title: str, recipe: Mapping[str, Any], accuracies: Mapping[str, float]) -> str:
    """Write Markdown with the accuracies of a run by set, next to the paper's Table V."""
    percents = {name.replace("_", "-"): f"{100 * value:.2f}" for name, value in accuracies.items()}

    def ours(_: str, row: PublishedRow, figure: PublishedFigure) -> tuple[str, str]:
        return f"{figure.dataset} {figure.metric}", percents.get(figure.dataset, MISSING)

    introduction = "In percent, over ten folds. Ours: one run, – if not measured; theirs as printed."
    return page(introduction, {title: recipe}, "verify", ours, lambda _: 1)


def _place(data: Path | None, source: "ImageSource | None", table: Path | None, of_vectors: bool) -> Path:
    """Find the folder of the sets, or of the images of a table of pairs, or the file of vectors."""
    from proxemic.data import FaceFolders, OwnVectors, RecordFaces

    if of_vectors:
        what, place = "file of the vectors that the pairs name", source.root if isinstance(source, OwnVectors) else None
    elif table is None:
        what = "folder of the sets, which holds lfw.bin, cfp_fp.bin and so on"
        place = source.root if isinstance(source, RecordFaces | FaceFolders) else None
    else:
        what, root = "folder of the images that the pairs name", getattr(source, "root", None)
        place = root if root is not None and Path(root).is_dir() else table.parent
    place = data or place
    if place is None:
        raise UserError(f"--data is missing: give the {what}.")
    if not of_vectors and not Path(place).is_dir():
        raise UserError(f"{place} is not a folder: give the {what}, with --data.")
    return Path(place)


def _summary(metrics: "VerificationMetrics") -> dict[str, Any]:
    accuracy, is_measured = metrics.accuracy, (metrics.pairs - metrics.same) * _FAR >= 1
    return {
        "pairs": metrics.pairs,
        "same": metrics.same,
        "accuracy": accuracy.mean,
        "std": accuracy.std,
        "accuracies": accuracy.accuracies,
        "thresholds": accuracy.thresholds,
        "auc": metrics.auc,
        "eer": metrics.eer,
        _TAR: metrics.tar_at_far[_FAR].tar if is_measured else math.nan,
    }
