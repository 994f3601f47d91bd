"""The files of a search for hyper-parameters."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proxemic.files import write_csv
from proxemic.studies.directories import StudyDirectory
from proxemic.studies.tuning.search import FinishedTrial, Pruner, Sampler


@dataclass(frozen=True)
class TuningOptions:
    """The arguments of `tune` as ``tuning.json`` stores them: with the content of the space, without passwords."""

    recipe: str
    flags: list[str]
    space: list[Any]
    space_name: str
    trials: int | None
    sampler: Sampler
    pruner: Pruner
    storage: str | None
    study: str
    seed: int
    budget: float | None = None
    seeds: int = 1
    first: list[list[dict[str, Any]]] = field(default_factory=list)
    """For each stage, the parameters of the trials that follow the recipe's own."""


class TuningDirectory(StudyDirectory[TuningOptions]):
    """The directory of a search; ``base`` is the full recipe to vary."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "tuning.json", "search", "tune", TuningOptions)

    @property
    def base(self) -> Path:
        return self.path / "base.yaml"

    @property
    def best_recipe(self) -> Path:
        return self.path / "best.yaml"

    @property
    def storage(self) -> str:
        """The default URL of the study."""
        return f"sqlite:///{(self.path / 'study.db').resolve()}"

    def runs(self, stage: int, number: int, seeds: int) -> list[Path]:
        """Return the run directories of a trial, one per seed, as absolute paths, because recipes name them."""
        trial = (self.path / "trials" / f"{stage}-{number}").resolve()
        return [trial] if seeds == 1 else [trial / f"seed-{seed}" for seed in range(seeds)]

    def write_trials(self, stages: Sequence[Sequence[FinishedTrial]]) -> None:
        """Write ``trials.csv``: one row per trial, stage by stage."""
        names = list(dict.fromkeys(name for stage in stages for item in stage for name in item.parameters))
        header = ["stage", "trial", "state", "value", "epochs", "seconds", *names, "failure"]
        rows = [
            [number, item.number, item.state, item.value, item.steps, round(item.seconds, 1)]
            + [item.parameters.get(name) for name in names]
            + [item.failure]
            for number, stage in enumerate(stages, 1)
            for item in stage
        ]
        write_csv(self.path / "trials.csv", header, rows)
