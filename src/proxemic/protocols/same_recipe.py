"""Whether what was begun was begun with the recipe that is given now."""

from typing import Any

import yaml

__all__ = ["same_recipe"]


def same_recipe(kept: str, given: str) -> bool:
    """Whether two recipes in full have the same values; a key that one lacks, as it is older, counts as null.

    Args:
        kept: YAML, perhaps of an earlier version.
        given: YAML.

    >>> same_recipe("training: {epochs: 5}", "training: {epochs: 5, threads: null}")
    True
    >>> same_recipe("training: {epochs: 5}", "training: {epochs: 5, threads: 2}")
    False
    """
    if kept == given:
        return True
    try:
        return _without_nulls(yaml.safe_load(kept)) == _without_nulls(yaml.safe_load(given))
    except yaml.YAMLError:
        return False


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(each) for key, each in value.items() if each is not None}
