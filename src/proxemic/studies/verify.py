"""Evaluate a model on sets of pairs: LFW, CFP-FP, AgeDB-30, CALFW and CPLFW of faces, or pairs of the user's own."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from proxemic.errors import UserError
from proxemic.files import readable, write_text
from proxemic.published import PublishedFigure
from proxemic.studies.beside_paper import PaperRow, page, tables_beside
from proxemic.studies.targets import check_outputs, check_target, is_run
from proxemic.tables import MISSING, Format, Table, format_of, percent, without_nan

if TYPE_CHECKING:
    from proxemic.data import ImageSource
    from proxemic.metrics import VerificationMetrics
    from proxemic.training import EvaluationConfig

SETS = ("lfw", "cfp_fp", "agedb_30", "calfw", "cplfw")
"""The sets that a model is evaluated on unless others are asked for."""

_FAR = 1e-3
_TAR = f"tar@far={_FAR:g}"
_MEAN = "mean"


@dataclass(frozen=True)
class Verification:
    """The metrics of a model on sets of pairs.

    Args:
        model: The model, as the user named it.
        data: The folder of the sets or of the images, or the file of vectors.
        distance: The distance between embeddings.
        flip: Whether each embedding is the sum of those of a picture and its mirror image.
        sets: The metrics by set.
        stopped: Where the run of the model stopped, if it is unfinished.
    """

    model: str
    data: str
    distance: str
    flip: bool
    sets: Mapping[str, "VerificationMetrics"]
    stopped: str | None = None

    def write(self, path: Path) -> None:
        """Write to a file in the format of its name: ``.json``, ``.csv`` or ``.md``."""
        write_text(path, self.text(format_of(path)) + "\n")

    def text(self, form: Format = "table") -> str:
        """Return the metrics as text."""
        if form == "json":
            facts: dict[str, Any] = {"model": self.model, "data": self.data}
            facts |= {"distance": self.distance, "flip": self.flip}
            facts |= {"unfinished": self.stopped} if self.stopped else {}
            sets = {name: _summary(each) for name, each in self.sets.items()}
            return json.dumps(without_nan(facts | {"sets": sets}), indent=2)
        rows = self.rows()
        if form == "csv":
            return Table.of_records(rows).text("csv")
        flipped = ", each picture with its mirror image" if self.flip else ""
        title = f"Verification by {self.distance} distance{flipped}; in percent, thresholds as they are"
        header = ["set", "pairs", "accuracy ± std", "threshold", "AUC", f"TAR@FAR={_FAR:g}"]
        few = min(_different(metrics) for metrics in self.sets.values())
        notes = [
            f"A FAR of {_FAR:g} takes {math.ceil(1 / _FAR):,} different pairs to be measured, but there are {few:,}."
        ]
        return Table(header, [_cells(row) for row in rows], title, notes if few * _FAR < 1 else []).text(form)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per set and, for several sets, one of their means; a TAR that cannot be measured is NaN."""
        columns = ("pairs", "accuracy", "std", "threshold", "auc", _TAR)
        rows = []
        for name, metrics in self.sets.items():
            values = _summary(metrics) | {"threshold": fmean(metrics.accuracy.thresholds)}
            rows.append({"set": name} | {key: values[key] for key in columns})
        if len(rows) == 1:
            return rows
        means = {key: fmean(row[key] for row in rows) for key in ("accuracy", "auc", _TAR)}
        return [*rows, dict.fromkeys(rows[0]) | means | {"set": _MEAN}]

    def against_paper(self) -> str:
        """Markdown: the accuracies of a run beside those of the paper (Table V); other models raise `UserError`."""
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
    """Verify whether pairs show one person, or one class, in each of ten folds by the best threshold of the others.

    Args:
        target: A run directory, or a ``model.safetensors``.
        sets: Names of sets of pairs; see `proxemic.data.VERIFICATION_SETS`. None takes all five.
        pairs: Pairs of your own instead: a ``.csv`` or ``.parquet`` table with the columns ``first``, ``second``,
            ``same`` (true or false) and perhaps ``fold``; without it, they are dealt to ten folds. A model of vectors
            needs it.
        data: The folder with ``NAME.bin`` of each set, or with ``lfw/`` and ``pairs.txt``; None takes that of the run.
            With ``pairs``, the folder that the paths of images are relative to, None being that of the run's data or
            else of the table; or the file of vectors, whose rows go by its column ``path`` or else by their numbers
            from 0, None being that of the run.
        distance: The distance between embeddings; None takes the run's, or cosine.
        flip: Add the embedding of the mirror image to that of each picture; without meaning for vectors.
        workers: Processes that load images; None takes the run's, or 0.
        out: File to write (``.json``, ``.csv`` or ``.md``); None writes the ``verification.json`` of a run, and nothing
            for a model alone.
        report: Called with notes for the user, such as pairs that a set lacks. None logs them.

    Raises:
        UserError: If an argument is refused, or a file cannot be read or written.
        ValueError: If ``workers`` is out of its range, or a table of pairs cannot be used.
    """
    target, report = Path(target), report or getLogger("proxemic").info
    out, table, data = (None if path is None else Path(path) for path in (out, pairs, data))
    if out is not None:
        format_of(out)
    check_target(target, ("a run directory", "a model.safetensors"))
    if sets is not None and table is not None:
        raise UserError("--sets names published sets, and --pairs is a table of your own: leave out one of them.")

    from proxemic.data import OwnVectors
    from proxemic.data.embeddings import open_rows
    from proxemic.data.faces import read_own_pairs, read_verification_set
    from proxemic.metrics import pair_distances, verification_metrics
    from proxemic.models import takes_vectors
    from proxemic.recipes.reader import own_backbone
    from proxemic.runs.embed import load_embedder, pick_device
    from proxemic.runs.faces import embed_faces
    from proxemic.studies.evaluation import check_made_by
    from proxemic.training import RunDirectory

    of_vectors = takes_vectors(target)
    if of_vectors and table is None:
        raise UserError(
            f"{target} takes vectors, but the sets of pairs are pictures of faces: give --pairs FILE, a table of pairs "
            "of vectors with the columns first, second and same."
        )
    config, source, workers = _settings(target, workers)
    place = _place(data, source, table, of_vectors)
    labels = source.labels if data is None and isinstance(source, OwnVectors) else None
    check_outputs([out], [target, place, table, labels])
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
    for name, (each, _) in packs.items():
        images = each.images()
        check_made_by(target, model, images, report)
        embeddings = embed_faces(
            model,
            images,
            preprocessing,
            flip=flip,
            batch_size=config.batch_size,
            workers=workers,
            description=name,
        )
        try:
            distances = pair_distances(embeddings[each.first], embeddings[each.second], distance=distance)
            metrics[name] = verification_metrics(distances, each.same, folds=each.folds, far=(_FAR,))
        except ValueError as error:
            raise UserError(f"{name} cannot be evaluated: {error}") from error
    stopped = RunDirectory.of_model(target).stopped
    verification = Verification(str(target), str(place), distance, flip, metrics, stopped)
    if out is None and is_run(target):
        out = target / "verification.json"
    if out is not None:
        verification.write(out)
    return verification


