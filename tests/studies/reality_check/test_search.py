"""The searches of a reality check, with trainings that cost nothing, and the search spaces of both phases."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from images import write_folder, write_recipe
from proxemic.errors import TrainingDiverged, UserError
from proxemic.recipes import find_recipe, list_recipes
from proxemic.recipes.flags import apply_overrides, merge, read_flags
from proxemic.recipes.reader import read_recipe
from proxemic.studies.jobs import Job, Workers
from proxemic.studies.reality_check import cross_validation
from proxemic.studies.reality_check.cross_validation import CrossValidation, plan_folds
from proxemic.studies.reality_check.directory import RealityCheck
from proxemic.studies.reality_check.search import CheckSpaces, PhaseSpace, default_stages, find_best
from proxemic.studies.tuning.spaces import Range, load_space, recipe_value
from proxemic.studies.tuning.stages import middle


class FakeWorkers(Workers):
    """Gives every job the same result, or the same failure."""

    def __init__(self, outcome: dict[str, Any] | Exception) -> None:
        self.outcome = outcome
        self.jobs: list[Job] = []

    def run(
        self,
        jobs: Sequence[Job],
        *,
        on_result: Callable[[Job, dict[str, Any]], object],
        on_failure: Callable[[Job, Exception], object] | None = None,
    ) -> None:
        for job in jobs:
            self.jobs.append(job)
            if isinstance(self.outcome, dict):
                on_result(job, self.outcome)
            else:
                assert on_failure is not None
                on_failure(job, self.outcome)


CHECK = RealityCheck(("tiny",), trials=2, folds=2, embedding_size=8)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A recipe in full."""
    folder = tmp_path_factory.mktemp("plan")
    recipe = write_recipe(folder / "tiny.yaml", write_folder(folder / "images", classes=1, images=1))
    return _read(recipe, ("--loss", "ProxyAnchorLoss"))


def validated(base: str, out: Path, workers: Workers) -> CrossValidation:
    return CrossValidation(out, base, CHECK, workers)


def search(base: str, workers: Workers, out: Path) -> tuple[dict[str, Any], float, list[str]]:
    validation = validated(base, out, workers)
    spaces = CheckSpaces.of(validation.base, (), default_stages(validation.base), "mine.yaml")
    lines: list[str] = []
    parameters, value = find_best(spaces, validation, report=lines.append)
    return parameters, value, lines


def test_a_trial_is_the_mean_of_its_folds_and_the_first_is_the_recipe(base: str, tmp_path: Path) -> None:
    workers = FakeWorkers({"validation": {"map@r": 0.25}})
    parameters, value, lines = search(base, workers, tmp_path)
    assert (value, parameters["optim.lr"]) == (0.25, 0.002)
    assert [job.out.relative_to(tmp_path).as_posix() for job in workers.jobs] == [
        f"trials/{trial}/fold-{fold}" for trial in (0, 1) for fold in (0, 1)
    ]
    assert not any(job.test for job in workers.jobs)
    assert [line.split(", ")[0] for line in lines] == ["trial 1/2", "trial 2/2"]
    assert all(line.endswith("map@r 25.00") for line in lines)


def test_trainings_that_diverge_fail_their_trial_and_others_end_the_search(base: str, tmp_path: Path) -> None:
    diverged = FakeWorkers(TrainingDiverged("The loss became nan: try a tenth of the learning rate."))
    with pytest.raises(UserError, match=r"None of the 2 trials worked.*became nan"):
        search(base, diverged, tmp_path / "diverged")
    assert {job.out.parent.name for job in diverged.jobs} == {"0", "1"}
    full = FakeWorkers(UserError("The disk is full."))
    with pytest.raises(UserError, match="fold-0: The disk is full"):
        search(base, full, tmp_path)
    workers = FakeWorkers({"validation": {"map@r": 0.5}})
    search(base, workers, tmp_path)
    assert {job.out.parent.name for job in workers.jobs} == {"0", "2"}  # the first is retried


