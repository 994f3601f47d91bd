"""The user's own images or vectors in a data set of Hugging Face, on this machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from jaxtyping import Float32, Int64
from PIL import Image
from torch import Tensor

from proxemic.data.pixels import Pixels
from proxemic.data.pixels.reading import UnreadableImageError, read_image
from proxemic.data.rows import Rows
from proxemic.data.sources.own_source import OwnSource, check_classes
from proxemic.data.tables import SPLITS
from proxemic.data.vectors import UnreadableVectorsError, Vectors
from proxemic.extras import optional_dependency

_ENDINGS = (".arrow", ".parquet")


@dataclass(frozen=True)
class HuggingFaceDataset(OwnSource):
    """A data set of Hugging Face with images or vectors, and labels: a folder on this machine, of any size.

    Rows are read from Arrow files as they are needed, without a network connection; Parquet files are first turned into
    Arrow, once, in the cache of `datasets`. Images are decoded from the bytes in the data set, as `read_image` does, or
    from files on this machine that it names, never from an address. Splits called train, validation (or val) and test,
    two of them or three, are used as they are. Otherwise whole classes are held out, as by `OwnImages`.

    Args:
        root: A folder that `save_to_disk` wrote, or one with .arrow or .parquet files whose names begin with the split,
            as `train-00000-of-00004.parquet`, or one such file.
        column: The column of images, or of vectors (lists of floats of one length); None for the only one.
        label: The column of labels: classes, numbers or names. Rows without a label are left out and counted.
        test_fraction: As of `OwnImages`, likewise the following.
        validation_fraction: Part of the remaining classes, or rows, held out for validation.
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

    def read(self) -> Rows:
        parts = self._parts()
        column = self.column or _only_column(Path(str(self.root)), parts)
        names = [name for _, part in parts for name in self._names(part)]
        if all(name is None for name in names):
            raise ValueError(f"{self.root} has no label in its column {self.label}.")
        kept = np.array([place for place, name in enumerate(names) if name is not None], np.int64)
        columns = {"label": names}
        if len({split for split, _ in parts}) > 1:
            columns["split"] = [split for split, part in parts for _ in range(len(part))]
        rows = Rows.of(_store(Path(str(self.root)), [part for _, part in parts], column), **columns).take(kept)
        notes = check_classes(Path(str(self.root)), rows)
        if missing := len(names) - len(kept):
            notes = (f"Left out: {missing:,} rows without a label.", *notes)
        return replace(rows, notes=notes)

    def _names(self, part: Any) -> list[str | None]:
        """The label of each row, as text."""
        if self.label not in part.features:
            raise ValueError(
                f"{self.root} has no column {self.label!r} of labels: name one of {', '.join(part.features)}, as "
                "--data.label NAME."
            )
        feature = part.features[self.label]
        if not str(getattr(feature, "dtype", None)).startswith(("string", "large_string", "int", "uint")):
            raise ValueError(
                f"{self.root}: {self.label} is {feature}, but labels must be classes, text or whole numbers: name "
                "their column, as --data.label NAME."
            )
        encoded = (
            part.select_columns([self.label]).with_format("arrow")[:].column(0).combine_chunks().dictionary_encode()
        )
        words = [_as_text(value, feature) for value in encoded.dictionary.to_pylist()]
        return [None if place is None else words[place] for place in encoded.indices.to_pylist()]

    def _parts(self) -> list[tuple[str, Any]]:
        """The splits by their names; one alone, whatever it is called, is no split."""
        if self.root is None:
            raise ValueError("data.root is missing: give a folder of a data set of Hugging Face (--data.root PATH).")
        root = Path(self.root)
        if not root.exists():
            raise ValueError(
                f"{root} does not exist: give a folder on this machine, which data sets on the hub are brought into by "
                "datasets.load_dataset(NAME).save_to_disk(FOLDER)."
            )
        with optional_dependency("datasets"):
            import datasets
        try:
            if (root / "dataset_dict.json").is_file():
                found: dict[str, Any] = dict(cast("Any", datasets.load_from_disk(str(root))))
            elif (root / "state.json").is_file():
                found = {"train": datasets.load_from_disk(str(root))}
            else:
                found = _from_files(root)
        except Exception as error:  # datasets raises what its readers raise
            if isinstance(error, ValueError) and str(error).startswith(str(root)):
                raise
            message = " ".join(str(error).split())[:200].rstrip(".")
            raise ValueError(f"{root} cannot be read as a data set of Hugging Face: {message}.") from error
        if len(found) > 1 and (unknown := [name for name in found if name.lower() not in SPLITS]):
            raise ValueError(
                f"{root} has the splits {', '.join(found)}, but {unknown[0]} is none of train, validation (or val) and "
                "test: save it with those, or give one split alone."
            )
        return [(name.lower(), part) for name, part in found.items()]


