"""The user's own vectors, of any modality, with their labels."""

from dataclasses import dataclass, replace
from pathlib import Path

from proxemic.data.embeddings import open_rows
from proxemic.data.formats.tables import ROW_COLUMNS, unused_note
from proxemic.data.images import require_root
from proxemic.data.rows import Rows, check_distinct
from proxemic.data.sources.own_source import OwnSource


@dataclass(frozen=True)
class OwnVectors(OwnSource):
    r"""Vectors from another model, of images, texts, sounds or anything else, one per row of a file.

    A Parquet file has vectors in the column `embedding` (lists of one length), next to `label` and optionally other
    columns of image tables: `split`, `path`, `is_query`, `is_gallery`, `sequence`, `category` and `subclass`. A `.npy`
    file has only the vectors. `labels` names a table with the same columns, in the order of the vectors. Only the
    vectors of a batch are read, so the file may be larger than the memory; see docs/vectors.md.

    Classes are held out, and given splits used, as by `OwnImages`.

    Args:
        root: The file of vectors: .parquet or .npy.
        test_fraction: As in `OwnImages`.
        validation_fraction: Fraction of the remaining classes held out for validation, 0 to below 1.
        hold_out: Classes for an open set, images (here vectors) of each class for a closed one.
        split_seed: Seed of the random split.
        labels: A table (CSV or Parquet) of labels, which takes precedence over those in ``root``.

    Raises:
        ValueError: If a fraction is out of range, or (on load) a file cannot be read, the two do not fit together, or
            the vectors cannot be split.

    >>> import tempfile
    >>> import numpy as np
    >>> root = Path(tempfile.mkdtemp())
    >>> np.save(root / "vectors.npy", np.random.default_rng(0).normal(size=(8, 3)))
    >>> _ = (root / "labels.csv").write_text("label\na\na\nb\nb\nc\nc\nd\nd\n")
    >>> half = {"test_fraction": 0.5, "validation_fraction": 0.0}
    >>> splits = OwnVectors(root / "vectors.npy", labels=root / "labels.csv", **half).load()
    >>> len(splits.train), splits.train.pixels.dim, splits.train.num_classes, splits.test.num_classes
    (4, 3, 2, 2)
    """

    labels: Path | None = None

    def read_rows(self) -> Rows:
        root = require_root(self.root, "a file of vectors, .parquet or .npy")
        rows = open_rows(root, self.labels, known=ROW_COLUMNS)
        if not rows.has("label"):
            raise ValueError(
                f"{self.root} has no labels: give a table with the column label, in the order of the vectors "
                "(--data.labels FILE), or for --query and --gallery with --labels and --gallery-labels."
            )
        rows.require("label")
        check_distinct(rows.names, self.labels or root)
        return replace(rows, notes=unused_note(self.labels or root, rows))
