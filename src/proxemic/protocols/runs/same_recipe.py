"""Tells whether two recipes train the same."""

from typing import Any

import yaml


def same_recipe(kept: str, given: str) -> bool:
    """Return whether two recipes in full, as YAML, train the same; ``published`` does not change the results.

    >>> [same_recipe("{seed: 1, published: null}", f"seed: {seed}") for seed in (1, 2)]
    [True, False]
    >>> same_recipe("damaged: [", "seed: 1")
    False
    """
    try:
        return kept == given or _trained(kept) == _trained(given)
    except yaml.YAMLError:
        return False


def _trained(text: str) -> Any:
    content = yaml.safe_load(text)
    return content | {"published": None} if isinstance(content, dict) else content
