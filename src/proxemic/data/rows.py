"""What is known about rows, of images or embeddings: classes, named groups, and which are queries or in the gallery."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor


def number_names(names: Sequence[str | None]) -> tuple[Int64[Tensor, " rows"], tuple[str, ...]]:
    """Number names in the sorted order of their text, None as -1; give the number of each, and the different names."""
    known = tuple(sorted({name for name in names if name is not None}))
    number = {name: index for index, name in enumerate(known)}
    return torch.tensor([-1 if name is None else number[name] for name in names], dtype=torch.int64), known


@dataclass(frozen=True, eq=False)
class RowGroups:
    """Which of some named groups each row is in.

    Args:
        numbers: Number of the group of each row, from 0; -1 for none.
        names: Name of each group; groups without a row may have one.

    Raises:
        ValueError: If a number has no name.

    >>> groups = RowGroups.from_names(["b", None, "a", "b"])
    >>> groups.numbers.tolist(), groups.names
    ([1, -1, 0, 1], ('a', 'b'))
    """

    numbers: Int64[Tensor, " rows"]
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.numbers) and not -1 <= int(self.numbers.min()) <= int(self.numbers.max()) < len(self.names):
            raise ValueError(
                f"the numbers of groups go from {int(self.numbers.min())} to {int(self.numbers.max())}, but there are "
                f"{len(self.names)} names, from 0, and -1 for none."
            )

    @classmethod
    def from_names(cls, names: Sequence[str | None]) -> "RowGroups | None":
        """Number the names of the group of each row in the sorted order of their text; None where no row has one."""
        numbers, known = number_names(names)
        return cls(numbers, known) if known else None

    def __len__(self) -> int:
        return len(self.numbers)

    def take(self, order: Int64[Tensor, " taken"]) -> "RowGroups":
        """Keep the rows at these places, in their order; the numbers of the groups stay."""
        return RowGroups(self.numbers[order], self.names)

    def texts(self) -> tuple[str | None, ...]:
        """The name of the group of each row."""
        return tuple(None if number < 0 else self.names[number] for number in self.numbers.tolist())


def query_flags(
    flags: Sequence[tuple[bool | None, bool | None]], places: Sequence[str]
) -> tuple[Bool[Tensor, " rows"] | None, Bool[Tensor, " rows"] | None]:
    """Separate the two flags of each row, is_query and is_gallery, which all rows must have or none."""
    if all(flag == (None, None) for flag in flags):
        return None, None
    for place, flag in zip(places, flags, strict=True):
        if None in flag:
            raise ValueError(f"{place}: is_query or is_gallery is empty, but other rows have both.")
    is_query, is_gallery = torch.tensor(flags, dtype=torch.bool).unbind(1)
    return is_query, is_gallery


def check_distinct(paths: Iterable[str], source: object) -> None:
    """Raise `ValueError` if two rows of a source have the same path, since the item would be its own hit."""
    first: dict[str, int] = {}
    for row, path in enumerate(paths, start=1):
        earlier = first.setdefault(os.path.normpath(path), row)
        if path and earlier != row:
            raise ValueError(
                f"rows {earlier:,} and {row:,} of {source} have the path {path}, which would find itself: keep one row "
                "per path, with is_query and is_gallery both true if it is both."
            )


def take_parts(rows: object, order: Int64[Tensor, " taken"]) -> dict[str, Any]:
    """Take the rows at these places of every attribute that is a tensor or `RowGroups`, as those of `RowLabels` are."""
    return {name: part.take(order) for name, part in vars(rows).items() if isinstance(part, Tensor | RowGroups)}


@dataclass(frozen=True, eq=False)
class RowLabels:
    """What is known about the rows of embeddings; None for what is not.

    Args:
        labels: Class of each row, from 0; -1 for a row without one.
        class_names: Name of each class.
        paths: Name of each row, usually the path of its image.
        is_query: As of `ImageSet`, likewise the following.
        is_gallery: Rows that are in the gallery.
        sequences: The burst or video that each row is of.
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
            if low < -1 or high >= len(self.class_names):
                raise ValueError(
                    f"labels are {low} to {high}, but class_names has {len(self.class_names)} names, from 0, and -1 is "
                    "for none."
                )

    @property
    def count(self) -> int | None:
        """Number of rows, or None where nothing is known of them."""
        return next(iter(self._counts()), None)

    def _counts(self) -> set[int]:
        return {len(part) for name, part in vars(self).items() if name != "class_names" and part is not None}

    def label_texts(self) -> list[str | None] | None:
        """The name of the class of each row, or None where it has none; None where no row has one."""
        if self.labels is None or self.class_names is None:
            return None
        return [None if label < 0 else self.class_names[label] for label in self.labels.tolist()]

    def take(self, order: Int64[Tensor, " taken"]) -> "RowLabels":
        """Keep the rows at these places, in their order; the numbers of the classes stay."""
        parts = take_parts(self, order)
        if self.paths is not None:
            parts["paths"] = tuple(self.paths[place] for place in order.tolist())
        return replace(self, **parts)

    def override(self, other: "RowLabels") -> "RowLabels":
        """Put what is known here in the place of what `other` says of the same rows."""
        return replace(other, **{name: part for name, part in vars(self).items() if part is not None})


def number_labels(names: Sequence[str | None]) -> RowLabels:
    """Number the class names given for each row in the sorted order of their text; nothing is known where all are None.

    >>> number_labels(["owl", None, "jay"]).labels
    tensor([ 1, -1,  0])
    """
    numbers, known = number_names(names)
    return RowLabels(numbers, known) if known or not names else RowLabels()
