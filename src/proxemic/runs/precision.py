"""The precision in which networks embed."""

from typing import Literal

EvaluationPrecision = Literal["32-true", "bf16-mixed"]


def computed_in(precision: str | None) -> str:
    """Return what the title of a table says of the precision of its figures, if that is not float32.

    >>> computed_in("32-true"), computed_in("bf16-mixed")
    ('', ', computed in bf16-mixed')
    """
    return "" if precision in (None, "32-true") else f", computed in {precision}"
