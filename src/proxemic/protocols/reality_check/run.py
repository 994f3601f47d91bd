"""The reality check: every loss tuned alike by cross-validation, then judged on unseen classes, many times.

Musgrave, Belongie, Lim, "A Metric Learning Reality Check", ECCV 2020, as in the warping paper (appendix D, Tables VI to
VIII).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import remove_stale_temporaries, write_json
from proxemic.locks import LOCK, exclusive_lock
from proxemic.protocols.reality_check.cross_validation import CrossValidation, plan_folds
from proxemic.protocols.reality_check.search import drop_trials, find_best
from proxemic.protocols.reality_check.tables import Repeats, write_results
from proxemic.protocols.runs.jobs import Workers, going_on_with
from proxemic.protocols.tuning.joint_space import CheckSpaces
from proxemic.protocols.tuning.spaces import load_space

with optional_dependency("train"):
    import yaml

    from proxemic.recipes import find_recipe
    from proxemic.recipes.reader import read_recipe

__all__ = ["RealityCheck", "check_reality", "folder_of"]

SPACE = "space.json"
"""What is searched; null for the package's space of the loss."""


@dataclass(frozen=True)
class RealityCheck:
    """What is compared, and how thoroughly.

    Args:
        recipes: Names or files, one a loss.
        flags: What overrides each of them.
        trials: Bayesian trials a loss, at least 1; each trains all folds. Where a recipe has two phases, as many are
            made of the second, which begin with the best of the first.
        repeats: Seeds with the best hyper-parameters, at least 1; without 2 there is no interval.
        folds: Class-disjoint parts of the training classes, 2 or more.
        embedding_size: Of each fold's model; the complete one has ``folds`` times as much.
        metric: What the trials maximise: its mean over the folds, each at its best epoch.
        seed: Of the search and of the folds.
        spaces: Names of search spaces of the package, or YAML files: one for all recipes, or one for each; none takes
            those of the losses.

    Raises:
        ValueError: If a number is out of range, or a recipe is named twice.
    """

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
            if getattr(self, name) < smallest:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}, but must be at least {smallest}."
                )
        if not self.recipes:
            raise ValueError("There is no recipe: name at least one that proxemic recipes list prints.")
        if len(self.spaces) not in (0, 1, len(self.recipes)):
            raise ValueError(
                f"--space is given {len(self.spaces)} times, but must be given once, or once for each of the "
                f"{len(self.recipes)} recipes, in their order."
            )
        slugs = [folder_of(recipe) for recipe in self.recipes]
        if len(set(slugs)) < len(slugs):
            raise ValueError(f"The recipes are {', '.join(self.recipes)}, but each must have a name of its own.")


def check_reality(
    check: RealityCheck, out: Path, *, workers: int = 1, report: Callable[[str], object] = print
) -> dict[str, Repeats]:
    """Tune each loss, then judge it, or go on with what was begun in ``out``.

    Args:
        check: What to do.
        out: The directory; new, or that of the same check, which goes on where it was.
        workers: Training processes at a time.
        report: Is given lines for the user.

    Returns:
        Of each recipe the metrics of each repetition, by kind; they are also in ``results.csv`` and ``table.md``.

    Raises:
        Interrupted: After Ctrl-C; the same call goes on.
        UserError: If the directory holds something else, a recipe is refused, or a training fails.
    """
    plans = {recipe: _plan(check, recipe, out) for recipe in check.recipes}  # all are read before any is trained
    _begin(check, out)
    report(
        f"{out}: {len(plans)} losses, for each {check.trials} trials of {check.folds} folds (and as many of a second "
        f"phase), then {check.repeats} repetitions"
    )
    results: dict[str, Repeats] = {}
    with exclusive_lock(out), going_on_with(f"proxemic reality-check --resume {out}"), Workers(workers) as pool:
        remove_stale_temporaries(out)
        for recipe, (plan, content) in plans.items():
            validation = CrossValidation(plan, out / folder_of(recipe), pool, folds=check.folds, metric=check.metric)
            write_json(validation.out / SPACE, {"stages": content})
            spaces = CheckSpaces.of(validation.base, check.flags, content, _space_name(check, recipe))
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
            drop_trials(validation)
            flags = spaces.flags(json.loads(kept.read_text(encoding="utf-8"))["parameters"])
            repeats: dict[int, Mapping[str, Mapping[str, float]]] = {}
            results[recipe] = repeats
            for number in range(check.repeats):
                repeats[number] = validation.repeat(number, flags)
                found = {kind: f"{values[check.metric]:.4f}" for kind, values in repeats[number].items()}
                told = ", ".join(f"{kind} {value}" for kind, value in found.items())
                report(f"{recipe}: repetition {number + 1}/{check.repeats}: test {check.metric} {told}")
                write_results(out, results, check.repeats)
    return results


