"""Runs that repeat each other with other seeds: groups, which have a mean and an interval."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from proxemic.errors import UserError
from proxemic.protocols.comparison.statistics import Estimate, t_interval
from proxemic.protocols.runs.finished import Run

__all__ = ["distinct_names", "paired_differences", "repetitions"]

AnyRun = TypeVar("AnyRun", bound=Run)


def repetitions(runs: Sequence[AnyRun]) -> dict[str, list[AnyRun]]:
    """Gather runs that differ in their seed alone, in the order of their seeds, under a name of each group's own.

    Raises:
        UserError: If two have the same seed too, as copies would feign a certainty that is not there.
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
    """A name for each, its path where others are called the same; words that all begin with are left out."""
    names = [run.name for run in runs]
    return _without_what_all_share(names) if len(set(names)) == len(names) else [str(run.path) for run in runs]


def _without_what_all_share(names: list[str]) -> list[str]:
    """Names of words with hyphens, without those that all begin with.

    >>> _without_what_all_share(["glyphs-small-softmax", "glyphs-small-softmax-mean-proxy"])
    ['softmax', 'softmax-mean-proxy']
    """
    words = [name.split("-") for name in names]
    while len(names) > 1 and min(map(len, words)) > 1 and len({each[0] for each in words}) == 1:
        words = [each[1:] for each in words]
    return ["-".join(each) for each in words]


def paired_differences(
    groups: Mapping[str, Sequence[Run]], values: Mapping[str, Sequence[Mapping[str, float]]]
) -> dict[str, dict[str, Estimate]]:
    """What each group's values exceed those of the first by, with the same seed: means with intervals, under a title.

    Groups with fewer than two seeds in common with the first are left out.
    """
    found = {}
    first, *others = groups
    base = {run.seed: each for run, each in zip(groups[first], values[first], strict=True)}
    for name in others:
        here = {run.seed: each for run, each in zip(groups[name], values[name], strict=True)}
        seeds = [seed for seed in base if seed in here]
        if len(seeds) > 1:
            title = f"{name} less {first}, paired by {len(seeds)} seeds, mean and 95% interval (t distribution)"
            keys = [key for key in base[seeds[0]] if key in here[seeds[0]]]
            found[title] = {key: t_interval([here[seed][key] - base[seed][key] for seed in seeds]) for key in keys}
    return found