def _from_files(root: Path) -> dict[str, Any]:
    import datasets

    files = [root] if root.is_file() else sorted(path for path in root.glob("[!.]*") if path.suffix in _ENDINGS)
    if not files or {path.suffix for path in files} - {*_ENDINGS}:
        raise ValueError(f"{root} has no .arrow or .parquet file, and is no folder of save_to_disk: give one of these.")
    by_split: dict[str, list[Path]] = {}
    for path in files:
        by_split.setdefault(path.stem.partition("-")[0].lower(), []).append(path)
    if not by_split.keys() <= SPLITS.keys():
        by_split = {"train": files}
    return {
        split: datasets.concatenate_datasets(
            [
                *(datasets.Dataset.from_file(str(path)) for path in paths if path.suffix == ".arrow"),
                *(datasets.Dataset.from_parquet(str(path)) for path in paths if path.suffix == ".parquet"),
            ]
        )
        for split, paths in by_split.items()
    }


def _only_column(root: Path, parts: Sequence[tuple[str, Any]]) -> str:
    features = parts[0][1].features
    found = [name for name, feature in features.items() if _is_image(feature) or _is_vector(feature)]
    if len(found) != 1:
        which = f"the columns {', '.join(found)}" if found else f"none among {', '.join(features)}"
        raise ValueError(
            f"{root} needs a column of images or vectors, but has {which}: name one, as --data.column NAME."
        )
    return found[0]


def _store(root: Path, parts: Sequence[Any], column: str) -> "ArrowPixels | Vectors":
    import datasets

    for part in parts:
        feature = part.features.get(column)
        if not (_is_image(feature) or _is_vector(feature)) or type(feature) is not type(parts[0].features[column]):
            came = "no such column" if feature is None else f"{feature}"
            raise ValueError(
                f"{root}: {column} is {came} in one of its splits, but must be images, or lists of floats, in all."
            )
    if _is_vector(parts[0].features[column]):
        whole = datasets.concatenate_datasets([part.select_columns([column]) for part in parts])
        return Vectors(ArrowVectors(whole.with_format("arrow"), column, str(root)))
    encoded = [part.select_columns([column]).cast_column(column, datasets.Image(decode=False)) for part in parts]
    return ArrowPixels(datasets.concatenate_datasets(encoded), column, str(root), np.arange(sum(map(len, encoded))))


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


class ArrowPixels(Pixels):
    """Images in a column of a data set, decoded on access.

    Args:
        table: The data set, whose images are not decoded.
        column: The column of images.
        name: What messages call it.
        rows: The row of each image.
    """

    def __init__(self, table: Any, column: str, name: str, rows: Int64[np.ndarray, " images"]) -> None:
        self.table, self.column, self.name, self.rows = table, column, name, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Image.Image:
        return self.load(index)

    def load(self, index: int, side: int | None = None) -> Image.Image:
        row = int(self.rows[index])
        value: Mapping[str, Any] = self.table[row][self.column] or {}
        content, path = value.get("bytes"), value.get("path")
        try:
            if content is not None:
                return read_image(content, side)
            if path is None or not Path(path).is_file():
                raise UnreadableImageError("", f"it has no bytes, and {path or 'no path'} is no file on this machine")
            return read_image(path, side)
        except UnreadableImageError as error:
            raise UnreadableImageError(f"{self.name}, row {row},", error.reason) from error

    def select(self, indices: Sequence[int] | Int64[np.ndarray, " chosen"]) -> "ArrowPixels":
        return ArrowPixels(self.table, self.column, self.name, self.rows[np.asarray(indices, dtype=np.int64)])


class ArrowVectors:
    """Vectors in a column of a data set, of which the rows of a batch are read.

    Args:
        table: The data set, which gives Arrow's tables.
        column: The column of lists.
        name: What messages call it.
    """

    def __init__(self, table: Any, column: str, name: str) -> None:
        self.table, self.column, self.name = table, column, name
        first = table[:1].column(column).combine_chunks()
        self.dim = len(first[0]) if len(first) and first[0].is_valid else 0

    def __len__(self) -> int:
        return len(self.table)

    def read(self, places: Int64[np.ndarray, " batch"]) -> Float32[Tensor, "batch dim"]:
        """The rows at these places, in their order."""
        rows = self.table[places.tolist()].column(self.column).combine_chunks()
        numbers = rows.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
        if rows.null_count or not all(len(row) == self.dim for row in rows):
            raise UnreadableVectorsError(
                f"{self.name}: {self.column} has rows of another length than the first, which has {self.dim} numbers: "
                "leave them out."
            )
        return torch.from_numpy(numbers.reshape(len(places), self.dim))
