"""Read the data set, the loss and the metrics of a recipe's content."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import yaml

from proxemic.recipes.importing import find_object


def class_name(value: Mapping[str, Any]) -> str:
    """Return ``ArcFaceLoss`` for ``{"class_path": "proxemic.losses.ArcFaceLoss"}``."""
    return value["class_path"].rpartition(".")[2]


def data_key(recipe: Mapping[str, Any]) -> str:
    """Return the key of a published data set, such as ``cub``, or the class name, such as ``own-images``."""
    source = find_object("data", recipe["data"]["class_path"], inspect.isclass, own_code=False)
    if facts := getattr(source, "facts", None):
        return facts.key
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_name(recipe["data"])).lower()


def metric_names(evaluation: Mapping[str, Any]) -> list[str]:
    """Return the names of the metrics that an evaluation with these settings computes."""
    names = [f"{name}@{k}" for name in ("recall", "precision", "map", "ndcg") for k in evaluation[f"{name}_at"]]
    return [*names, "map@r", "r_precision", *(("nmi", "nmi_geometric", "ami") if evaluation["nmi"] else ())]


def same_recipe(kept: str, given: str) -> bool:
    """Return whether two full recipes (YAML) describe the same training, whatever their key ``published``.

    >>> same_recipe("{seed: 1, published: null}", "{seed: 1, published: []}"), same_recipe("seed: 1", "seed: [")
    (True, False)
    """
    try:
        return kept == given or _trained(kept) == _trained(given)
    except yaml.YAMLError:
        return False


def _trained(text: str) -> Any:
    content = yaml.safe_load(text)
    return content | {"published": None} if isinstance(content, dict) else content
