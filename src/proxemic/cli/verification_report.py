"""What ``proxemic verify`` found, as a table, JSON, CSV or Markdown."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from proxemic.cli.evaluate.checks import FORMATS
from proxemic.cli.evaluate.report import csv_text, markdown_table
from proxemic.cli.show import format_table
from proxemic.data import Preprocessing
from proxemic.data.faces import FacePairs
from proxemic.data.faces.verification_sets import VERIFICATION_SETS
from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.metrics import VerificationMetrics, pair_distances, verification_metrics
from proxemic.metrics.exact import Distance
from proxemic.models import EmbeddingModel
from proxemic.training.face_embedding import embed_faces

__all__ = ["Verification"]

_FAR = 1e-3
_MEAN = "mean"


class Verification:
    """A model, judged on sets of pairs.

    Args:
        model: What the user called it.
        data: The folder of the sets.
        distance: Between embeddings.
        flip: Each embedding is of a picture and its mirror image.
    """

    def __init__(self, model: str, data: str, distance: Distance, flip: bool) -> None:
        self.model, self.data, self.flip = model, data, flip
        self.distance: Distance = distance
        self.sets: dict[str, VerificationMetrics] = {}

    def add(
        self,
        name: str,
        pairs: FacePairs,
        model: EmbeddingModel,
        preprocessing: Preprocessing,
        batch_size: int,
        workers: int = 0,
    ) -> None:
        """Embed the pictures of a set and judge its pairs.

        Raises:
            UserError: If the pairs cannot be judged, as all are of one kind.
        """
        embeddings = embed_faces(
            model,
            pairs.images(),
            preprocessing,
            flip=self.flip,
            batch_size=batch_size,
            workers=workers,
            description=name,
        )
        try:
            distances = pair_distances(embeddings[pairs.first], embeddings[pairs.second], distance=self.distance)
            self.sets[name] = verification_metrics(distances, pairs.same, folds=pairs.folds, far=(_FAR,))
        except ValueError as error:
            raise UserError(f"{name} cannot be judged: {error}") from error

    def write(self, path: Path) -> None:
        """Write to a file in the format of its name."""
        write_text(path, self.text(FORMATS[path.suffix.lower()]) + "\n")

    def text(self, form: str) -> str:
        """The whole of it: as json, csv, markdown or table."""
        if form == "json":
            facts = {"model": self.model, "data": self.data, "distance": self.distance, "flip": self.flip}
            return json.dumps(facts | {"sets": {name: _summary(each) for name, each in self.sets.items()}}, indent=2)
        rows = self._rows()
        if form == "csv":
            return csv_text(rows)
        flipped = "with its mirror image" if self.flip else "alone"
        title = f"Verification by {self.distance} distance, each picture {flipped}; in percent, thresholds as they are"
        header = ["set", "pairs", "accuracy ± std", "threshold", "AUC", f"TAR@FAR={_FAR:g}"]
        cells = [_cells(row) for row in rows]
        if form == "markdown":
            return "\n".join([title, "", markdown_table(header, cells)])
        return f"{title}\n{format_table(header, cells)}"

    def _rows(self) -> list[dict[str, Any]]:
        """A row a set, and for several that of their means."""
        rows = [
            {
                "set": name,
                "pairs": found.pairs,
                "accuracy": found.accuracy.mean,
                "std": found.accuracy.std,
                "threshold": fmean(found.accuracy.thresholds),
                "auc": found.auc,
                f"tar@far={_FAR:g}": found.tar_at_far[_FAR].tar,
            }
            for name, found in self.sets.items()
        ]
        if len(rows) == 1:
            return rows
        shared = ("accuracy", "auc", f"tar@far={_FAR:g}")
        means = {key: fmean(row[key] for row in rows) if key in shared else None for key in rows[0]}
        return [*rows, means | {"set": _MEAN}]


def _summary(found: VerificationMetrics) -> dict[str, Any]:
    accuracy = found.accuracy
    return {
        "pairs": found.pairs,
        "same": found.same,
        "accuracy": accuracy.mean,
        "std": accuracy.std,
        "accuracies": accuracy.accuracies,
        "thresholds": accuracy.thresholds,
        "auc": found.auc,
        "eer": found.eer,
        f"tar@far={_FAR:g}": found.tar_at_far[_FAR].tar,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    name, pairs, accuracy, std, threshold, auc, tar = row.values()
    title = name if name == _MEAN else VERIFICATION_SETS[name].title
    spread = "" if std is None else f" ± {100 * std:.2f}"
    return [
        title,
        "" if pairs is None else f"{pairs:,}",
        f"{100 * accuracy:.2f}{spread}",
        "" if threshold is None else f"{threshold:.4f}",
        f"{100 * auc:.2f}",
        f"{100 * tar:.2f}",
    ]
