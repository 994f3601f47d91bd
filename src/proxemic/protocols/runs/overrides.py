"""Overrides of a recipe's values as the flags that the readers of recipes take."""

import json
from collections.abc import Mapping

__all__ = ["as_flags"]


def as_flags(overrides: Mapping[str, object]) -> tuple[str, ...]:
    """Give overrides as flags.

    >>> as_flags({"training.epochs": 5, "loss": "ArcFaceLoss"})
    ('--training.epochs', '5', '--loss', 'ArcFaceLoss')
    """
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, default=str) for key, value in overrides.items()
    }
    return tuple(word for key, text in texts.items() for word in (f"--{key}", text))
