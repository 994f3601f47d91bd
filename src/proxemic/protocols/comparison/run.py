"""Losses × seeds × data sets: a training run each, kept once it is finished, and tables and plots of what there is."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.files import remove_stale_temporaries
from proxemic.locks import exclusive_lock
from proxemic.protocols.comparison.directory import Cell, Comparison, computed_metrics
from proxemic.protocols.comparison.entries import Entry, find_names, read_entry
from proxemic.protocols.comparison.tables import write_tables
from proxemic.protocols.directories import is_begun
from proxemic.protocols.runs.jobs import Job, Workers, going_on_with
from proxemic.protocols.runs.same_recipe import same_recipe

__all__ = ["Comparison", "finish_comparison", "plan_comparison", "run_comparison", "show_differently", "states"]

DEFAULT_SEEDS = (0, 1, 2, 3, 4)
_say = partial(print, flush=True)  # hours pass between two lines


def run_comparison(
    recipes: Sequence[str],
    seeds: Sequence[int] | None,
    out: Path,
    flags: Sequence[str] = (),
    *,
    workers: int = 1,
    baseline: str | None = None,
    metrics: Sequence[str] = (),
    report: Callable[[str], object] = _say,
) -> Comparison:
    """Train every recipe with every seed and write tables and plots; what is finished in ``out`` is kept.

    Args:
        recipes: Names, patterns over the package's names, or YAML files.
        seeds: Of each recipe; None is 0 to 4, or those that ``out`` has.
        out: The comparison's directory: a new one, or one to go on with. Recipes and seeds that it has stay in it.
        flags: What overrides every recipe, as on the command line.
        workers: Processes that train, at least 1; the figures do not depend on it.
        baseline: The recipe, by name or pattern, that the others of its data set are compared with; None is the first.
        metrics: To be shown; none shows ``recall@1``, ``map@r`` and ``ndcg@8``, as far as they are computed.
        report: Is given lines for the user.

    Returns:
        The comparison. Cells that failed say so in ``table.md``; another call tries them again.

    Raises:
        UserError: If an argument or a recipe is refused, before anything is written; `Interrupted` after Ctrl-C.
        ValueError: If ``workers`` is below 1.
    """
    comparison = plan_comparison(recipes, seeds, out, flags, baseline=baseline, metrics=metrics, own_code=True)
    return finish_comparison(comparison, workers=workers, report=report)


def plan_comparison(
    recipes: Sequence[str],
    seeds: Sequence[int] | None,
    out: Path,
    flags: Sequence[str] = (),
    *,
    baseline: str | None = None,
    metrics: Sequence[str] = (),
    own_code: bool = False,
) -> Comparison:
    """Read the recipes and join them to what ``out`` has; nothing is written.

    Arguments are those of `run_comparison`, and ``own_code`` that of `read_entry`.

    Raises:
        UserError: As `run_comparison`.
    """
    names = find_names(recipes)
    before = _begun(out)
    for flag in flags:
        if flag.partition("=")[0] == "--seed":
            raise UserError("--seed is set for each run by --seeds: leave it out.")
    if before is not None and before.flags != tuple(flags):
        had = " ".join(before.flags) or "none"
        raise UserError(f"{out} was begun with other flags ({had}): give the same, or another --out.")
    entries = list(before.entries) if before else []
    for name in names:
        old = next((entry for entry in entries if entry.name == name), None)
        new = read_entry(name, flags, entries, own_code=own_code)
        if old is None:
            entries.append(new)
        elif not same_recipe(old.yaml, new.yaml):
            raise UserError(
                f"The recipe {name} is no longer the one that {out} was begun with: give another --out, or go on with "
                f"the recipe as it was by proxemic compare --resume {out}"
            )
    if before is None:
        comparison = Comparison(
            out, tuple(entries), _check_seeds(DEFAULT_SEEDS if seeds is None else seeds), tuple(flags)
        )
    else:
        both = dict.fromkeys((*before.seeds, *_check_seeds(seeds or ())))
        comparison = replace(before, entries=tuple(entries), seeds=tuple(both))
    return show_differently(comparison, baseline, metrics)


def show_differently(comparison: Comparison, baseline: str | None, metrics: Sequence[str]) -> Comparison:
    """The same comparison with another baseline or other metrics, where they are given.

    Raises:
        UserError: If no recipe is called so, or computes such a metric.
    """
    if baseline is not None:
        if not any(entry.is_named(baseline) for entry in comparison.entries):
            names = ", ".join(entry.title for entry in comparison.entries)
            raise UserError(f"--baseline is {baseline}, but must be one of the recipes compared: {names}.")
        comparison = replace(comparison, baseline=baseline)
    computed = dict.fromkeys(metric for entry in comparison.entries for metric in computed_metrics(entry))
    for metric in metrics:
        if metric not in computed:
            raise UserError(
                f"--metrics has {metric}, but these are computed: {', '.join(computed)}; others by flags such as "
                "--evaluation.recall_at [1,10]."
            )
    return replace(comparison, metrics=tuple(metrics)) if metrics else comparison


def _check_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise UserError(f"seeds are {', '.join(map(str, seeds))}, but must be 0 or more, each once.")
    return tuple(seeds)


def _begun(out: Path) -> Comparison | None:
    # A call that was killed at once may have left recipes.
    return Comparison.read(out) if is_begun(out, "comparison.json", "a comparison", ["recipes"]) else None


def finish_comparison(
    comparison: Comparison, *, workers: int = 1, report: Callable[[str], object] = _say
) -> Comparison:
    """Train what is not finished yet, and write tables and plots; the arguments are those of `run_comparison`."""
    if workers < 1:
        raise ValueError(f"--workers is {workers}, but must be at least 1.")
    with exclusive_lock(comparison.path):
        remove_stale_temporaries(comparison.path)
        _check_kept(comparison)
        _finish(comparison, workers, report)
    return comparison


def _check_kept(comparison: Comparison) -> None:
    """Raise `UserError` if another process added what this one, which read it before, would forget."""
    kept = _begun(comparison.path)
    if kept is not None and not ({*kept.entries} <= {*comparison.entries} and {*kept.seeds} <= {*comparison.seeds}):
        raise UserError(f"Another process has added to {comparison.path} in the meantime: give the command again.")


def _finish(comparison: Comparison, workers: int, report: Callable[[str], object]) -> None:
    cells = list(comparison.cells())
    waiting = {cell.path: cell for cell in cells if cell.result() is None}
    comparison.write()
    report(
        f"{comparison.path}: {len(comparison.entries)} recipes × {len(comparison.seeds)} seeds, {len(cells)} cells, "
        f"{len(cells) - len(waiting)} finished before"
    )
    for cell in waiting.values():
        cell.forget_failure()
    watch = _Watch(comparison, waiting, report)
    jobs = [Job(comparison.recipe_file(cell.entry), ("--seed", str(cell.seed)), cell.path) for cell in waiting.values()]
    try:
        with going_on_with(f"proxemic compare --resume {comparison.path}"), Workers(workers) as pool:
            pool.run(jobs, on_result=watch.finish, on_failure=watch.fail)
    finally:
        write_tables(comparison)
    from proxemic.protocols.comparison.plots import draw_curves, draw_points

    draw_points(comparison)
    draw_curves(comparison)


class _Watch:
    """Says how far it is, and writes the tables anew, after every cell."""

    def __init__(self, comparison: Comparison, cells: Mapping[Path, Cell], report: Callable[[str], object]) -> None:
        self.comparison, self.cells, self.report = comparison, cells, report
        self.done, self.began = 0, time.monotonic()

    def finish(self, job: Job, found: Mapping[str, Any]) -> None:
        cell = self.cells[job.out]
        metric = self.comparison.shown_metrics([cell.entry])[0]
        result = cell.result()
        assert result is not None
        text = (
            f"{metric} {100 * found['test'][metric]:.2f}, epoch {result.epoch}, {_duration(result.seconds)} of training"
        )
        self._tell(f"{cell}: {text}")

    def fail(self, job: Job, error: Exception) -> None:
        cell = self.cells[job.out]
        # How the comparison goes on is said at its end; the run by itself would have other threads.
        reason = re.sub(r" Then continue with proxemic train --resume \S+\.$", "", str(error))
        cell.fail(reason)
        self._tell(f"{cell} FAILED: {reason}")

    def _tell(self, line: str) -> None:
        write_tables(self.comparison)
        self.done += 1
        left = len(self.cells) - self.done
        rest = f"; {left} left, about {_duration((time.monotonic() - self.began) / self.done * left)}" if left else ""
        self.report(f"[{self.done}/{len(self.cells)}] {line}{rest}")


def _duration(seconds: float) -> str:
    """A time to be read at a glance.

    >>> _duration(7.4), _duration(190), _duration(9000)
    ('7 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def states(comparison: Comparison) -> str:
    """How far each recipe is, a line each, as ``glyphs: finished 0 1, not begun 2``."""
    return "\n".join(f"{entry.title}: {_states(comparison, entry)}" for entry in comparison.entries)


def _states(comparison: Comparison, entry: Entry) -> str:
    seeds: dict[str, list[str]] = {}
    for seed in comparison.seeds:
        seeds.setdefault(comparison.cell(entry, seed).state, []).append(str(seed))
    return ", ".join(f"{state} {' '.join(each)}" for state, each in seeds.items())
