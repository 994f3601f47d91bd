"""The directory of a search for hyper-parameters: what is in it, and how it stays small."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.files import write_csv, write_json, write_text
from proxemic.protocols.directories import is_begun
from proxemic.protocols.runs.same_recipe import same_recipe
from proxemic.protocols.tuning.search import Pruner
from proxemic.protocols.tuning.trials import FinishedTrial, Sampler
from proxemic.recipes.flags import read_flags


@dataclass(frozen=True)
class TuningOptions:
    """The arguments of `tune` as ``tuning.json`` keeps them: with the content of the space, without any password."""

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
    """For each stage, the parameters of the first trials after that of the recipe itself."""


class TuningDirectory:
    """The files of a search; ``tuning.json`` is written first."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options = path / "tuning.json"
        self.base = path / "base.yaml"
        self.best_recipe = path / "best.yaml"
        self.storage = f"sqlite:///{(path / 'study.db').resolve()}"

    def run(self, stage: int, number: int) -> Path:
        """The run directory of a trial, as an absolute path, since recipes name it."""
        return (self.path / "trials" / f"{stage}-{number}").resolve()

    def runs(self, stage: int, number: int, seeds: int) -> list[Path]:
        """The run directories of a trial, one for each seed."""
        trial = self.run(stage, number)
        return [trial] if seeds == 1 else [trial / f"seed-{seed}" for seed in range(seeds)]

    def is_begun(self, options: TuningOptions, base: str) -> bool:
        """Whether the directory holds this search; False if it is new or empty, `UserError` if it holds another."""
        if not is_begun(self.path, self.options.name, "a search"):
            return False
        kept, wanted = asdict(self.read()), asdict(options)
        for values in (kept, wanted):
            values["flags"] = dict(read_flags(values["flags"]))
        different = [name for name in wanted if kept[name] != wanted[name]]
        if not different and self.base.exists() and not same_recipe(self.base.read_text(encoding="utf-8"), base):
            different = ["recipe"]
        if different:
            raise UserError(
                f"{self.path} holds a search with another {', '.join(different)}: choose another --out, or go on "
                f"with that one by --resume {self.path}."
            )
        return True

    def create(self, options: TuningOptions, base: str) -> None:
        write_json(self.options, asdict(options))
        write_text(self.base, base)

    def read(self) -> TuningOptions:
        """Read the options of the search in the directory."""
        try:
            return TuningOptions(**json.loads(self.options.read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.path} holds no search (there is no readable tuning.json in it): give a directory that proxemic "
                "tune made."
            ) from error

    def write_trials(self, stages: Sequence[Sequence[FinishedTrial]]) -> None:
        """Write ``trials.csv``: one row per trial, stage by stage."""
        names = list(dict.fromkeys(name for stage in stages for each in stage for name in each.parameters))
        rows = [
            [number, each.number, each.state, each.value, each.steps, round(each.seconds, 1)]
            + [each.parameters.get(name) for name in names]
            + [each.failure]
            for number, stage in enumerate(stages, 1)
            for each in stage
        ]
        write_csv(
            self.path / "trials.csv", ["stage", "trial", "state", "value", "epochs", "seconds", *names, "failure"], rows
        )
