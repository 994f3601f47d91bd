"""Group runs that differ only in their seed, to compute means and intervals over seeds."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from proxemic.errors import UserError
from proxemic.studies.finished import Run
from proxemic.studies.statistics import Estimate, t_interval

AnyRun = TypeVar("AnyRun", bound=Run)


def repetitions(runs: Sequence[AnyRun]) -> dict[str, list[AnyRun]]:
    """Group runs that differ only in their seed, sorted by seed; the keys are names of the groups.

    Two runs with the same recipe and seed raise `UserError`, because copies would make the intervals too narrow.
    """
    settings: dict[str, dict[int, AnyRun]] = {}
    for run in runs:
        seeds = settings.setdefault(run.setting, {})
        other = seeds.setdefault(run.seed, run)
        if other is not run:
            raise UserError(f"{other.path} and {run.path} have the same recipe and the same seed: give one of them.")
    groups = [[seeds[seed] for seed in sorted(seeds)] for seeds in settings.values()]
    return dict(zip(distinct_names([group[0] for group in groups]), groups, strict=True))


def distinct_names(runs: Sequence[Run]) -> list[str]:
    """Name each run without the words that all names start with; if two names are equal, return the paths."""
    if len({run.name for run in runs}) < len(runs):
        return [str(run.path) for run in runs]
    words = [run.name.split("-") for run in runs]
    while len(words) > 1 and min(map(len, words)) > 1 and len({word[0] for word in words}) == 1:
        words = [word[1:] for word in words]
    return ["-".join(word) for word in words]


def differences_from_first(
    groups: Mapping[str, Sequence[Run]], values: Mapping[str, Sequence[Mapping[str, float]]]
) -> dict[str, dict[str, Estimate]]:
    """Estimate how much the values of each group exceed those of the first group, paired by two seeds or more."""
    by_seed = {
        name: {run.seed: row for run, row in zip(runs, values[name], strict=True)} for name, runs in groups.items()
    }
    tables = {}
    first, *others = groups
    for name in others:
        seeds = [seed for seed in by_seed[first] if seed in by_seed[name]]
        if len(seeds) < 2:
            continue
        one, base = ([by_seed[group][seed] for seed in seeds] for group in (name, first))
        title = f"{name} less {first}, paired by {len(seeds)} seeds, mean and 95% interval (t distribution)"
        tables[title] = {
            key: t_interval([row[key] - other[key] for row, other in zip(one, base, strict=True)])
            for key in base[0]
            if key in one[0]
        }
    return tables