def _plan(check: RealityCheck, recipe: str, out: Path) -> tuple[dict[str, str], list[Any] | None]:
    """The recipes of the folds, and the search space: as they were begun with where they are out of reach by now."""
    folder = out / folder_of(recipe) / "recipes"
    content = _space(check, recipe, out)
    try:
        file = find_recipe(recipe)
    except UserError:
        if not (folder / "base.yaml").exists():
            raise
        return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}, content
    plan = plan_folds(
        file,
        check.flags,
        folds=check.folds,
        embedding_size=check.embedding_size,
        metric=check.metric,
        split_seed=check.seed,
    )
    base, name = yaml.safe_load(plan["base"]), _space_name(check, recipe)
    spaces = CheckSpaces.of(base, check.flags, content, name)
    try:
        flags = (*check.flags, *spaces.first.flags(spaces.first.middle()))
        read = read_recipe(file, flags, own_code=True)
        if base["second_phase"] is not None:
            second = spaces.second(yaml.safe_load(read.yaml))
            read = read_recipe(file, (*flags, *second.flags(second.middle())), own_code=True)
        made = read.recipe
    except (UserError, ValueError) as error:
        raise UserError(f"{name} does not fit {recipe}: {error}") from error
    if not folder.exists():
        made.load()  # a wrong folder is said before anything is written
    return plan, content


def _space(check: RealityCheck, recipe: str, out: Path) -> list[Any] | None:
    """The content of the space that is given for a recipe; None for its loss's."""
    kept = out / folder_of(recipe) / SPACE
    before = json.loads(kept.read_text(encoding="utf-8"))["stages"] if kept.exists() else None
    name = _given_space(check, recipe)
    if name is None:
        return None
    try:
        content = load_space(name)
    except UserError:
        if before is None:
            raise
        return before
    if before not in (None, content):
        raise UserError(
            f"{out} was begun with another search space than {name} is now: restore it, or take a new --out."
        )
    return content


def _given_space(check: RealityCheck, recipe: str) -> str | None:
    each = check.spaces * (len(check.recipes) if len(check.spaces) == 1 else 1)
    return dict(zip(check.recipes, each, strict=False)).get(recipe)


def _space_name(check: RealityCheck, recipe: str) -> str:
    return f"The search space {_given_space(check, recipe) or f'of the loss of {recipe}'}"


def _begin(check: RealityCheck, out: Path) -> None:
    file = out / "reality-check.json"
    content = json.loads(json.dumps(asdict(check)))
    if file.exists():
        if {"spaces": []} | json.loads(file.read_text(encoding="utf-8")) != content:
            raise UserError(f"{out} holds a reality check with other settings: give the same, or a new --out.")
    elif out.exists() and not (
        out.is_dir() and all(path.suffix == ".tmp" or path.name == LOCK for path in out.iterdir())
    ):
        raise UserError(f"{out} holds something else: give a new folder, or that of a reality check to go on with.")
    else:
        write_json(file, content)


def folder_of(recipe: str) -> str:
    """The folder of a recipe in the directory of a check."""
    path = Path(recipe)
    return path.stem if path.suffix in (".yaml", ".yml") else recipe.replace("/", "-")
