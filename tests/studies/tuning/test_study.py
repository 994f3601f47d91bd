"""The search itself, on objectives that cost nothing: budgets, samplers, processes that share and that die."""

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest

import warm
from proxemic.errors import UserError
from proxemic.studies.tuning import study as module
from proxemic.studies.tuning.spaces import Choices, Range
from proxemic.studies.tuning.study import (
    FinishedTrial,
    StudyOptions,
    Trial,
    TrialFailed,
    finished_trials,
    open_storage,
    open_study,
    quiet,
    run_trials,
    spent,
)
from servers import Postgres

DIMENSIONS = {"x": Range(0.01, 1, log=True), "kind": Choices(("flat", "steep")), "n": Range(1, 4, integer=True)}


def height(trial: Trial) -> float:
    steep = 1 if trial.parameters["kind"] == "steep" else 0.5
    return -steep * abs(trial.parameters["x"] - 0.3) - 0.01 * trial.parameters["n"]


def climb(trial: Trial) -> float:
    for step in range(1, 9):
        trial.report(step, trial.parameters["x"] * step)
    return 8 * trial.parameters["x"]


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


@quiet()
def run(
    folder: Path,
    name: str = "s",
    objective: Any = height,
    space: Any = DIMENSIONS,
    first: Any = (),
    settings: Any = None,
    seed: int = 0,
    alone: bool = False,
    **options: Any,
) -> list[FinishedTrial]:
    study = open_study(url(folder), name, settings or {}, first)
    run_trials(study, objective, space, StudyOptions(**options), seed=seed, alone=alone)
    return finished_trials(study)


def test_the_same_seed_gives_the_same_trials(tmp_path: Path) -> None:
    one = run(tmp_path, "one", trials=5, seed=3)
    again = run(tmp_path, "again", trials=5, seed=3)
    other = run(tmp_path, "other", trials=1, seed=4)
    assert [item.parameters for item in one] == [item.parameters for item in again]
    assert one[0].parameters != other[0].parameters
    assert all(one[0].parameters[name] in dimension for name, dimension in DIMENSIONS.items())
    assert len({str(item.parameters) for item in one}) == 5


@pytest.mark.parametrize("error", [KeyboardInterrupt(), UserError("The disk is full.")])
def test_a_trial_that_is_stopped_is_made_again_with_what_it_reported(error: BaseException, tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []

    def curve(trial: Trial) -> float:
        seen.append((trial.number, trial.parameters["x"]))
        for step in (1, 2, 3):
            if step == 3 and len(seen) == 2:
                raise error
            trial.report(step, step / len(seen))
        return 1.0

    options: dict[str, Any] = {"objective": curve, "trials": 4, "sampler": "random"}
    with pytest.raises(type(error)):
        run(tmp_path, **options)
    trials = run(tmp_path, **options)
    assert seen[1] == seen[2]
    assert [number for number, _ in seen] == [trial.number for trial in trials[:1]] + [1, 1, 3, 4]
    assert len({trial.parameters["x"] for trial in trials}) == 4, "what goes on draws other values than it has drawn"
    frozen = open_study(url(tmp_path), "s").get_trials()
    assert [item.state.name for item in frozen] == ["COMPLETE", "FAIL", *["COMPLETE"] * 3]
    assert frozen[2].intermediate_values == {1: 0.5, 2: 1.0, 3: 1.0}


def test_the_first_trials_take_what_is_given_each_once(tmp_path: Path) -> None:
    given = [{"x": 0.25, "n": 4}, {"x": 0.5, "kind": "steep"}, {"x": 0.25, "n": 4}]
    made = [item.parameters for item in run(tmp_path, trials=3, first=given)]
    assert [item["x"] for item in made[:2]] == [0.25, 0.5]
    assert (made[0]["n"], made[1]["kind"]) == (4, "steep")
    assert made[2]["x"] not in (0.25, 0.5)


def test_bad_trials_are_pruned_by_the_median_and_good_ones_are_not(tmp_path: Path) -> None:
    trials = run(tmp_path, "random", climb, sampler="random", pruner="median", steps=8, trials=9)
    complete = [trial for trial in trials if trial.state == "complete"]
    assert len(complete) < 9
    assert max(item.parameters["x"] for item in complete) == max(trial.parameters["x"] for trial in trials)


def test_a_budget_is_spent_and_no_more_trials_begin(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sampler": "random", "pruner": "median", "steps": 8, "budget": 60}
    trials = run(tmp_path, "whole", climb, **options)
    assert 60 <= spent(trials) < 68
    assert spent(trials[:-1]) < 60
    assert len(trials) > 8, "some were pruned"

    def refused(trial: Trial) -> float:
        if trial.number % 2:
            raise TrialFailed("alpha is -1.")
        return climb(trial)

    # A trial that fails before its first step spends one, so that a budget ends.
    assert [item.steps for item in run(tmp_path, objective=refused, steps=8, budget=20)] == [8, 0, 8, 0, 8]


def test_a_grid_is_made_whole_and_each_point_once(tmp_path: Path) -> None:
    small = {"x": Range(0.01, 1, log=True), "kind": Choices(("flat", "steep")), "n": Range(1, 1, integer=True)}
    calls: list[int] = []

    def stopped_once(trial: Trial) -> float:
        calls.append(trial.number)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return height(trial)

    options: dict[str, Any] = {"objective": stopped_once, "space": small, "sampler": "grid", "trials": 6}
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, **options)
    trials = run(tmp_path, **options)
    assert len(trials) == len({str(trial.parameters) for trial in trials}) == 6
    assert {trial.parameters["x"] for trial in trials} == {0.01, 0.1, 1.0}


def test_failed_trials_are_kept_with_their_reason_and_the_search_goes_on(tmp_path: Path) -> None:
    def sometimes(trial: Trial) -> float:
        if trial.number % 2:
            raise TrialFailed("The loss is nan.")
        return float("nan") if trial.number == 4 else height(trial)

    trials = run(tmp_path, objective=sometimes, trials=6)
    assert [trial.state for trial in trials] == ["complete", "failed", "complete", "failed", "failed", "failed"]
    assert [trial.failure for trial in trials][3:5] == ["The loss is nan.", "The value is nan."]
    assert all(trial.value is None for trial in trials if trial.state == "failed")


def test_studies_that_do_not_fit(tmp_path: Path) -> None:
    run(tmp_path, trials=1, settings={"recipe": "a", "trials": 1})
    with pytest.raises(UserError, match=r"begun with another recipe, trials: give the same"):
        run(tmp_path, trials=2, settings={"recipe": "b", "trials": 2})
    optuna.create_study(storage=url(tmp_path), study_name="least")
    with pytest.raises(UserError, match="does not maximise"):
        run(tmp_path, "least", trials=1)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [("nonsense", "nonsense"), ("nosql://me:secret@host/x", r"\*\*\*"), ("sqlite:////no/such/folder/x.db", "unable")],
)
def test_a_storage_that_cannot_be_opened(wrong: str, word: str) -> None:
    with pytest.raises(UserError, match=f"{word}.*give an Optuna storage URL") as refusal:
        open_study(wrong, "s")
    assert "secret" not in str(refusal.value)


