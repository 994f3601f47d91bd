"""The precision in which networks embed."""

from typing import Literal

EvaluationPrecision = Literal["32-true", "bf16-mixed"]


def computed_in(precision: str | None) -> str:
    """Return the words for a table's title if its figures were not computed in float32; otherwise an empty text.

    >>> computed_in("32-true"), computed_in("bf16-mixed")
    ('', ', computed in bf16-mixed')
    """
    return "" if precision in (None, "32-true") else f", computed in {precision}"
