"""The text of a recipe that an earlier version wrote, with the keys that it did not know."""

from dataclasses import MISSING, fields
from typing import Any

from proxemic.recipes.places import arms, field_types, is_section
from proxemic.training.recipe import Recipe


def in_full(content: Any, annotation: Any = Recipe) -> Any:
    """A recipe's content with the defaults of all keys of its sections, and without those that are null.

    >>> in_full({"proxies": None, "training": {"epochs": 5}})["training"]["precision"]
    '32-true'
    """
    if not isinstance(content, dict):
        return content
    section = next(filter(is_section, arms(annotation)), None)
    types = field_types(section) if section else {}
    full = (_defaults(section) if section else {}) | content
    full = {key: in_full(each, types.get(key)) for key, each in full.items()}
    return {key: each for key, each in full.items() if each is not None}


def _defaults(section: type) -> dict[str, Any]:
    given = {each.name: each.default for each in fields(section) if each.default is not MISSING}
    made = {each.name: each.default_factory for each in fields(section) if each.default_factory is not MISSING}
    content = given | {key: {} if is_section(make) else make() for key, make in made.items()}
    return {key: [*each] if isinstance(each, tuple) else each for key, each in content.items()}