def test_a_schedule_that_waits_for_held_out_classes_is_refused() -> None:
    flags = ("--optim.schedule", "torch.optim.lr_scheduler.ReduceLROnPlateau")
    with pytest.raises(UserError, match="has the schedule ReduceLROnPlateau, which needs held-out classes"):
        plan_folds(read(find_recipe("glyphs-small"), flags), "glyphs-small", CHECK)


def test_one_phase_is_repeated_for_the_mean_epochs_of_the_folds(
    base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_validation, "concatenated", lambda runs: {"concatenated": {"map@r": len(runs) / 4}})
    workers = FakeWorkers({"test": {"map@r": 0.25}, "epoch": 7})
    validation = validated(base, tmp_path, workers)
    results = validation.repeat(3, ("--optim.lr", "0.1"))
    expected = {"separated": {"map@r": 0.25}, "concatenated": {"map@r": 0.5}, "complete": {"map@r": 0.25}}
    assert results == expected
    assert workers.jobs[-1].flags == ("--optim.lr", "0.1", "--seed", "3", "--training.epochs", "10")
    assert validation.repeat(3, ()) == expected  # read, not trained
    assert len(workers.jobs) == 3


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (4, "--optim.lr 0.1 --second_phase null --training.epochs 5"),
        (7, "--optim.lr 0.1 --second_phase.optim.lr 0.2 --second_phase.epochs 5 --training.epochs 10"),
    ],
)
def test_without_a_second_phase_its_values_are_left_out(epoch: int, expected: str) -> None:
    base = {"second_phase": {"epochs": 3}, "training": {"epochs": 8}}
    validation: Any = SimpleNamespace(base=base, out=Path("out"), first_epochs=5)
    flags = ["--optim.lr", "0.1", "--second_phase.optim.lr", "0.2"]
    assert " ".join(CrossValidation._complete(validation, [{"epoch": epoch}], flags, Path("f")).flags) == expected


def test_a_second_phase_in_which_nothing_varies_is_not_searched(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "tiny.yaml", write_folder(tmp_path / "images", classes=1, images=1))
    workers = FakeWorkers({"validation": {"map@r": 0.25}})
    validation = validated(_read(recipe, ("--training.epochs=3", "--second_phase.epochs=1")), tmp_path / "out", workers)
    whole = [{"search": {"loss.proxies_per_class": {"low": 1, "high": 4, "int": True}}}]
    spaces = CheckSpaces.of(validation.base, (), whole, "mine.yaml")
    parameters, value = find_best(spaces, validation, report=lambda _: None)
    assert (set(parameters), value) == ({"loss.proxies_per_class"}, 0.25)
    assert {job.out.parents[1].name for job in workers.jobs} == {"trials"}
    assert all({"--second_phase=null", "--training.epochs=2"} <= {*job.flags} for job in workers.jobs)


CHECKED = [name for name in list_recipes() if "/reality-check/" in name]


def read(recipe: Path, flags: Sequence[str] = ()) -> dict[str, Any]:
    return yaml.safe_load(_read(recipe, tuple(flags)))


@cache
def _read(recipe: Path, flags: tuple[str, ...]) -> str:
    return read_recipe(recipe, flags).yaml


def spaces_of(base: dict[str, Any], flags: tuple[str, ...] = (), space: str | None = None) -> CheckSpaces:
    content = default_stages(base) if space is None else load_space(space)
    return CheckSpaces.of(base, dict(read_flags(flags)), content, "mine.yaml")


def after(recipe: Path, space: PhaseSpace) -> dict[str, Any]:
    """The recipe with its own values, as the first search may find them; of rates that it does not set, others."""
    own = {key: value for key, value in space.initial.items() if value is not None}
    return read(recipe, space.flags({**middle(space.dimensions), **own}))


