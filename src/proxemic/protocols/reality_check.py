"""The reality check: every loss tuned alike by cross-validation, then judged on unseen classes, many times.

Musgrave, Belongie, Lim, "A Metric Learning Reality Check", ECCV 2020, as in the warping paper (Tables VI-VIII).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from proxemic.errors import UserError
from proxemic.extras import extra
from proxemic.files import remove_stale_temporaries, write_json
from proxemic.locks import LOCK, alone_in
from proxemic.protocols.cross_validation import CrossValidation, FoldFailed, plan_folds
from proxemic.protocols.jobs import Workers, going_on_with
from proxemic.protocols.joint_space import JointSpace
from proxemic.protocols.reality_tables import Repeats, write_results
from proxemic.protocols.search import Finished, Trial, TrialFailed, search

with extra("train"):
    import yaml

    from proxemic.recipes import find_recipe
    from proxemic.recipes.reader import read_recipe

__all__ = ["RealityCheck", "check_reality", "folder_of"]


@dataclass(frozen=True)
class RealityCheck:
    """What is compared, and how thoroughly.

    Args:
        recipes: Names or files, one a loss.
        flags: What overrides each of them.
        trials: Bayesian trials a loss, at least 1; each trains all folds.
        repeats: Seeds with the best hyper-parameters, at least 1; without 2 there is no interval.
        folds: Class-disjoint parts of the training classes, 2 or more.
        embedding_size: Of each fold's model; the complete one has ``folds`` times as much.
        metric: What the trials maximise: its mean over the folds, each at its best epoch.
        seed: Of the search and of the folds.

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

    def __post_init__(self) -> None:
        for name, smallest in {"trials": 1, "repeats": 1, "folds": 2, "embedding_size": 1}.items():
            if getattr(self, name) < smallest:
                raise ValueError(
                    f"--{name.replace('_', '-')} is {getattr(self, name)}, but must be at least {smallest}."
                )
        if not self.recipes:
            raise ValueError("There is no recipe: name at least one that proxemic recipes list prints.")
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
        f"{out}: {len(plans)} losses, for each {check.trials} trials of {check.folds} folds, then {check.repeats} "
        "repetitions"
    )
    results: dict[str, Repeats] = {}
    with alone_in(out), going_on_with(f"proxemic reality-check --resume {out}"), Workers(workers) as pool:
        remove_stale_temporaries(out)
        for recipe, plan in plans.items():
            validation = CrossValidation(plan, out / folder_of(recipe), pool, folds=check.folds, metric=check.metric)
            space = JointSpace.of(validation.base, check.flags)
            kept = validation.out / "best.json"
            if not kept.exists():
                best = _tune(check, space, validation, lambda line, recipe=recipe: report(f"{recipe}: {line}"))
                write_json(kept, {"parameters": dict(best.parameters), check.metric: best.value})
            flags = space.flags(json.loads(kept.read_text(encoding="utf-8"))["parameters"])
            repeats: dict[int, Mapping[str, Mapping[str, float]]] = {}
            results[recipe] = repeats
            for number in range(check.repeats):
                repeats[number] = validation.repeat(number, flags)
                found = {kind: f"{values[check.metric]:.4f}" for kind, values in repeats[number].items()}
                told = ", ".join(f"{kind} {value}" for kind, value in found.items())
                report(f"{recipe}: repetition {number + 1}/{check.repeats}: test {check.metric} {told}")
                write_results(out, results, check.repeats)
    return results


def _plan(check: RealityCheck, recipe: str, out: Path) -> dict[str, str]:
    """The recipes of the folds: as they were begun with where the recipe itself is out of reach by now."""
    folder = out / folder_of(recipe) / "recipes"
    try:
        file = find_recipe(recipe)
    except UserError:
        if not (folder / "base.yaml").exists():
            raise
        return {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    plan = plan_folds(
        file,
        check.flags,
        folds=check.folds,
        embedding_size=check.embedding_size,
        metric=check.metric,
        split_seed=check.seed,
    )
    space = JointSpace.of(yaml.safe_load(plan["base"]), check.flags)
    try:
        read = read_recipe(file, (*check.flags, *space.flags(space.middle())), own_code=True).recipe
    except (UserError, ValueError) as error:
        raise UserError(f"The search space of {recipe}'s loss does not fit it: {error}") from error
    if not folder.exists():
        read.load()  # a wrong folder is said before anything is written
    return plan


def _tune(
    check: RealityCheck, space: JointSpace, validation: CrossValidation, report: Callable[[str], object]
) -> Finished:
    def evaluate(trial: Trial) -> float:
        try:
            return validation.evaluate(space.flags(trial.parameters), validation.out / "trials" / str(trial.number))
        except FoldFailed as error:
            raise TrialFailed(str(error)) from error

    def tell(trial: Finished) -> None:
        value = trial.failure if trial.value is None else f"{check.metric} {trial.value:.4f}"
        report(f"trial {trial.number + 1}/{check.trials}, {check.folds} folds, {trial.seconds:.0f} s: {value}")

    return search(
        evaluate,
        space.dimensions,
        storage=f"sqlite:///{validation.out / 'study.db'}",
        study="reality-check",
        trials=check.trials,
        seed=check.seed,
        first=space.first(),
        on_trial=tell,
    )


def _begin(check: RealityCheck, out: Path) -> None:
    file = out / "reality-check.json"
    content = json.loads(json.dumps(asdict(check)))
    if file.exists():
        if json.loads(file.read_text(encoding="utf-8")) != content:
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
