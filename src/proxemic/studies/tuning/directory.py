"""The directory of a study that tunes hyper-parameters."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxemic.studies.directories import StudyDirectory
from proxemic.studies.tuning.study import Pruner, Sampler


@dataclass(frozen=True)
class TuningOptions:
    """The arguments of `tune` as ``tuning.json`` stores them: with the content of the space, without passwords."""

    recipe: str
    flags: list[str]
    space: dict[str, Any]
    """The content of the search space, with ranges for factors of the recipe's values."""
    trials: int
    study: str
    seed: int = 0
    first: list[dict[str, Any]] = field(default_factory=list)
    """Parameters of the trials that follow the recipe's own."""
    budget: float | None = None
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    storage: str | None = None


def tuning_directory(path: Path) -> StudyDirectory[TuningOptions]:
    """Return the directory of a study; its ``base.yaml`` is the full recipe to vary."""
    return StudyDirectory(path, "tuning.json", "study", "tune", TuningOptions)