def test_both_searches_begin_with_the_recipe_and_the_second_in_tighter_bounds() -> None:
    """Where the recipe's values can be sampled; the second phase's space holds its published rates."""
    for name in CHECKED:
        base = read(find_recipe(name))
        spaces = spaces_of(base)
        assert apply_overrides(base, {**spaces.first.fixed, **spaces.first.initial}) == base, name
        known = {key: value for key, value in spaces.first.initial.items() if value is not None}
        found = apply_overrides(base, {**spaces.first.fixed, **middle(spaces.first.dimensions), **known})
        second = spaces.second(found)
        rates = {
            key: dimension for key, dimension in second.dimensions.items() if key.startswith("second_phase.optim.")
        }
        assert all(second.initial[key] in rate for key, rate in rates.items() if not key.endswith("graph_lr")), name
        initial = {key: second.initial[key] for key in rates if "graph" not in key}
        assert apply_overrides(base, {**second.fixed, **initial}) == base, name
        assert second.dimensions
        for key, dimension in second.dimensions.items():
            wider = spaces.first.dimensions[key.removeprefix("second_phase.")]
            assert isinstance(dimension, Range)
            assert isinstance(wider, Range)
            if ".optim." in key:  # rates fall
                assert dimension.high == pytest.approx(recipe_value(found, key.removeprefix("second_phase."))), (
                    name,
                    key,
                )
            else:
                assert dimension.high - dimension.low < wider.high - wider.low, (name, key)


def test_what_the_first_search_found_is_where_the_second_begins() -> None:
    recipe = find_recipe("cub/reality-check/warped-softmax")
    spaces = spaces_of(read(recipe))
    values = {**spaces.first.initial, "loss.alpha": 14.2, "loss.temperature": 9.0, "optim.lr": 3e-6}
    second = spaces.second(read(recipe, spaces.first.flags(values)))
    ranges = {
        key: (dimension.low, dimension.high)
        for key, dimension in second.dimensions.items()
        if isinstance(dimension, Range)
    }
    assert ranges["second_phase.loss.alpha"] == pytest.approx((1.42, 14.2))  # lower than in the first
    assert ranges["second_phase.loss.temperature"] == pytest.approx((0.9, 9.0))
    assert ranges["second_phase.optim.lr"] == pytest.approx((3e-8, 3e-6))
    assert "second_phase.loss.delta_scale" not in ranges  # not changed, say the authors
    found = read(recipe, spaces.flags(values | {"second_phase.loss.alpha": 7.5}))
    assert (found["loss"]["init_args"]["alpha"], found["second_phase"]["loss"]["alpha"]) == (14.2, 7.5)


def test_what_flags_hold_is_searched_in_neither_phase() -> None:
    recipe = find_recipe("cub/reality-check/proxy-anchor")
    for flag, searched in (("--loss.alpha", False), ("--second_phase.loss.alpha", True)):
        flags = (flag, "30")
        spaces = spaces_of(read(recipe, flags), flags)
        assert ("loss.alpha" in spaces.first.dimensions) == searched
        assert "second_phase.loss.alpha" not in spaces.second(after(recipe, spaces.first)).dimensions


@pytest.mark.parametrize("name", ["glyphs-small/warped-softmax", "omniglot/warped-softmax"])
def test_both_forms_of_the_warp_are_searched(name: str) -> None:
    """The paper's has it in both phases, its authors' advice in the second alone."""
    for form, space in (("", None), ("-warp-off-first", "WarpedSoftmaxLoss")):
        recipe = find_recipe(name + form)
        spaces = spaces_of(read(recipe), space=space)
        first = spaces.first.flags(middle(spaces.first.dimensions))
        found = read(recipe, first)
        assert (found["loss"]["init_args"]["alpha"] is None) == (space is not None)
        second = spaces.second(found)
        changed = read(recipe, (*first, *second.flags(middle(second.dimensions))))
        arguments = merge(changed["loss"], changed["second_phase"]["loss"])["init_args"]
        assert (arguments["f1"], arguments["alpha"]) == (None, middle(second.dimensions)["second_phase.loss.alpha"])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([{"search": {"training.epochs": {"low": 1, "high": 9, "int": True}}}], "mine.yaml sets training.epochs, but"),
        (
            [{"search": {"optim.lr": {"factor": 2}}}, {"start_from": "best", "search": {"optim.lr": {"factor": 2}}}],
            "mine.yaml has a stage with start_from: best, but the recipe has no second phase",
        ),
    ],
)
def test_spaces_that_do_not_fit_a_check_are_refused(content: list[Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        CheckSpaces.of(read(find_recipe("glyphs-small/softmax")), (), content, "mine.yaml")
