"""Whether what was begun was begun with the recipe that is given now."""

from dataclasses import MISSING, fields
from typing import Any

import yaml

from proxemic.recipes.places import arms, field_types, is_section
from proxemic.recipes.yaml_files import with_current_names
from proxemic.training.recipe import Recipe


def same_recipe(kept: str, given: str) -> bool:
    """Whether two recipes in full, as YAML of this or an earlier version, train the same.

    A key that one lacks, as the version that wrote it had none, counts as its default; ``published`` does not change the
    results, and may differ.

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
    content = with_current_names(yaml.safe_load(text))
    return _in_full(content | {"published": None}, Recipe) if isinstance(content, dict) else content


def _in_full(value: Any, annotation: Any) -> Any:
    """With the defaults of the sections' keys, and without nulls."""
    if not isinstance(value, dict):
        return value
    section = next(filter(is_section, arms(annotation)), None)
    types = field_types(section) if section else {}
    full = (_defaults(section) if section else {}) | value
    full = {key: _in_full(each, types.get(key)) for key, each in full.items()}
    return {key: each for key, each in full.items() if each is not None}


def _defaults(section: type) -> dict[str, Any]:
    given = {each.name: each.default for each in fields(section) if each.default is not MISSING}
    made = {each.name: each.default_factory for each in fields(section) if each.default_factory is not MISSING}
    content = given | {key: {} if is_section(make) else make() for key, make in made.items()}
    return {key: [*each] if isinstance(each, tuple) else each for key, each in content.items()}