def verification_against_paper(title: str, recipe: Mapping[str, Any], accuracies: Mapping[str, float]) -> str:
    """Markdown: the accuracies of one run by set beside those that its recipe stands for (Table V)."""
    ours = {name.replace("_", "-"): f"{100 * value:.2f}" for name, value in accuracies.items()}

    def parts(title: str, rows: Sequence[PaperRow]) -> Iterator[str]:
        def named(row: PaperRow, figure: PublishedFigure) -> tuple[str, str]:
            return f"{figure.dataset} {figure.metric}", ours.get(figure.dataset, MISSING)

        return tables_beside(rows, named, lambda _: (recipe, 1))

    introduction = "In percent, over ten folds. Ours of one run, – is not measured; theirs as printed."
    return page([introduction], {title: recipe}, parts, "verify")


def _settings(target: Path, workers: int | None) -> "tuple[EvaluationConfig, ImageSource | None, int]":
    """How the model is evaluated, the source of its run, and how many processes load images."""
    from proxemic.recipes.reader import read_evaluation
    from proxemic.training import EvaluationConfig, RunDirectory
    from proxemic.training.config import BatchConfig

    config, batches, source = EvaluationConfig(), BatchConfig(), None
    if is_run(target):
        recipe = read_evaluation(RunDirectory(target).recipe)
        config, batches = recipe.evaluation, recipe.batches
        source = RunDirectory(target).locate(recipe.data)
    if workers is not None:
        batches = BatchConfig(workers=workers)  # which checks it
    return config, source, batches.workers


def _place(data: Path | None, source: "ImageSource | None", table: Path | None, of_vectors: bool) -> Path:
    """Find the folder of the sets, or of the images of a table of pairs, or the file of vectors."""
    from proxemic.data import FaceFolders, OwnVectors, RecordFaces

    if of_vectors:
        place = source.root if data is None and isinstance(source, OwnVectors) else data
        if place is None:
            raise UserError("--data is missing: give the file of the vectors that the pairs name.")
        return Path(place)
    if table is None:
        folder = source.root if isinstance(source, RecordFaces | FaceFolders) else None
        what = "the sets, which holds lfw.bin, cfp_fp.bin and so on"
    else:
        root = getattr(source, "root", None)
        folder = Path(root) if root is not None and Path(root).is_dir() else table.parent
        what = "the images that the pairs name"
    folder = folder if data is None else data
    if folder is None:
        raise UserError(f"--data is missing: give the folder of {what}.")
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give that of {what}, with --data.")
    return folder


def _summary(metrics: "VerificationMetrics") -> dict[str, Any]:
    accuracy = metrics.accuracy
    return {
        "pairs": metrics.pairs,
        "same": metrics.same,
        "accuracy": accuracy.mean,
        "std": accuracy.std,
        "accuracies": accuracy.accuracies,
        "thresholds": accuracy.thresholds,
        "auc": metrics.auc,
        "eer": metrics.eer,
        _TAR: metrics.tar_at_far[_FAR].tar if _different(metrics) * _FAR >= 1 else math.nan,
    }


def _different(metrics: "VerificationMetrics") -> int:
    return metrics.pairs - metrics.same


def _cells(row: Mapping[str, Any]) -> list[str]:
    from proxemic.data.faces import VERIFICATION_SETS

    name, pairs, accuracy, std, threshold, auc, tar = row.values()
    return [
        VERIFICATION_SETS[name].title if name in VERIFICATION_SETS else readable(name),
        "" if pairs is None else f"{pairs:,}",
        f"{100 * accuracy:.2f}" + ("" if std is None else f" ± {100 * std:.2f}"),
        "" if threshold is None else f"{threshold:.4f}",
        percent(auc),
        percent(tar),
    ]