PROGRAM = """
import sys, time
from pathlib import Path
from proxemic.studies.tuning import study as module
from proxemic.studies.tuning.spaces import Range

module.HEARTBEAT, module.GRACE = 1, 4
folder, storage, is_doomed = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "doomed"
made = []

def objective(trial):
    made.append(trial.number)
    print(trial.number, trial.parameters["x"], flush=True)
    if is_doomed and len(made) == 3:
        (folder / "hangs").write_text(f"{trial.number} {trial.parameters['x']}")
        time.sleep(1000)
    while not is_doomed and not (folder / "dead").exists():
        time.sleep(0.05)
    time.sleep(0.1)
    return trial.parameters["x"]

with module.quiet():
    study = module.open_study(storage, "s", {})
    module.run_trials(study, objective, {"x": Range(0, 1)}, module.StudyOptions(trials=12))
    print("best", module.best_of(module.finished_trials(study)).value)
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a study in a file, and in a server."""
    if request.param == "sqlite":
        yield url(tmp_path)
        return
    server = Postgres()
    address = f"postgresql+psycopg://postgres@/postgres?host={server.socket}"
    yield address
    open_storage(address).remove_session()
    open_storage(address).engine.dispose()
    server.stop()


def test_processes_share_one_study_and_the_trial_of_a_killed_one_is_made_again(storage: str, tmp_path: Path) -> None:
    if storage.startswith("sqlite"):  # a search locks its folder; a server's processes create the tables in a race
        open_study(storage, "s", {})
    doomed, *others = (warm.Process("-c", PROGRAM, tmp_path, storage, kind) for kind in ("doomed", "other", "other"))
    while not (tmp_path / "hangs").exists():
        assert doomed.poll() is None, doomed.communicate()
        time.sleep(0.05)
    time.sleep(0.2)
    doomed.kill()
    time.sleep(5.5)  # the grace period; the database counts in whole seconds
    (tmp_path / "dead").touch()  # the others go on, long before the study has its number of trials
    outputs = [process.communicate(timeout=200) for process in (doomed, *others)]
    assert [process.returncode for process in others] == [0, 0], outputs
    assert [error for _, error in outputs[1:]] == ["", ""]
    lost, (one, other) = outputs[0][0].splitlines(), (output.splitlines() for output, _ in outputs[1:])
    assert one[-1] == other[-1], "each waits for the other"
    assert lost[2] == (tmp_path / "hangs").read_text()
    made = [line for line in (*lost[:2], *one, *other) if not line.startswith("best")]
    assert made.count(lost[2]) == 1, f"once, with the same number and parameters: {lost[2]} in {made}"
    assert len({line.split()[0] for line in made}) == len(made) == 12, "none twice, none lost"


