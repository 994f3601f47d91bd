"""Whether what was begun was begun with the recipe that is given now."""

from typing import Any

import yaml

from proxemic.recipes.yaml_files import with_current_names


def same_recipe(kept: str, given: str) -> bool:
    """Whether two recipes in full, as YAML of this or an earlier version, train the same.

    A key that one lacks counts as null; ``published`` does not change the results, and may differ.

    >>> [same_recipe("training: {epochs: 5}", f"training: {{epochs: 5, threads: {number}}}") for number in ("null", 2)]
    [True, False]
    >>> same_recipe("batches: {micro_batches: 2}", "batches: {parts: 2}")
    True
    >>> same_recipe("damaged: [", "training: {epochs: 5}")
    False
    """
    try:
        return kept == given or _trained(kept) == _trained(given)
    except yaml.YAMLError:
        return False


def _trained(text: str) -> Any:
    content = with_current_names(yaml.safe_load(text))
    return _without_nulls(content | {"published": None} if isinstance(content, dict) else content)


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(each) for key, each in value.items() if each is not None}
