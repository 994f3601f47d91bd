"""Train recipes with several seeds, or at paired configurations, keep finished runs, and write tables and plots."""

import itertools
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from tempfile import TemporaryDirectory
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
    paired: int | None = None,
    space: str | None = None,
    around: str | Path | None = None,
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
            recipe with each of them. May be repeated. The recipes are written to ``out/values``. A YAML file is another
            recipe to compare.
        paired: Instead of ``seeds``: draw this many configurations from ``space``, at least 3, and train every recipe
            at each, otherwise the same. The differences are paired by configuration, whose number is the seed.
        space: Search space of the configurations: a name, or a YAML file; None takes that of the first recipe's loss.
            Keys in which the recipes differ are not drawn.
        around: Recipe (name or file) near whose values configurations are drawn: within a quarter of each range on
            either side; None draws from the whole ranges.
        overrides: Values of every recipe by dotted key, such as ``{"training.epochs": 5}``.
        resume: Directory of a comparison to continue with its own recipes, seeds and overrides.
        workers: Number of processes that train, at least 1; the results do not depend on it.
        baseline: Name or pattern of the recipe that others with the same data are compared with; None takes the first.
        metrics: Metrics to show; if empty, those of ``recall@1``, ``map@r`` and ``ndcg@8`` that are computed.
        against: Also write ``against-paper.md`` with the papers' figures for the table rows that the recipes reproduce.
        dry_run: Check the arguments, but train and write nothing.
        report: Called with a line for each finished run. None logs the lines.

    Returns:
        The comparison with its results. ``table.md`` lists failed runs; another call tries them again.

    Raises:
        UserError: If an argument or a recipe is refused, before anything is written; `Interrupted` after Ctrl-C.
        ValueError: If ``workers`` is below 1.
    """
    if resume is not None:
        if recipes or seeds is not None or out or overrides or vary or paired or space or around:
            raise UserError(
                "--resume takes recipes, seeds and flags from the comparison that it continues: leave them out, or "
                f"give all of them with --out {resume} to add some."
            )
        comparison = _with_view(Comparison.read(Path(resume)), baseline, metrics)
    else:
        if paired is None and (space or around):
            raise UserError("--space and --around are for drawing configurations: give --paired N, too.")
        if paired is not None and seeds is not None:
            raise UserError("--paired trains each configuration with a seed of its own: leave --seeds out.")
        out = Path(out) if out else new_directory("compare")
        names = find_names([str(recipe) for recipe in recipes])
        flags = as_flags(overrides or {})
        begun = _begun(out)  # refuses a folder with other files before anything is written
        if begun and begun.configurations and paired is None:
            raise UserError(f"{out} has paired configurations: give --paired, or another --out.")
        with TemporaryDirectory() as folder:
            place = Path(folder) if dry_run else out
            names, left = _varied(names, vary, place, flags)
            if dry_run and begun and vary:  # the recipes in the directory have the same content
                names, left = [], begun.flags
            numbers = range(paired) if paired and paired > 0 else seeds
            comparison = plan_comparison(
                names, numbers, out, left, baseline=baseline, metrics=metrics, own_code=not dry_run
            )
        if paired is not None:
            comparison = _with_configurations(
                comparison, paired, space, around, flags, report or getLogger("proxemic").info
            )
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


def _varied(names: Sequence[str], vary: Sequence[str], out: Path, flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the recipes to compare, and the flags that they do not have yet; values of keys are written to ``out``."""
    files = [text for text in vary if Path(text).is_file() or (Path(text).suffix == ".yaml" and "=" not in text)]
    keys = [text for text in vary if text not in files]
    if not vary:
        return [*names], [*flags]
    if len(names) > 1:
        raise UserError("--vary takes one recipe: leave out the others, or give them by --vary FILE.yaml.")
    if not keys:
        return [*names, *find_names(files)], [*flags]
    if files:
        raise UserError("--vary is given a key and a file: give only one of them.")
    from proxemic.studies.comparison.vary import read_sweeps, write_points  # which import torch

    points = write_points(names[0], read_sweeps(keys), out, flags)
    return [name for point in points.values() for name in point], []


def _with_configurations(
    comparison: Comparison,
    count: int,
    space: str | None,
    around: str | Path | None,
    flags: Sequence[str],
    report: Callable[[str], object],
) -> Comparison:
    """Draw the configurations of a comparison, and more of them than it has."""
    from proxemic.studies.comparison.configurations import plan_configurations  # imports torch

    before = comparison.configurations
    drawn, note = plan_configurations(comparison.entries, max(count, len(before)), space, around, flags)
    if before != drawn[: len(before)] or (not before and _begun(comparison.path)):
        raise UserError(f"{comparison.path} was begun with other configurations: give the same, or another --out.")
    report(note)
    return replace(comparison, configurations=drawn, seeds=tuple(range(len(drawn))))


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
        report(f"{comparison.path}: {comparison.size}, {len(cells)} cells, {len(cells) - len(waiting)} finished before")
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
            jobs.append(cell.job)
        try:
            with pool:
                pool.run(jobs, on_result=on_result, on_failure=on_failure)
        finally:
            write_tables(comparison)  # after the workers have stopped, which may finish runs
        from proxemic.studies.comparison.plots import draw_curves, draw_points

        draw_points(comparison)
        draw_curves(comparison)