def test_a_trial_that_another_process_begins_at_the_same_moment_is_not_one_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def other_process(study: optuna.Study) -> None:
        calls.append(len(calls))
        if len(calls) == 2:  # between the count and the beginning of this process's trial
            study.ask()
        if len(calls) == 3:
            study.tell(0, 0.5)

    monkeypatch.setattr(optuna.storages, "fail_stale_trials", other_process)
    made: list[int] = []
    trials = run(tmp_path, objective=lambda trial: made.append(trial.number) or 1.0, trials=1)
    assert (made, [(trial.number, trial.value) for trial in trials]) == ([], [(0, 0.5)])


@pytest.mark.filterwarnings("ignore:Heartbeat of storage")
def test_a_trial_that_another_process_is_about_to_repeat_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its state was read between the two steps of the other process, long after it had been seen without parameters."""
    begun: list[optuna.Trial] = []
    lost: list[optuna.trial.FrozenTrial | None] = []

    def other_process(study: optuna.Study) -> None:
        if not begun:
            begun.append(study.ask())
        elif made and not lost:
            lost.append(study.tell(0, state=optuna.trial.TrialState.FAIL))
        elif lost and lost[0] is not None:
            module.RETRY(study, lost[0])
            lost[0] = None

    made: list[int] = []

    def objective(trial: Trial) -> float:
        made.append(trial.number)
        time.sleep(0.3)  # longer than the grace period
        return 1.0

    monkeypatch.setattr(module, "GRACE", 0.2)
    monkeypatch.setattr(optuna.storages, "fail_stale_trials", other_process)
    run(tmp_path, objective=objective, trials=2)
    assert sorted(made) == [0, 1]


def test_a_trial_that_was_killed_before_its_first_heartbeat_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.5)
    with pytest.warns(UserWarning, match="Heartbeat of storage"):
        open_study(url(tmp_path), "s", {}, [{"x": 0.25}]).ask()
    assert [(item.number, item.parameters["x"]) for item in run(tmp_path, trials=1)] == [(0, 0.25)]


def test_a_process_alone_does_not_wait_for_the_trial_of_a_killed_one(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Heartbeat of storage"):
        open_study(url(tmp_path), "s", {}, [{"x": 0.25}]).ask()
    assert [(item.number, item.parameters["x"]) for item in run(tmp_path, trials=1, alone=True)] == [(0, 0.25)]


def test_a_process_that_seemed_dead_leaves_its_trial_to_the_other(tmp_path: Path) -> None:
    attempts: list[int] = []

    def silent(trial: Trial) -> float:
        attempts.append(trial.number)
        if len(attempts) == 1:
            study = open_study(url(tmp_path), "s")
            study.tell(0, state=optuna.trial.TrialState.FAIL)
            module.RETRY(study, study.trials[0])
            trial.report(1, 0.5)
        return height(trial)

    assert [item.number for item in run(tmp_path, objective=silent, trials=2)] == [0, 2]
    assert attempts == [0, 0, 2]


FULL = """
import resource, sys
from proxemic.errors import UserError
from proxemic.studies.tuning.spaces import Range
from proxemic.studies.tuning.study import StudyOptions, open_study, run_trials, storage_errors

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def height(trial):
    if trial.number == 1 and at == "objective":
        limit(1000)
    return -trial.parameters["x"]

def told(trial):
    if at == "between":
        limit(1000)

for at in ("objective", "between", "beginning"):
    limit(1000 if at == "beginning" else resource.RLIM_INFINITY)
    storage = f"sqlite:///{sys.argv[1]}/{at}.db"
    try:
        with storage_errors(storage):
            study = open_study(storage, "s", {})
            run_trials(study, height, {"x": Range(0, 1)}, StudyOptions(trials=4), on_trial=told)
    except UserError as error:
        print(error)
"""


@pytest.mark.full_disk
def test_a_full_disk_ends_the_search_in_one_sentence_and_another_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = warm.run("-c", FULL, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    monkeypatch.setattr(module, "GRACE", 1)
    for at, line in zip(("objective", "between", "beginning"), done.stdout.splitlines(), strict=True):
        storage = f"sqlite:///{tmp_path / at}.db"
        assert re.fullmatch(rf"The storage {storage} failed \(.+\): free some space, .* continues\.", line)
        with quiet():
            study = open_study(storage, "s", {})
            run_trials(study, lambda trial: -trial.parameters["x"], {"x": Range(0, 1)}, StudyOptions(trials=4))
        assert len(finished_trials(study)) == 4
