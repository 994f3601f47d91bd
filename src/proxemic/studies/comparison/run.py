"""Train recipes with several seeds, keep finished runs, and write tables and plots."""

import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any, Literal

from proxemic.errors import UserError
from proxemic.files import new_directory, write_text
from proxemic.recipes.flags import as_flags, read_flags
from proxemic.studies.comparison.against_paper import against_paper
from proxemic.studies.comparison.directory import Comparison, computed_metrics
from proxemic.studies.comparison.entries import find_names, read_entry
from proxemic.studies.comparison.tables import write_tables
from proxemic.studies.directories import format_seconds, time_left
from proxemic.studies.jobs import Job, Workers
from proxemic.studies.recipe_content import same_recipe


def compare(
    recipes: Sequence[str | Path] = (),
    *,
    out: str | Path | None = None,
    seeds: Sequence[int] | None = None,
    vary: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    resume: str | Path | None = None,
    workers: int = 1,
    baseline: str | None = None,
    metrics: Sequence[str] = (),
    against: Literal["paper"] | None = None,
    dry_run: bool = False,
    report: Callable[[str], object] | None = None,
) -> Comparison:
    """Train every recipe with every seed, and write tables and plots; finished runs in ``out`` are kept.

    Args:
        recipes: Names, patterns of the package's names such as ``glyphs-small/*``, or YAML files.
        out: Directory of the comparison: a new one (None takes ``runs/compare-DATE-TIME``), or an existing comparison,
            to which the recipes and seeds are added.
        seeds: Seeds of each recipe; None takes 0 to 4, or the seeds in ``out``.
        vary: Values of a key, such as ``loss=ProxyAnchorLoss,ArcFaceLoss`` or ``loss.alpha=8,16,32``: compare one
            recipe with each of them. May be repeated. The recipes are written to ``out/values``.
        overrides: Values of every recipe by dotted key, such as ``{"training.epochs": 5}``.
        resume: Directory of a comparison to continue with its own recipes, seeds and overrides.
        workers: Number of processes that train, at least 1; the results do not depend on it.
        baseline: Name or pattern of the recipe that others with the same data are compared with; None takes the first.
        metrics: Metrics to show; if empty, those of ``recall@1``, ``map@r`` and ``ndcg@8`` that are computed.
        against: Also write ``against-paper.md`` with the papers' figures for the rows that the recipes stand for.
        dry_run: Check the arguments, but train and write nothing.
        report: Called with a line for each finished run. None logs the lines.

    Returns:
        The comparison with its results. ``table.md`` lists failed runs; another call tries them again.

    Raises:
        UserError: If an argument or a recipe is refused, before anything is written; `Interrupted` after Ctrl-C.
        ValueError: If ``workers`` is below 1.
    """
    if resume is not None:
        if recipes or seeds is not None or out or overrides or vary:
            raise UserError(
                "--resume takes recipes, seeds and flags from the comparison that it continues: leave them out, or "
                f"give all of them with --out {resume} to add some."
            )
        comparison = _with_view(Comparison.read(Path(resume)), baseline, metrics)
    else:
        out = Path(out) if out else new_directory("compare")
        names = find_names([str(recipe) for recipe in recipes])
        flags = as_flags(overrides or {})
        if vary:
            if dry_run or len(names) > 1:
                raise UserError(
                    "--vary takes one recipe, and writes one for each value: leave out the others, --dry-run too."
                )
            _begun(out)  # refuses a folder with other files before anything is written
            from proxemic.studies.comparison.vary import read_sweeps, write_points  # which import torch

            points = write_points(names[0], read_sweeps(vary), out, flags)
            names, flags = [name for point in points.values() for name in point], []
        comparison = plan_comparison(names, seeds, out, flags, baseline=baseline, metrics=metrics, own_code=not dry_run)
    if dry_run:
        return comparison
    finish_comparison(comparison, workers=workers, report=report)
    if against:
        write_text(comparison.path / "against-paper.md", against_paper(comparison))
    return comparison


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
    """Read recipes by names that `find_names` returns, and add them to the comparison in ``out``; write nothing."""
    before = _begun(out) or Comparison(out, (), (), tuple(flags))
    if "seed" in read_flags(flags):
        raise UserError("--seed is set for each run by --seeds: leave it out.")
    if read_flags(before.flags) != read_flags(flags):
        had = " ".join(before.flags) or "none"
        raise UserError(f"{out} was begun with other flags ({had}): give the same, or another --out.")
    entries = list(before.entries)
    for name in recipes:
        known = next((entry for entry in entries if entry.name == name), None)
        new = read_entry(name, flags, entries, own_code=own_code)
        if known is None:
            entries.append(new)
        elif not same_recipe(known.yaml, new.yaml):
            raise UserError(
                f"The recipe {name} is no longer the one that {out} was begun with: give another --out, or continue "
                f"with the recipe as it was: {before.directory.resume}"
            )
    if seeds is None:
        seeds = () if before.seeds else range(5)
    if any(seed < 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise UserError(f"seeds are {', '.join(map(str, seeds))}, but must be 0 or more, each once.")
    seeds = tuple(dict.fromkeys((*before.seeds, *seeds)))
    return _with_view(replace(before, entries=tuple(entries), seeds=seeds), baseline, metrics)


def _with_view(comparison: Comparison, baseline: str | None, metrics: Sequence[str]) -> Comparison:
    if baseline is not None and not any(entry.is_named(baseline) for entry in comparison.entries):
        names = ", ".join(entry.title for entry in comparison.entries)
        raise UserError(f"--baseline is {baseline}, but must be one of the recipes compared: {names}.")
    computed = dict.fromkeys(metric for entry in comparison.entries for metric in computed_metrics(entry))
    if unknown := [metric for metric in metrics if metric not in computed]:
        raise UserError(
            f"--metrics has {unknown[0]}, but these are computed: {', '.join(computed)}; flags such as "
            "--evaluation.recall_at [1,10] add others."
        )
    return replace(comparison, baseline=baseline or comparison.baseline, metrics=tuple(metrics) or comparison.metrics)


def _begun(out: Path) -> Comparison | None:
    # A call that was killed early may have left recipes.
    return Comparison.read(out) if Comparison(out, (), ()).directory.is_begun(["recipes", "values"]) else None


def finish_comparison(
    comparison: Comparison, *, workers: int = 1, report: Callable[[str], object] | None = None
) -> None:
    """Train the unfinished runs, and write tables and plots."""
    report = report or getLogger("proxemic").info
    pool = Workers(workers)
    with comparison.directory.at_work(alone=True):
        begun = _begun(comparison.path)
        # Another process may have added recipes or seeds since this process read the directory.
        if begun and not ({*begun.entries} <= {*comparison.entries} and {*begun.seeds} <= {*comparison.seeds}):
            raise UserError(f"Another process has added to {comparison.path} in the meantime: run the command again.")
        cells = list(comparison.cells())
        waiting = {cell.path: cell for cell in cells if cell.result() is None}
        comparison.write()
        report(
            f"{comparison.path}: {len(comparison.entries)} recipes × {len(comparison.seeds)} seeds, {len(cells)} "
            f"cells, {len(cells) - len(waiting)} finished before"
        )
        began, numbers = time.monotonic(), itertools.count(1)

        def on_result(job: Job, metrics: Mapping[str, Any]) -> None:
            cell, result = waiting[job.out], waiting[job.out].result()
            name = comparison.shown_metrics([cell.entry])[0]
            assert result is not None
            value, duration = f"{100 * metrics['test'][name]:.2f}", format_seconds(result.seconds)
            tell(f"{cell}: {name} {value}, epoch {result.epoch}, {duration} of training")

        def on_failure(job: Job, error: Exception) -> None:
            # The comparison names its own command at the end; this one would train with other threads.
            reason = re.sub(r" Then continue with proxemic train --resume \S+\.$", "", str(error))
            waiting[job.out].fail(reason)
            tell(f"{waiting[job.out]} FAILED: {reason}")

        def tell(line: str) -> None:
            write_tables(comparison)
            number = next(numbers)
            left = len(waiting) - number
            rest = f"; {left} left, about {time_left(began, number, left)}" if left else ""
            report(f"[{number}/{len(waiting)}] {line}{rest}")

        jobs = []
        for cell in waiting.values():
            cell.forget_failure()
            jobs.append(Job(comparison.recipe_file(cell.entry.slug), ("--seed", str(cell.seed)), cell.path))
        try:
            with pool:
                pool.run(jobs, on_result=on_result, on_failure=on_failure)
        finally:
            write_tables(comparison)  # after the workers have stopped, which may finish runs
        from proxemic.studies.comparison.plots import draw_curves, draw_points

        draw_points(comparison)
        draw_curves(comparison)
