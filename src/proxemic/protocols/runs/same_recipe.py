"""Whether what was begun was begun with the recipe that is given now."""

from typing import Any

import yaml

from proxemic.recipes.yaml_files import with_current_names


def same_recipe(kept: str, given: str) -> bool:
    """Whether two recipes in full train the same; a key that one lacks, as it is older, counts as null.

    What stands beside the results, ``published``, changes nothing of them, and may differ.

    Args:
        kept: YAML, perhaps of an earlier version.
        given: YAML; that of a comparison or a search is also of the version that began it.

    >>> same_recipe("training: {epochs: 5}", "training: {epochs: 5, threads: null}")
    True
    >>> same_recipe("training: {epochs: 5}", "training: {epochs: 5, threads: 2}")
    False
    >>> same_recipe("batches: {micro_batches: 2}", "batches: {parts: 2}")
    True
    >>> same_recipe("published: null", "published: [{paper: softmax-loss-mean-proxy, table: '4.1', method: Ours}]")
    True
    """
    if kept == given:
        return True
    try:
        return _trained(kept) == _trained(given)
    except yaml.YAMLError:
        return False


def _trained(text: str) -> Any:
    content = with_current_names(yaml.safe_load(text))
    return _without_nulls(content | {"published": None} if isinstance(content, dict) else content)


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(each) for key, each in value.items() if each is not None}
