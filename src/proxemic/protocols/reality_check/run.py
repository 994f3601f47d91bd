"""The reality check itself: what is compared, in which order the work is done, and what is kept of it."""

import contextlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import new_directory, remove_stale_temporaries, write_csv, write_json, write_text
from proxemic.locks import exclusive_lock
from proxemic.protocols.comparison.entries import find_names
from proxemic.protocols.directories import is_begun
from proxemic.protocols.reality_check.cross_validation import CrossValidation, plan_folds
from proxemic.protocols.reality_check.search import CheckSpaces, find_best
from proxemic.protocols.reality_check.tables import Repeats, ResultRow, markdown, result_rows
from proxemic.protocols.runs.jobs import Workers, going_on_with
from proxemic.protocols.tuning.spaces import load_space
from proxemic.recipes.flags import as_flags, read_flags

with optional_dependency("train"):
    import yaml

    from proxemic.protocols.tuning.run import recipe_file
    from proxemic.recipes.reader import read_recipe
    from proxemic.training.recipe import Recipe

SETTINGS = "reality-check.json"
SPACE = "space.json"
"""The search space of a recipe; null for the package's space of its loss."""


@dataclass(frozen=True)
class RealityCheck:
    """The arguments of `reality_check` that ``reality-check.json`` keeps."""

    recipes: tuple[str, ...]
    flags: tuple[str, ...] = ()
    trials: int = 50
    repeats: int = 10
    folds: int = 4
    embedding_size: int = 128
    metric: str = "map@r"
    seed: int = 0
    spaces: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, smallest in {"trials": 1, "repeats": 1, "folds": 2, "embedding_size": 1}.items():
            if (value := getattr(self, name)) < smallest:
                raise ValueError(f"--{name.replace('_', '-')} is {value}, but must be at least {smallest}.")
        if not self.recipes:
            raise ValueError("There is no recipe: name at least one that proxemic recipes list prints.")
        if len(self.spaces) not in (0, 1, len(self.recipes)):
            raise ValueError(
                f"--space is given {len(self.spaces)} times, but must be given once, or once for each of the "
                f"{len(self.recipes)} recipes, in their order."
            )
        if len({folder_of(recipe) for recipe in self.recipes}) < len(self.recipes):
            raise ValueError(f"The recipes are {', '.join(self.recipes)}, but each must have a name of its own.")

    @classmethod
    def read(cls, out: Path) -> "RealityCheck":
        """Read the check in a directory."""
        try:
            kept = json.loads((out / SETTINGS).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{out} holds no reality check: give the directory of one.") from error
        return cls(**kept | {name: tuple(kept.get(name, ())) for name in ("recipes", "flags", "spaces")})


@dataclass(frozen=True)
class RealityCheckResult:
    """The results of a reality check.

    Args:
        out: Its directory, with ``results.csv`` and ``table.md``.
        rows: The value of each metric of each repetition.
        table: Markdown, with one row per recipe.
        against_paper: Markdown beside what the papers print, if that was asked for.
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
    report: Callable[[str], object] | None = None,
) -> RealityCheckResult:
    """Tune each loss and evaluate it on unseen classes, or go on with what was begun in ``out``.

    Args:
        recipes: One per loss: names, patterns over the names as ``cub/reality-check/*``, YAML files, or recipes, which
            are then named by their loss.
        out: The directory: new, or that of the same check, which then goes on; None makes one under ``runs``.
        overrides: Values of all recipes by dotted keys, such as ``{"training.epochs": 20}``.
        trials: Bayesian trials per loss, at least 1; each trains all folds. Where a recipe has two phases, as many
            trials of the second follow, which begin with the best of the first.
        repeats: Seeds with the best hyper-parameters, at least 1; an interval needs 2.
        folds: Class-disjoint parts of the training classes, 2 or more.
        embedding_size: Embedding size of each fold's model; the complete one has ``folds`` times as much.
        metric: What the trials maximise: its mean over the folds, each at its best epoch.
        seed: Seed of the search and of the folds.
        spaces: Names of search spaces of the package, or YAML files: one for all recipes, or one for each; by default
            those of the losses.
        workers: Training processes at a time.
        resume: Go on with the check in this directory, with the settings that it has.
        against: Also compare with what the papers print, in ``against-paper.md``.
        report: Is called with lines of progress; None logs them.

    Raises:
        Interrupted: After Ctrl-C; the same call goes on.
        UserError: If the directory holds something else, a recipe is refused, or a training fails.
        ValueError: If a number is out of range, or a recipe is named twice.
    """
    if resume is not None:
        if recipes or out is not None or overrides:
            raise UserError(
                "--resume takes everything but --workers and --against from the check that it goes on with."
            )
        out, made = Path(resume), {}
        check = RealityCheck.read(out)
    else:
        named = [_loss_name(recipe) if isinstance(recipe, Recipe) else str(recipe) for recipe in recipes]
        made = {name: recipe for name, recipe in zip(named, recipes, strict=True) if isinstance(recipe, Recipe)}
        patterns = [find_names([name]) if {"*", "?"} & set(name) else [name] for name in named]
        names = tuple(name for matches in patterns for name in matches)
        flags, known = as_flags(overrides or {}), tuple(spaces)
        check = RealityCheck(names, flags, trials, repeats, folds, embedding_size, metric, seed, known)
        out = new_directory("reality-check") if out is None else Path(out)
    results = _check(check, made, out, workers, report or logging.getLogger("proxemic").info)
    text = None
    if against is not None:
        from proxemic.protocols.reality_check.against_paper import reality_against_paper

        text = reality_against_paper(check, out, results)
        write_text(out / "against-paper.md", text)
    return RealityCheckResult(out, tuple(result_rows(results)), markdown(results, check.repeats), text)


def _check(
    check: RealityCheck, made: Mapping[str, Recipe], out: Path, workers: int, report: Callable[[str], object]
) -> dict[str, Repeats]:
    names = check.spaces * len(check.recipes) if len(check.spaces) == 1 else check.spaces
    # All are read before any is trained.
    plans = {
        recipe: _plan(check, recipe, made.get(recipe, recipe), space, out / folder_of(recipe))
        for recipe, space in zip_longest(check.recipes, names)
    }
    _begin(check, out)
    report(
        f"{out}: {len(plans)} losses, for each {check.trials} trials of {check.folds} folds (and as many of a second "
        f"phase), then {check.repeats} repetitions"
    )
    results: dict[str, Repeats] = {}
    with exclusive_lock(out), going_on_with(f"proxemic reality-check --resume {out}"), Workers(workers) as pool:
        remove_stale_temporaries(out)
        for recipe, (plan, content, spaces) in plans.items():
            validation = CrossValidation(plan, out / folder_of(recipe), pool, folds=check.folds, metric=check.metric)
            write_json(validation.out / SPACE, {"stages": content})
            kept = validation.out / "best.json"
            if not kept.exists():
                parameters, value = find_best(
                    spaces,
                    validation,
                    trials=check.trials,
                    seed=check.seed,
                    report=lambda line, recipe=recipe: report(f"{recipe}: {line}"),
                )
                write_json(kept, {"parameters": parameters, check.metric: value})
            validation.drop_weights("*trials")
            flags = spaces.flags(json.loads(kept.read_text(encoding="utf-8"))["parameters"])
            repeats: dict[int, Mapping[str, Mapping[str, float]]] = {}
            results[recipe] = repeats
            for number in range(check.repeats):
                repeats[number] = validation.repeat(number, flags)
                values = ", ".join(
                    f"{kind} {100 * metrics[check.metric]:.2f}" for kind, metrics in repeats[number].items()
                )
                report(f"{recipe}: repetition {number + 1}/{check.repeats}: test {check.metric} {values}")
                write_csv(out / "results.csv", ResultRow._fields, result_rows(results))
                write_text(out / "table.md", markdown(results, check.repeats))
    return results


def _plan(
    check: RealityCheck, name: str, recipe: Recipe | str, space: str | None, folder: Path
) -> tuple[dict[str, str], list[Any] | None, CheckSpaces]:
    """The recipes of the folds, the content of a space that is given, and what is searched.

    A recipe or a space that can no longer be read is taken from the recipe's folder in the directory of the check.
    """
    begun = folder / "recipes"
    content = _content_of(space, folder)
    where, pinned = f"The search space {space or f'of the loss of {name}'}", read_flags(check.flags)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(recipe_file(recipe))
        except UserError:
            if not (begun / "base.yaml").exists():
                raise
            plan = {path.stem: path.read_text(encoding="utf-8") for path in begun.glob("*.yaml")}
            return plan, content, CheckSpaces.of(yaml.safe_load(plan["base"]), pinned, content, where)
        plan = plan_folds(
            file,
            check.flags,
            folds=check.folds,
            embedding_size=check.embedding_size,
            metric=check.metric,
            split_seed=check.seed,
        )
        base = yaml.safe_load(plan["base"])
        spaces = CheckSpaces.of(base, pinned, content, where)
        try:
            flags = (*check.flags, *spaces.first.flags(spaces.first.middle()))
            read = read_recipe(file, flags, own_code=True)
            if base["second_phase"] is not None:
                second = spaces.second(yaml.safe_load(read.yaml))
                read = read_recipe(file, (*flags, *second.flags(second.middle())), own_code=True)
            made = read.recipe
        except (UserError, ValueError) as error:
            raise UserError(f"{where} does not fit {name}: {error}") from error
        if not begun.exists():
            made.load()  # a folder that is missing is refused before anything is written
    return plan, content, spaces


def _content_of(space: str | None, folder: Path) -> list[Any] | None:
    if space is None:
        return None
    kept = folder / SPACE
    before = json.loads(kept.read_text(encoding="utf-8"))["stages"] if kept.exists() else None
    try:
        content = load_space(space)
    except UserError:
        if before is None:
            raise
        return before
    if before not in (None, content):
        raise UserError(
            f"{folder.parent} was begun with another search space than {space} is now: restore it, or take a new --out."
        )
    return content


def _begin(check: RealityCheck, out: Path) -> None:
    if not is_begun(out, SETTINGS, "a reality check"):
        write_json(out / SETTINGS, asdict(check))
        return
    kept, wanted = ({**asdict(each), "flags": dict(read_flags(each.flags))} for each in (RealityCheck.read(out), check))
    if kept != wanted:
        raise UserError(f"{out} holds a reality check with other settings: give the same, or a new --out.")


def _loss_name(recipe: Recipe) -> str:
    loss: Any = recipe.loss
    return getattr(loss, "func", loss).__name__


def folder_of(recipe: str) -> str:
    """The folder of a recipe in the directory of a check."""
    path = Path(recipe)
    return path.stem if path.suffix in (".yaml", ".yml") else recipe.replace("/", "-")
