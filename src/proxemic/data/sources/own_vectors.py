"""The user's own vectors, of any modality, with their labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.data.columns import FLAGS, Column, read_columns
from proxemic.data.embeddings.files import MADE_BY, check_embedding_name, read_label_array
from proxemic.data.embeddings.formats import read_metadata, read_safetensors_rows
from proxemic.data.images import ImageSet, named_attributes
from proxemic.data.rows import RowGroups, check_distinct
from proxemic.data.sources.own_source import SPLIT_NAMES, OwnRows, OwnSource, check_classes
from proxemic.data.tables import SPLITS
from proxemic.data.vectors.files import open_vectors
from proxemic.data.vectors.stores import Vectors

_SPLITS = {text: SPLIT_NAMES.index(name) for text, name in SPLITS.items()}


@dataclass(frozen=True)
class OwnVectors(OwnSource):
    """Vectors that a model has made before, of images, texts, sounds or anything else, one per row of a file.

    A Parquet file has them in the column `embedding` (lists of one length), beside `label` and perhaps those of tables
    of images: `split`, `path`, `is_query`, `is_gallery`, `sequence`, `category` and `subclass`. A `.safetensors` file
    has the only tensor of two dimensions, or the one called `embeddings`, and may have `labels`; a `.npy` file has the
    vectors alone. `labels` names a table with the same columns, or a `.npy` file of labels, in the order of vectors.
    Only the rows of a batch are read, so that a file may be larger than the memory; docs/vectors.md says more.

    Classes are held out, and given splits used, as by `OwnImages`.

    Args:
        root: The file of vectors: .parquet, .npy or .safetensors.
        test_fraction: As of `OwnImages`, likewise the following.
        validation_fraction: Part of the remaining classes held out for validation, 0 to below 1.
        hold_out: Classes for an open set, images (here vectors) of each class for a closed one.
        split_seed: Seed of the random split.
        labels: A .csv, .parquet or .npy file of labels, which takes precedence over those in ``root``.

    Raises:
        ValueError: If a fraction is out of range, or (on load) a file cannot be read, the two do not fit together, or
            the vectors cannot be split.

    >>> import tempfile
    >>> root = Path(tempfile.mkdtemp())
    >>> np.save(root / "vectors.npy", np.random.default_rng(0).normal(size=(8, 3)))
    >>> np.save(root / "labels.npy", np.arange(8) // 2)
    >>> splits = OwnVectors(root / "vectors.npy", labels=root / "labels.npy", validation_fraction=0.0).load()
    >>> len(splits.train), splits.train.pixels.dim, splits.train.num_classes, splits.test.num_classes
    (4, 3, 2, 2)
    """

    labels: Path | None = None

    def read(self) -> OwnRows:
        rows = self.read_rows()
        return replace(rows, notes=(*rows.notes, *check_classes(self._root(), rows.images)))

    def read_rows(self) -> OwnRows:
        """Read all rows, of which nothing need be told apart or found."""
        root = self._root()
        reader = open_vectors(root)
        rows = self._rows(root)
        if len(rows.labels) != len(reader):
            raise ValueError(
                f"{self.labels or root} has {len(rows.labels):,} labels, but {root} has {len(reader):,} vectors."
            )
        if rows.names is not None:
            check_distinct(rows.names, self.labels or root)
        vectors = Vectors(reader, names=rows.names, made_by=read_metadata(root).get(MADE_BY))
        images = ImageSet(
            vectors,
            rows.labels,
            rows.class_names,
            sequences=rows.sequences,
            categories=rows.categories,
            attributes=named_attributes(subclass=rows.subclasses),
        )
        notes = (f"{self.labels or root} has columns that are not used: {', '.join(rows.unused)}.",) * bool(rows.unused)
        return OwnRows(images, rows.given, rows.flags_of, notes)

    def class_names(self) -> Sequence[str]:
        return self._rows(self._root()).class_names

    def gives_splits(self) -> bool:
        return self.root is not None and self._rows(Path(self.root)).given is not None

    def _root(self) -> Path:
        if self.root is None:
            raise ValueError(
                "data.root is missing: give a file of vectors, .parquet, .npy or .safetensors (--data.root FILE)."
            )
        return Path(self.root)

    def _rows(self, root: Path) -> "_Rows":
        columns, unused = _columns(root, self.labels)
        if "label" not in columns:
            raise ValueError(
                f"{root} has no labels: give a table with the column label, or a .npy file of labels, in the order "
                "of the vectors (--data.labels FILE), or for --query and --gallery with --labels and --gallery-labels."
            )
        return _Rows.of(Path(self.labels or root), columns, unused)


@dataclass(frozen=True, eq=False)
class _Rows:
    """What is known of the rows of a file of vectors."""

    labels: Int64[Tensor, " rows"]
    class_names: tuple[str, ...]
    given: Int64[Tensor, " rows"] | None
    flags: tuple[Int64[Tensor, " rows"], Int64[Tensor, " rows"]] | None
    sequences: RowGroups | None
    categories: RowGroups | None
    subclasses: RowGroups | None
    names: np.ndarray | None
    unused: tuple[str, ...]
    file: Path

    @classmethod
    def of(cls, file: Path, columns: Mapping[str, Column], unused: tuple[str, ...]) -> "_Rows":
        if len({len(column.numbers) for column in columns.values()}) > 1:
            raise ValueError(f"{file} has as many labels as vectors, but not of everything else: write it anew.")
        numbers = columns["label"].all_numbers("label", file)
        present, labels = numbers.unique(return_inverse=True)
        split, is_query, is_gallery, sequence, category, subclass = (
            columns.get(name) for name in ("split", "is_query", "is_gallery", "sequence", "category", "subclass")
        )
        if split is not None:
            split.all_numbers("split", file)
        flags = None
        if is_query is not None and is_gallery is not None and (is_query.texts or is_gallery.texts):
            flags = (
                is_query.meanings("is_query", FLAGS, "true or false", file),
                is_gallery.meanings("is_gallery", FLAGS, "true or false", file),
            )
        return cls(
            labels,
            tuple(columns["label"].texts[number] for number in present.tolist()),
            None if split is None else split.meanings("split", _SPLITS, "train, validation (or val) or test", file),
            flags,
            sequence and sequence.groups(),
            category and category.groups(),
            subclass and subclass.groups(),
            columns["path"].strings() if "path" in columns else None,
            unused,
            file,
        )

    def flags_of(
        self, chosen: Int64[Tensor, " chosen"]
    ) -> tuple[Bool[Tensor, " chosen"] | None, Bool[Tensor, " chosen"] | None]:
        """Is_query and is_gallery of some rows, which all of them must have, or none."""
        if self.flags is None:
            return None, None
        is_query, is_gallery = (flag[chosen] for flag in self.flags)
        lacking = (is_query < 0) | (is_gallery < 0)
        if ((is_query < 0) & (is_gallery < 0)).all():
            return None, None
        if lacking.any():
            row = int(chosen[int(lacking.int().argmax())]) + 1
            raise ValueError(f"{self.file}, row {row:,}: is_query or is_gallery is empty, but other rows have both.")
        return is_query.bool(), is_gallery.bool()


def open_named_vectors(root: Path, labels: Path | None = None) -> Vectors:
    """Open a file of vectors, which need no labels, by the names that its column `path`, or that of `labels`, has."""
    reader = open_vectors(root)
    path = _columns(root, labels)[0].get("path")
    if path is not None and len(path.numbers) != len(reader):
        raise ValueError(f"{labels or root} has {len(path.numbers):,} paths, but {root} has {len(reader):,} vectors.")
    return Vectors(reader, names=path and path.strings(), made_by=read_metadata(root).get(MADE_BY))


def _columns(root: Path, labels: Path | None) -> tuple[dict[str, Column], tuple[str, ...]]:
    """What a file of vectors and one of labels say, and the columns of the last that are not used."""
    own, unused = _own_columns(root)
    if labels is None:
        return own, unused
    given, unused = _given_columns(Path(labels))
    counts = [len(columns["path"].numbers) for columns in (own, given) if "path" in columns]
    if len(counts) == 2 and counts[0] == counts[1] and (own["path"].strings() != given["path"].strings()).any():
        raise ValueError(f"{labels} and {root} name their rows in another order: bring them into one.")
    return own | given, unused


def _own_columns(root: Path) -> tuple[dict[str, Column], tuple[str, ...]]:
    """What a file of vectors says of its rows, and its columns that are not used."""
    suffix = check_embedding_name(root)
    if not root.is_file():
        raise ValueError(f"{root} {'is a folder' if root.is_dir() else 'does not exist'}: give a file of vectors.")
    if suffix == ".parquet":
        columns, others = read_columns(root)
        return columns, tuple(name for name in others if name != "embedding")
    if suffix == ".npy":
        return {}, ()
    rows, columns = read_safetensors_rows(root), {}
    if rows.labels is not None and rows.class_names is not None:
        columns["label"] = Column(rows.labels.numpy(), rows.class_names)
    for name, flag in (("is_query", rows.is_query), ("is_gallery", rows.is_gallery)):
        if flag is not None:
            columns[name] = Column(flag.long().numpy(), ("false", "true"))
    for name, groups in (("sequence", rows.sequences), ("category", rows.categories)):
        if groups is not None:
            columns[name] = Column(groups.numbers.numpy(), groups.names)
    if rows.paths is not None:
        columns["path"] = Column(np.arange(len(rows.paths)), rows.paths)
    return columns, ()


def _given_columns(labels: Path) -> tuple[dict[str, Column], tuple[str, ...]]:
    """What a file of labels says, and its columns that are not used."""
    suffix = labels.suffix.lower()
    if suffix in (".csv", ".parquet"):
        columns, others = read_columns(labels, needed=("label",))
        return columns, tuple(name for name in others if name != "embedding")
    if suffix != ".npy":
        raise ValueError(f"{labels} ends in {suffix or 'nothing'}, but labels are read from .csv, .parquet and .npy.")
    if not labels.is_file():
        raise ValueError(f"{labels} {'is a folder' if labels.is_dir() else 'does not exist'}: give a file of labels.")
    return {"label": Column.of_array(read_label_array(labels))}, ()
