"""Parse conditions on the columns of a gallery, as users write them."""

from collections.abc import Sequence

from proxemic.errors import UserError


def read_conditions(conditions: Sequence[str], given_as: str = "where") -> dict[str, list[str | None]]:
    """Parse conditions ``COLUMN=VALUE`` to the allowed values of each column; without a value, cells must be empty.

    >>> read_conditions(["label=shoe", "label=a=b", "shop="])
    {'label': ['shoe', 'a=b'], 'shop': [None, '']}
    """
    read: dict[str, list[str | None]] = {}
    for condition in conditions:
        name, sign, value = condition.partition("=")
        if not (name and sign):
            raise UserError(f"{given_as} is {condition!r}, but must be COLUMN=VALUE, as label=shoe.")
        read.setdefault(name, []).extend([value] if value else [None, ""])
    return read
