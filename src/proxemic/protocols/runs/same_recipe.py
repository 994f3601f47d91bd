"""Whether what was begun was begun with the recipe that is given now."""

from typing import Any

import yaml

from proxemic.recipes.yaml_files import with_current_names


def same_recipe(kept: str, given: str) -> bool:
    """Whether two recipes in full, as YAML of this or an earlier version, train the same.

    A key that one lacks, as the version that wrote it had none, counts as its default; ``published`` does not change
    the results, and may differ.

    >>> [same_recipe("training: {epochs: 5}", f"training: {{epochs: 5, threads: {number}}}") for number in ("null", 2)]
    [True, False]
    >>> same_recipe("training: {epochs: 5}", "training: {epochs: 5, precision: 32-true}")
    True
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
    from proxemic.recipes.in_full import in_full  # imports torch, which equal texts do not need

    content = with_current_names(yaml.safe_load(text))
    return in_full(content | {"published": None}) if isinstance(content, dict) else content
