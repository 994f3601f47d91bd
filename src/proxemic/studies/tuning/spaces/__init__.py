"""Search spaces: which hyper-parameters are varied, between which bounds, and in which order.

The package's own spaces are the YAML files here, one per loss or per part of a loss. `reading` turns a file into
stages; `dimensions` says what one hyper-parameter may be.
"""

from proxemic.studies.tuning.spaces.dimensions import Choices, Dimension, Factor, Range, grid_points, read_dimension
from proxemic.studies.tuning.spaces.reading import (
    Stage,
    default_space,
    list_spaces,
    load_space,
    pin,
    read_stages,
    recipe_value,
    resolve_factors,
)

__all__ = [
    "Choices",
    "Dimension",
    "Factor",
    "Range",
    "Stage",
    "default_space",
    "grid_points",
    "list_spaces",
    "load_space",
    "pin",
    "read_dimension",
    "read_stages",
    "recipe_value",
    "resolve_factors",
]
