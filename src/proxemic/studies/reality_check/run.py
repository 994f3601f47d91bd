"""Run a reality check: read its recipes, tune them, repeat the best, and write the tables."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from proxemic.arguments import changed_arguments
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import new_directory, write_csv, write_text
from proxemic.recipes.flags import as_flags
from proxemic.studies.comparison.entries import find_names
from proxemic.studies.jobs import Workers
from proxemic.studies.reality_check.cross_validation import CrossValidation, Results, kept_repeat, plan_folds
from proxemic.studies.reality_check.directory import RealityCheck, directory_of, folder_of, recipe_file
from proxemic.studies.reality_check.tables import ResultRow, markdown, reality_against_paper, result_rows
from proxemic.tables import percent

with optional_dependency("train"):
    import yaml

    from proxemic.recipes.reader import read_recipe
    from proxemic.studies.tuning.curves import read_trials
    from proxemic.studies.tuning.directory import TuningOptions
    from proxemic.studies.tuning.run import plan_space
    from proxemic.studies.tuning.run import recipe_file as file_of
    from proxemic.studies.tuning.search import Search, drop_weights
    from proxemic.studies.tuning.study import storage_errors
    from proxemic.training.recipe import Recipe


@dataclass(frozen=True)
class RealityCheckResult:
    """The results of a reality check.

    Args:
        out: Directory of the check, with ``results.csv`` and ``table.md``.
        rows: Value of each metric in each repetition.
        table: Markdown table with one row per recipe.
        against_paper: Markdown with the papers' figures next to ours, if requested.
    """

    out: Path
    rows: tuple[ResultRow, ...]
    table: str
    against_paper: str | None = None


def reality_check(
    recipes: Sequence[Recipe | str | Path] = (),
    *,
    out: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    trials: int = 50,
    repeats: int = 10,
    folds: int = 4,
    embedding_size: int = 128,
    metric: str = "map@r",
    seed: int = 0,
    spaces: Sequence[str] = (),
    workers: int = 1,
    resume: str | Path | None = None,
    against: Literal["paper"] | None = None,
    dry_run: bool = False,
    report: Callable[[str], object] | None = None,
) -> RealityCheckResult:
    """Tune each loss and evaluate it on unseen classes, or continue the check in ``out``.

    Args:
        recipes: One recipe per loss: names, patterns of names such as ``cub/reality-check/*``, YAML files, or recipes,
            which are named by their loss.
        out: Directory of the check: a new one, or the directory of the same check to continue it; None creates one
            under ``runs``.
        overrides: Values of all recipes by dotted keys, such as ``{"training.epochs": 20}``.
        trials: Number of Bayesian trials per loss, at least 1; each trains all folds, in both phases of the recipe.
        repeats: Number of seeds for the best hyper-parameters, at least 1; an interval needs 2.
        folds: Number of class-disjoint parts of the training classes, at least 2.
        embedding_size: Embedding size of each fold's model; that of the complete model is ``folds`` times as large.
        metric: Metric to maximise: its mean over the folds, each at its best epoch.
        seed: Seed of the tuning and of the folds.
        spaces: Names of search spaces of the package, or YAML files: one for all recipes, or one for each; by default
            the spaces of the losses.
        workers: Number of training processes.
        resume: Continue the check in this directory with its own settings.
        against: Also write ``against-paper.md`` with the papers' figures next to ours.
        dry_run: Check the arguments and report what is finished, but train and write nothing.
        report: Called with lines of progress; None logs them.

    Raises:
        Interrupted: After Ctrl-C; the same call continues.
        UserError: If the directory holds other files, a recipe is refused, or a training fails.
        ValueError: If a number is out of range, or a recipe is named twice.
    """
    given = changed_arguments(reality_check, locals())
    if resume is not None:
        if others := given - {"resume", "workers", "against", "dry_run", "report"}:
            raise UserError(f"resume takes all settings from the check that it continues: leave out {min(others)}.")
        directory = directory_of(Path(resume))
        check = directory.read()
        files = {recipe: recipe_file(directory.path / folder_of(recipe)) for recipe in check.recipes}
        bases = {recipe: file.read_text(encoding="utf-8") for recipe, file in files.items()}
    else:
        named = [_loss_name(recipe) if isinstance(recipe, Recipe) else str(recipe) for recipe in recipes]
        made = {name: recipe for name, recipe in zip(named, recipes, strict=True) if isinstance(recipe, Recipe)}
        patterns = [find_names([name]) if {"*", "?"} & set(name) else [name] for name in named]
        names = tuple(name for matches in patterns for name in matches)
        if len(spaces) not in (0, 1, len(names)):
            raise ValueError(
                f"--space is given {len(spaces)} times, but must be given once, or once for each of the {len(names)} "
                "recipes, in their order."
            )
        flags = tuple(as_flags(overrides or {}))
        check = RealityCheck(names, flags, trials, repeats, folds, embedding_size, metric, seed)
        directory = directory_of(new_directory("reality-check") if out is None else Path(out))
        begun = directory.is_begun([folder_of(recipe) for recipe in names])
        searched = [*spaces] * len(names) if len(spaces) == 1 else spaces
        read = {  # all are read before any is trained
            recipe: _read(check, recipe, made.get(recipe, recipe), space, new=not begun)
            for recipe, space in zip_longest(names, searched)
        }
        bases = {recipe: base for recipe, (base, _) in read.items()}
        check = replace(check, spaces=tuple(content for _, content in read.values()))
        files = {recipe_file(directory.path / folder_of(recipe)): base for recipe, base in bases.items()}
        if not dry_run:
            directory.begin(check, files)
    report = report or logging.getLogger("proxemic").info
    path = directory.path
    results = _finished(check, path)
    if dry_run:
        for recipe in check.recipes:
            trials_file = path / folder_of(recipe) / "trials.csv"
            made = len(read_trials(trials_file)) if trials_file.exists() else 0
            report(
                f"{recipe}: {made} of {check.trials} trials of {check.folds} folds finished, "
                f"{len(results[recipe])} of {check.repeats} repetitions"
            )
    else:
        report(
            f"{path}: {len(bases)} losses, for each {check.trials} trials of {check.folds} folds, then {check.repeats} "
            "repetitions"
        )
        with directory.at_work(alone=True), Workers(workers) as pool:
            for (recipe, base), space in zip(bases.items(), check.spaces, strict=True):
                validation = CrossValidation(path / folder_of(recipe), base, check, pool)
                say = partial(_say, report, recipe)
                best = as_flags(_search(validation, space, say))
                for number in range(check.repeats):
                    results[recipe][number] = validation.repeat(number, best)
                    shown = (
                        f"{kind} {percent(values[check.metric])}" for kind, values in results[recipe][number].items()
                    )
                    say(f"repetition {number + 1}/{check.repeats}: test {check.metric} {', '.join(shown)}")
                    write_csv(path / "results.csv", ResultRow._fields, result_rows(results))
                    write_text(path / "table.md", markdown(results, check.repeats))
    text = None
    if against is not None:
        text = reality_against_paper(check, {name: yaml.safe_load(base) for name, base in bases.items()}, results)
        if not dry_run:
            write_text(path / "against-paper.md", text)
    return RealityCheckResult(path, tuple(result_rows(results)), markdown(results, check.repeats), text)


def _say(report: Callable[[str], object], recipe: str, line: str) -> None:
    report(f"{recipe}: {line}")


def _finished(check: RealityCheck, path: Path) -> dict[str, dict[int, Results]]:
    """Read the results of finished repetitions, by recipe and number."""
    kept = {
        recipe: {number: kept_repeat(path / folder_of(recipe), number) for number in range(check.repeats)}
        for recipe in check.recipes
    }
    return {
        recipe: {number: results for number, results in repeats.items() if results is not None}
        for recipe, repeats in kept.items()
    }


def _search(validation: CrossValidation, space: dict[str, Any], report: Callable[[str], object]) -> Mapping[str, Any]:
    """Tune a loss by the mean over its folds, and return the best values by key of the recipe."""
    check, out = validation.check, validation.out
    options = TuningOptions(out.name, [], space, check.trials, "reality-check", check.seed)
    where, base = out.parent / "reality-check.json", recipe_file(out)
    search = Search(out, base, options, report, where=where, metric=check.metric, objective=validation.evaluate)
    with storage_errors(search.storage):
        best, finished = search.run(seed=check.seed, alone=True)
    for trial in finished:
        drop_weights(search.trial_folder(trial.number))
    return best.parameters


def _read(
    check: RealityCheck, name: str, recipe: Recipe | str, space: str | None, *, new: bool
) -> tuple[str, dict[str, Any]]:
    """Read a recipe and its search space, and check that they fit each other and, in a new check, the images."""
    with file_of(recipe) as file:
        read = read_recipe(file, check.flags, own_code=True)
        if new:
            splits = read.recipe.load()
            classes = splits.train.num_classes + (splits.validation.num_classes if splits.validation else 0)
            if classes < 2 * check.folds:
                raise ValueError(
                    f"--folds is {check.folds}, but a fold needs 2 classes, and {name} has {classes} training classes: "
                    f"take at most {classes // 2} folds."
                )
        try:
            content, _ = plan_space(file, check.flags, space)
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
    if "training.epochs" in content:
        raise UserError(
            f"The search space {space} has training.epochs, but the phases of a reality check take the recipe's "
            "epochs, or end at a plateau: leave it out."
        )
    plan_folds(yaml.safe_load(read.yaml), name, check)  # refuses recipes that cannot be trained on folds
    return read.yaml, content


def _loss_name(recipe: Recipe) -> str:
    loss: Any = recipe.loss
    return getattr(loss, "func", loss).__name__
