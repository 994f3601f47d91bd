"""The commands that train many runs: comparisons, hyper-parameter tuning, reality checks."""

from collections.abc import Sequence
from functools import partial
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

    Every recipe is trained with every seed and compared on each data set: means with 95% intervals, differences paired
    by seed. With --paired N, every recipe is trained at N configurations drawn from the search space, to see whether
    the change that --vary names helps at many values. Finished runs are reused: the same command with the same --out
    continues, and adds recipes or seeds. Every value of a recipe is a flag, for all recipes: --data.root DIR,
    --training.epochs 5, ...

    Args:
        recipes (RECIPE)
        seeds (N|LIST): Their number, such as 5 for 0 to 4, or a list, such as 0,1,2 (default: 5).
        vary (KEY=LIST|FILE)
        paired (N)
        space (NAME|FILE)
        around (NAME|FILE)
        out (DIR)
        resume (DIR)
        baseline (RECIPE)
        metrics (LIST)
    """
    if studied := ", ".join(recipes) or options.get("resume"):
        _say(f"Comparing {studied}")  # before seconds of imports
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


@options_of("proxemic:reality_check")
def reality_check(recipes: Sequence[str] = (), /, *, overrides: "Flags", **options: Any) -> None:
    """Tune losses with the same budget by cross-validation, and evaluate each repeatedly on unseen classes.

    For each recipe, Bayesian trials come first, each a class-disjoint cross-validation inside the training classes.
    Then the training is repeated with the best values, and evaluated on the test classes: the folds' models
    (separated), their concatenated embeddings, and one model on all training classes (complete). Every value of a
    recipe is a flag, for all recipes: --data.root DIR, --training.epochs 20, ... After Ctrl-C or a kill, the same
    command with the same --out, or --resume, continues.

    Args:
        recipes (RECIPE)
        out (DIR)
        resume (DIR)
        spaces (NAME|FILE): The search space: a loss's name, or a YAML file (default: that of the loss); once, or once
            for each recipe.
    """
    if studied := ", ".join(recipes) or options.get("resume"):
        _say(f"Checking {studied}")  # before seconds of imports
    from proxemic import reality_check

    result = reality_check(recipes, overrides=overrides, report=_say, **options)
    if not options.get("dry_run"):
        print(f"Wrote {result.out}/table.md and {result.out}/results.csv\n")
    print(result.table)
    if result.against_paper is not None:
        print(result.against_paper)


@options_of("proxemic:tune")
def tune(*, recipe: str | None = None, resume: str | None = None, overrides: "Flags", **options: Any) -> None:
    """Tune a recipe's hyper-parameters on validation classes.

    Optuna maximises a metric on classes held out from training; the test classes are never used. The same command with
    --out in several terminals, or with the same --storage and --study on several machines, shares the trials; --resume
    continues after an interruption. Every value of the recipe is a flag: --data.root DIR, --training.epochs 20, --loss
    ProxyAnchorLoss, ...

    Args:
        space (NAME|FILE)
        around (NAME|FILE)
        budget (N)
        first (NAME|FILE ...)
        out (DIR)
        storage (URL)
        resume (DIR)
    """
    if recipe is not None:
        from proxemic.recipes import find_recipe

        find_recipe(recipe)
    if studied := recipe or resume:
        _say(f"Tuning {studied}")  # before seconds of imports
    from proxemic import tune

    result = tune(recipe, resume=resume, overrides=overrides, report=_say, **options)
    print(
        f"Best: {100 * result.value:.2f} % on validation classes; as the best of many trials, this is biased upwards. "
        f"Train and test it: proxemic train --recipe {result.best_recipe}"
    )
