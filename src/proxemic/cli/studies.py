"""The commands that train many runs: comparisons, searches for hyper-parameters, reality checks."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from proxemic.cli.derive import options_of
from proxemic.cli.runs import print_report
from proxemic.errors import UserError

if TYPE_CHECKING:
    from proxemic.recipes.flags import Flags

_say = partial(print, flush=True)  # hours may pass between two lines


@options_of("proxemic:compare")
def compare(
    recipes: Sequence[str] = (),
    /,
    *,
    against: Literal["paper"] | None = None,
    dry_run: bool = False,
    overrides: "Flags",
    **options: Any,
) -> None:
    """Compare recipes over seeds: tables with intervals, paired differences, plots.

    Every recipe is trained with every seed, and compared on each data set: means with 95% intervals, differences paired
    by seed. Finished runs are kept: the same command with the same --out goes on, and with more recipes or seeds it
    adds them. Every value of a recipe is a flag, for all of them: --data.root DIR, --training.epochs 5, ...

    Args:
        recipes (RECIPE)
        seeds (N|LIST): How many, as 5 for 0 to 4, or which: 0,1,2 (default: 5).
        out (DIR)
        resume (DIR)
        baseline (RECIPE)
        metrics (LIST)
    """
    if what := ", ".join(recipes) or options.get("resume"):
        _say(f"Comparing {what}")  # before what takes seconds to import
    from proxemic import compare
    from proxemic.studies.comparison import against_paper, markdown

    options |= {"against": against, "dry_run": dry_run}
    comparison = compare(recipes, overrides=overrides or None, report=_say, **options)
    print(comparison.states() if dry_run else markdown(comparison))
    if against:
        print(against_paper(comparison))
    if dry_run:
        return
    print(f"Wrote {comparison.path}")
    from proxemic.report import write_comparison_report

    write = partial(write_comparison_report, comparison, out=comparison.path / "report.html")
    print_report(write, f"proxemic compare --resume {comparison.path}")
    if failed := comparison.failed():
        raise UserError(
            f"{len(failed)} of {len(list(comparison.cells()))} runs failed, the first of them {failed[0]}: "
            f"{failed[0].failure} Those left are tried again by proxemic compare --resume {comparison.path}"
        )


@options_of("proxemic:reality_check", but=["spaces"])
def reality_check(
    recipes: Sequence[str] = (),
    /,
    *,
    space: Sequence[str] = (),
    out: str | None = None,
    resume: Path | None = None,
    workers: int = 1,
    against: Literal["paper"] | None = None,
    overrides: "Flags",
    **options: Any,
) -> None:
    """Tune losses alike by cross-validation and evaluate them on unseen classes, many times.

    For each recipe: Bayesian trials, each a class-disjoint cross-validation inside the training classes; where it has a
    second phase, as many trials of that phase, each from the best of the first; then repetitions with the best values,
    evaluated on the test classes: the folds' models (separated), their joined embeddings (concatenated), and one model
    on all training classes (complete). Every value of a recipe is a flag, for all of them: --data.root DIR,
    --training.epochs 20, ... The same command with the same --out, or --resume, goes on where it was, after Ctrl-C or a
    kill.

    Args:
        recipes (RECIPE)
        out (DIR)
        resume (DIR)
        space (NAME|FILE): What is searched: a loss's name, or a YAML file (default: that of the loss); once, or once
            for each recipe.
    """
    if what := ", ".join(recipes) or resume:
        _say(f"Checking {what}")  # before what takes seconds to import
    if resume is not None and (recipes or space or options):
        raise UserError("--resume takes everything but --workers and --against from the check that it goes on with.")
    from proxemic import reality_check

    options |= {"out": out, "resume": resume, "workers": workers, "against": against}
    result = reality_check(recipes, spaces=space, overrides=overrides, report=_say, **options)
    print(f"Wrote {result.out}/table.md and {result.out}/results.csv\n")
    print(result.table)
    if result.against_paper is not None:
        print(result.against_paper)


@options_of("proxemic:tune")
def tune(
    *,
    recipe: str | None = None,
    around: str | None = None,
    out: Path | None = None,
    storage: str | None = None,
    workers: int = 1,
    resume: Path | None = None,
    overrides: "Flags",
    **options: Any,
) -> None:
    """Search for a recipe's hyper-parameters on validation classes.

    Optuna searches on classes held out from training; the test classes are never looked at. The same command with --out
    in several terminals, or with the same --storage and --study on several machines, shares the trials; a search that
    was stopped goes on with --resume. Every value of the recipe is a flag: --data.root DIR, --training.epochs 20,
    --loss ProxyAnchorLoss, ...

    Args:
        space (NAME|FILE)
        around (NAME|FILE)
        budget (N)
        first (NAME|FILE ...)
        out (DIR)
        storage (URL)
        resume (DIR)
    """
    if resume is not None and (recipe or around or options):
        raise UserError("--resume takes everything from the search that it goes on with: give it alone.")
    if recipe is not None:
        from proxemic.recipes import find_recipe

        find_recipe(recipe)
    if what := recipe or resume:
        _say(f"Searching for the hyper-parameters of {what}")  # before what takes seconds to import
    from proxemic import tune

    options |= {"around": around, "out": out, "storage": storage, "workers": workers, "resume": resume}
    result = tune(recipe, overrides=overrides, report=_say, **options)
    print(
        f"Best: {100 * result.value:.2f} % on validation classes, of many trials and so too good to be expected again. "
        f"Train and test it: proxemic train --recipe {result.best_recipe}"
    )
