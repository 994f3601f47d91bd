"""What is known of the rows of embeddings: classes, names, queries and gallery."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from jaxtyping import Bool, Int64
from torch import Tensor

from proxemic.data.row_groups import RowGroups, number_names, query_flags
from proxemic.data.tables import read_notes


@dataclass(frozen=True, eq=False)
class RowLabels:
    """What is known of the rows of embeddings; None is nothing.

    Args:
        labels: Class of each row, from 0.
        class_names: Name of each class.
        paths: Name of each row, its image's path as a rule.
        is_query: Rows that are queries; where None, every row is both a query and in the gallery.
        is_gallery: Rows that are in the gallery; likewise.
        sequences: The burst or video that each row is of: those of one are no hits of each other.
        categories: The group of classes that each row's class belongs to.

    Raises:
        ValueError: If the parts do not fit together.
    """

    labels: Int64[Tensor, " rows"] | None = None
    class_names: tuple[str, ...] | None = None
    paths: tuple[str, ...] | None = None
    is_query: Bool[Tensor, " rows"] | None = None
    is_gallery: Bool[Tensor, " rows"] | None = None
    sequences: RowGroups | None = None
    categories: RowGroups | None = None

    def __post_init__(self) -> None:
        if (self.is_query is None) != (self.is_gallery is None):
            raise ValueError("is_query and is_gallery must be given together.")
        if (self.labels is None) != (self.class_names is None):
            raise ValueError("labels and class_names must be given together.")
        if len(counts := self._counts()) > 1:
            raise ValueError(
                f"labels, paths, is_query, is_gallery, sequences and categories have {sorted(counts)} entries, but "
                "need one per row each."
            )
        if self.labels is not None and self.class_names is not None and len(self.labels):
            low, high = (int(value) for value in self.labels.aminmax())
            if low < 0 or high >= len(self.class_names):
                raise ValueError(
                    f"labels are {low} to {high}, but class_names has {len(self.class_names)} names, from 0."
                )

    @property
    def count(self) -> int | None:
        """Number of rows, or None where nothing is known of them."""
        return next(iter(self._counts()), None)

    def _counts(self) -> set[int]:
        return {len(part) for name, part in vars(self).items() if name != "class_names" and part is not None}

    def take(self, order: Int64[Tensor, " taken"]) -> "RowLabels":
        """Keep the rows at these places, in their order; the numbers of the classes stay."""
        parts: dict[str, Any] = {
            name: part.take(order) for name, part in vars(self).items() if isinstance(part, Tensor | RowGroups)
        }
        if self.paths is not None:
            parts["paths"] = tuple(self.paths[place] for place in order.tolist())
        return replace(self, **parts)

    def override(self, other: "RowLabels") -> "RowLabels":
        """Put what is known here in the place of what `other` says of the same rows."""
        known = {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}
        return replace(other, **known)


def number_labels(names: Sequence[str]) -> RowLabels:
    """Number the class names given for each row in the sorted order of their text."""
    return RowLabels(*number_names(names))


def read_row_table(path: Path, needed: Sequence[str] = ()) -> RowLabels:
    """Read the columns of a table that say something about rows of embeddings."""
    columns = read_notes(path, needed)
    flags = [*zip(columns.get("is_query", ()), columns.get("is_gallery", ()), strict=True)]
    is_query, is_gallery = query_flags(flags, [f"{path}, row {number + 1}" for number in range(len(flags))])
    return replace(
        number_labels(columns["label"]) if "label" in columns else RowLabels(),
        paths=tuple(columns["path"]) if "path" in columns else None,
        is_query=is_query,
        is_gallery=is_gallery,
        sequences=RowGroups.from_names(columns.get("sequence", ())),
        categories=RowGroups.from_names(columns.get("category", ())),
    )
