"""What the values of a recipe say of its data and its evaluation."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

from proxemic.recipes.importing import find_object


def class_name(value: Mapping[str, Any]) -> str:
    """The name of the class that a value of a recipe names.

    >>> class_name({"class_path": "proxemic.losses.ArcFaceLoss"})
    'ArcFaceLoss'
    """
    return value["class_path"].rpartition(".")[2]


def data_key(recipe: Mapping[str, Any]) -> str:
    """The key of a published data set, such as ``cub``; of other sources their name, such as ``own-images``."""
    source = find_object("data", recipe["data"]["class_path"], inspect.isclass, own_code=False)
    facts = getattr(source, "facts", None)
    return (
        facts.key if facts is not None else re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", class_name(recipe["data"])).lower()
    )


def metric_names(evaluation: Mapping[str, Any]) -> list[str]:
    """Names of the metrics that an evaluation with these settings computes.

    >>> metric_names({"recall_at": [1], "precision_at": [], "map_at": [], "ndcg_at": [8], "nmi": False})
    ['recall@1', 'ndcg@8', 'map@r', 'r_precision']
    """
    names = [f"{name}@{k}" for name in ("recall", "precision", "map", "ndcg") for k in evaluation[f"{name}_at"]]
    return [*names, "map@r", "r_precision", *(("nmi", "nmi_geometric", "ami") if evaluation["nmi"] else ())]
