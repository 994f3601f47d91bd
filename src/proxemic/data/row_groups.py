"""Named groups of rows (sequences and categories), and which rows are queries and which in the gallery."""

from collections.abc import Sequence
from dataclasses import dataclass

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
        numbers: Of the group of each row, from 0; -1 for none.
        names: Of the groups, as many as there are at least.

    Raises:
        ValueError: If a number has no name.

    Example:
        >>> groups = RowGroups.from_names(["b", None, "a", "b"])
        >>> groups.numbers.tolist(), groups.names
        ([1, -1, 0, 1], ('a', 'b'))
        >>> groups.take(torch.tensor([2, 1])).texts()
        ('a', None)
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
    """Separate the two flags of each row, is_query and is_gallery; None for both where no row has any.

    Raises:
        ValueError: If some rows have flags and others lack one; the message names the first of these by its place.
    """
    if all(flag == (None, None) for flag in flags):
        return None, None
    for place, flag in zip(places, flags, strict=True):
        if None in flag:
            raise ValueError(f"{place}: is_query or is_gallery is empty, but other rows have both.")
    is_query, is_gallery = torch.tensor(flags, dtype=torch.bool).unbind(1)
    return is_query, is_gallery
