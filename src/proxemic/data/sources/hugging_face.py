"""The user's own images or vectors in a local data set of Hugging Face."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from proxemic.data.formats.tables import SPLITS
from proxemic.data.images import require_root
from proxemic.data.pixels import EncodedPixels
from proxemic.data.rows import Rows, join_spellings
from proxemic.data.sources.own_source import OwnSource
from proxemic.data.vectors import UnreadableVectorsError, Vectors
from proxemic.extras import optional_dependency

_ENDINGS = (".arrow", ".parquet")


@dataclass(frozen=True)
class HuggingFaceDataset(OwnSource):
    """A data set of Hugging Face with images or vectors, and labels: a folder on this machine, of any size.

    Rows are read from Arrow files when needed, without a network connection; Parquet files are first converted to Arrow
    in the cache of `datasets`. Images are decoded, as by `read_image`, from bytes in the data set or from local files
    that it names, never from a URL. Two or three splits called train, validation (or val) and test are used
    directly. Otherwise whole classes are held out, as by `OwnImages`.

    Args:
        root: A folder that `save_to_disk` wrote, or one with .arrow or .parquet files whose names begin with the split,
            as `train-00000-of-00004.parquet`, or one such file.
        column: The column of images, or of vectors (lists of floats of one length); None for the only one.
        label: The column of labels: classes, numbers or names. Rows without a label are left out and counted.
        test_fraction: As in `OwnImages`.
        validation_fraction: Fraction of the remaining classes, or rows, held out for validation.
        hold_out: Classes for an open set, images (or vectors) for a closed one.
        split_seed: Seed of the random split.

    Raises:
        ValueError: If a fraction is out of range, or (on load) there is no such data set or column, or it cannot be
            split.
        ImportError: If the extra `datasets` is not installed.

    Source: https://github.com/huggingface/datasets

    >>> HuggingFaceDataset(Path("pets"), label="breed").has_test
    True
    """

    column: str | None = None
    label: str = "label"

    def read_rows(self) -> Rows:
        parts = self._parts()
        tables = [table for _, table in parts]
        content = self._content(tables, self.column or self._only_column(tables[0]))
        columns = {"label": [name for table in tables for name in self._labels(table)]}
        if len(parts) > 1:
            columns["split"] = [split for split, table in parts for _ in range(len(table))]
        kept = [row for row, name in enumerate(columns["label"]) if name is not None]
        if not kept:
            raise ValueError(f"{self.root} has no label in its column {self.label}.")
        missing = len(content) - len(kept)
        notes = (f"Left out: {missing:,} rows without a label.",) if missing else ()
        return join_spellings(replace(Rows.of(content, **columns).take(kept), notes=notes), self.root)

    def _labels(self, table: Any) -> list[str | None]:
        if self.label not in table.features:
            raise ValueError(
                f"{self.root} has no column {self.label!r} of labels: name one of {', '.join(table.features)}, as "
                "--data.label NAME."
            )
        feature = table.features[self.label]
        if not str(getattr(feature, "dtype", None)).startswith(("string", "large_string", "int", "uint")):
            raise ValueError(
                f"{self.root}: {self.label} is {feature}, but labels must be classes, text or whole numbers: name "
                "their column, as --data.label NAME."
            )
        column = table.select_columns([self.label]).with_format("arrow")[:].column(0)
        encoded = column.combine_chunks().dictionary_encode()
        words = [_as_text(value, feature) for value in encoded.dictionary.to_pylist()]
        return [None if place is None else words[place] for place in encoded.indices.to_pylist()]

    def _parts(self) -> list[tuple[str, Any]]:
        """Return the parts of the data set by name; a single part is not a split, whatever its name."""
        root = require_root(self.root, "a folder of a data set of Hugging Face")
        if not root.exists():
            raise ValueError(
                f"{root} does not exist: give a folder on this machine, which data sets on the hub are brought into by "
                "datasets.load_dataset(NAME).save_to_disk(FOLDER)."
            )
        with optional_dependency("datasets"):
            import datasets
        files = {} if (root / "state.json").is_file() or (root / "dataset_dict.json").is_file() else _files(root)
        try:
            if files:
                found: dict[str, Any] = {split: _from_files(paths) for split, paths in files.items()}
            else:
                loaded: Any = datasets.load_from_disk(str(root))
                found = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
        except Exception as error:  # datasets raises any error of its readers
            message = " ".join(str(error).split())[:200].rstrip(".")
            raise ValueError(f"{root} cannot be read as a data set of Hugging Face: {message}.") from error
        if len(found) > 1 and (unknown := [name for name in found if name.lower() not in SPLITS]):
            raise ValueError(
                f"{root} has the splits {', '.join(found)}, but {unknown[0]} is none of train, validation (or val) and "
                "test: save it with those, or give one split alone."
            )
        return [(name.lower(), part) for name, part in found.items()]

    def _only_column(self, table: Any) -> str:
        found = [name for name, feature in table.features.items() if _is_image(feature) or _is_vector(feature)]
        if len(found) != 1:
            which = f"the columns {', '.join(found)}" if found else f"none among {', '.join(table.features)}"
            raise ValueError(
                f"{self.root} needs a column of images or vectors, but has {which}: name one, as --data.column NAME."
            )
        return found[0]

    def _content(self, tables: Sequence[Any], column: str) -> "ArrowPixels | Vectors":
        import datasets

        for table in tables:
            feature = table.features.get(column)
            if not (_is_image(feature) or _is_vector(feature)) or type(feature) is not type(tables[0].features[column]):
                came = "no such column" if feature is None else f"{feature}"
                raise ValueError(
                    f"{self.root}: {column} is {came} in one of its splits, but must be images, or lists of floats, in "
                    "all."
                )
        selected = [table.select_columns([column]) for table in tables]
        if _is_vector(tables[0].features[column]):
            whole = datasets.concatenate_datasets(selected)
            return Vectors(ArrowVectors(whole.with_format("arrow"), column, str(self.root)))
        encoded = [table.cast_column(column, datasets.Image(decode=False)) for table in selected]
        whole = datasets.concatenate_datasets(encoded)
        return ArrowPixels(whole, column, str(self.root), np.arange(len(whole)))


def _files(root: Path) -> dict[str, list[Path]]:
    """List the Arrow and Parquet files of each split."""
    files = [root] if root.is_file() else sorted(path for path in root.glob("[!.]*") if path.suffix in _ENDINGS)
    if not files or {path.suffix for path in files} - {*_ENDINGS}:
        raise ValueError(
            f"{root} has no .arrow or .parquet file, and is not a folder of save_to_disk: give one of these."
        )
    by_split: dict[str, list[Path]] = {}
    for path in files:
        by_split.setdefault(path.stem.partition("-")[0].lower(), []).append(path)
    return by_split if by_split.keys() <= SPLITS.keys() else {"train": files}


def _from_files(paths: Sequence[Path]) -> Any:
    import datasets

    readers = {".arrow": datasets.Dataset.from_file, ".parquet": datasets.Dataset.from_parquet}
    paths = sorted(paths, key=lambda path: _ENDINGS.index(path.suffix))
    return datasets.concatenate_datasets([readers[path.suffix](str(path)) for path in paths])


def _is_image(feature: object) -> bool:
    import datasets

    return isinstance(feature, datasets.Image)


def _is_vector(feature: Any) -> bool:
    import datasets

    lists = isinstance(feature, datasets.List | datasets.LargeList)
    return lists and isinstance(feature.feature, datasets.Value) and feature.feature.dtype.startswith("float")


def _as_text(value: object, feature: Any) -> str | None:
    import datasets

    if isinstance(feature, datasets.ClassLabel) and isinstance(value, int):
        return None if value < 0 else str(feature.int2str(value))  # by their convention, -1 is none
    return str(value).strip() or None


@dataclass(frozen=True, eq=False)
class ArrowPixels(EncodedPixels):
    """Images in a column of a data set, decoded on access."""

    per_image = ("rows",)
    table: Any
    column: str
    name: str
    rows: Int64[np.ndarray, " images"]

    def encoded(self, index: int) -> bytes | Path:
        value = self.table[int(self.rows[index])][self.column] or {}
        content, path = value.get("bytes"), value.get("path")
        if content is not None:
            return content
        if path is None or not Path(path).is_file():
            raise ValueError(f"it has no bytes, and {path or 'no path'} is not a file on this machine")
        return Path(path)

    def place(self, index: int) -> str:
        return f"{self.name}, row {self.rows[index]},"


class ArrowVectors:
    """Vectors in a column of a data set; only the rows of a batch are read."""

    def __init__(self, table: Any, column: str, name: str) -> None:
        self.table, self.column, self.name = table, column, name
        first = table[:1].column(column).combine_chunks()
        self.dim = len(first[0]) if len(first) and first[0].is_valid else 0

    def __len__(self) -> int:
        return len(self.table)

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        rows = self.table[places.tolist()].column(self.column).combine_chunks()
        numbers = rows.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
        if rows.null_count or not all(len(row) == self.dim for row in rows):
            raise UnreadableVectorsError(
                f"{self.name}: {self.column} has rows with other dimensions than the first, which has {self.dim}: "
                "leave them out."
            )
        return torch.from_numpy(numbers.reshape(len(places), self.dim))
