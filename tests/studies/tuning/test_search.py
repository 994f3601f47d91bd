"""The search itself, on objectives that cost nothing: budgets, samplers, processes that share and that die."""

import contextlib
import re
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend

import warm
from proxemic.errors import UserError
from proxemic.studies.tuning import search as module
from proxemic.studies.tuning.search import (
    FinishedTrial,
    Trial,
    TrialFailed,
    finished_trials,
    open_storage,
    open_study,
    search,
    spent,
)
from proxemic.studies.tuning.spaces import Choices, Range

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


def run(folder: Path, name: str = "s", objective: Any = height, **options: Any) -> list[FinishedTrial]:
    search(objective, DIMENSIONS, storage=url(folder), study=name, **options)
    return finished_trials(open_study(url(folder), name))


@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_the_same_seed_gives_the_same_trials(sampler: Any, tmp_path: Path) -> None:
    one = run(tmp_path, "one", sampler=sampler, trials=5, seed=3)
    again = run(tmp_path, "again", sampler=sampler, trials=5, seed=3)
    other = run(tmp_path, "other", sampler=sampler, trials=1, seed=4)
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


def test_the_first_trials_take_what_is_given_and_allowed_each_once(tmp_path: Path) -> None:
    given = [{"x": 0.25, "n": 9, "unknown": 1}, {"x": 0.5, "kind": "steep"}, {"x": 0.25, "n": 4}]
    given += [{"x": 7.0, "kind": "mild"}]
    made = [item.parameters for item in run(tmp_path, trials=3, first=given)]
    assert [item["x"] for item in made] == [0.25, 0.5, 1.0]
    assert made[0]["n"] == 4
    assert made[1]["kind"] == "steep"
    assert made[2]["kind"] in DIMENSIONS["kind"]


def test_successive_halving_compares_at_rungs_alone_and_keeps_the_better_half(tmp_path: Path) -> None:
    given = [{"x": x} for x in (0.5, 0.4, 0.3, 0.45, 0.2, 0.6)]
    trials = run(tmp_path, objective=climb, pruner="halving", steps=8, trials=6, first=given)
    # At step 2, 0.5 is the best of one, 0.45 among the better two of four, and 0.6 among three of six; at step 4, 0.45
    # is the second of two.
    assert [trial.steps for trial in trials] == [8, 2, 2, 4, 2, 8]
    assert [trial.state for trial in trials] == ["complete", "pruned", "pruned", "pruned", "pruned", "complete"]


def test_bad_trials_are_pruned_by_the_median_and_good_ones_are_not(tmp_path: Path) -> None:
    trials = run(tmp_path, "random", climb, sampler="random", pruner="median", steps=8, trials=9)
    complete = [trial for trial in trials if trial.state == "complete"]
    assert len(complete) < 9
    assert max(item.parameters["x"] for item in complete) == max(trial.parameters["x"] for trial in trials)


def test_a_budget_is_spent_and_no_more_trials_begin(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sampler": "random", "pruner": "halving", "steps": 8, "budget": 40}
    trials = run(tmp_path, "whole", climb, **options)
    assert 40 <= spent(trials) < 48
    assert spent(trials[:-1]) < 40
    assert len(trials) > 5
    with pytest.raises(UserError, match="begun with another budget"):
        run(tmp_path, "whole", climb, **{**options, "budget": 41})

    def refused(trial: Trial) -> float:
        if trial.number % 2:
            raise TrialFailed("alpha is -1.")
        return climb(trial)

    # A trial that fails before its first step spends one, so that a budget ends.
    assert [item.steps for item in run(tmp_path, objective=refused, steps=8, budget=20)] == [8, 0, 8, 0, 8]


@pytest.mark.parametrize(("asked", "made"), [(None, 6), (4, 4), (9, 6)])
def test_a_grid_is_made_whole_once_and_no_more(asked: int | None, made: int, tmp_path: Path) -> None:
    small = {"x": Range(0.01, 1, log=True), "kind": Choices(("flat", "steep")), "n": Range(1, 1, integer=True)}
    calls: list[int] = []

    def stopped_once(trial: Trial) -> float:
        calls.append(trial.number)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return height(trial)

    for ended in (True, False):
        with pytest.raises(KeyboardInterrupt) if ended else contextlib.nullcontext():
            search(stopped_once, small, storage=url(tmp_path), study="s", sampler="grid", trials=asked)
    trials = finished_trials(open_study(url(tmp_path), "s"))
    assert len(trials) == len({str(trial.parameters) for trial in trials}) == made
    assert {trial.parameters["x"] for trial in trials} <= {0.01, 0.1, 1.0}


@pytest.mark.parametrize("pruned", [True, False])
def test_gp_learns_from_trials_that_came_to_no_value(pruned: bool, tmp_path: Path) -> None:
    def cliff(trial: Trial) -> float:
        if trial.parameters["x"] > 0.5:
            trial.report(1, -1.0)
            raise optuna.TrialPruned if pruned else TrialFailed("The loss is nan.")
        return 1 + trial.parameters["x"]

    search(cliff, {"x": Range(0, 1)}, storage=url(tmp_path), study="s", sampler="gp", trials=9)
    trials = finished_trials(open_study(url(tmp_path), "s"))
    places = [trial.parameters["x"] for trial in trials]
    # Of Optuna's pruned and failed trials it knows nothing: it would try the far end of the cliff again and again.
    assert len(set(places)) >= 8, places
    assert {trial.state for trial in trials} == {"complete", "pruned" if pruned else "failed"}


def test_failed_trials_are_kept_with_their_reason_and_the_search_goes_on(tmp_path: Path) -> None:
    def sometimes(trial: Trial) -> float:
        if trial.number % 2:
            raise TrialFailed("The loss is nan.")
        return float("nan") if trial.number == 4 else height(trial)

    trials = run(tmp_path, objective=sometimes, trials=6)
    assert [trial.state for trial in trials] == ["complete", "failed", "complete", "failed", "failed", "failed"]
    assert [trial.failure for trial in trials][3:5] == ["The loss is nan.", "The value is nan."]
    assert all(trial.value is None for trial in trials if trial.state == "failed")

    def never(trial: Trial) -> float:
        raise TrialFailed("There is no disk.")

    with pytest.raises(UserError, match="first 5 trials all failed; the last: There is no disk"):
        run(tmp_path, "many", never, trials=20)
    with pytest.raises(UserError, match="None of the 2 trials worked; the last: There is no disk"):
        run(tmp_path, "few", never, trials=2)


def test_studies_that_do_not_fit(tmp_path: Path) -> None:
    run(tmp_path, trials=1, settings={"recipe": "a"})
    with pytest.raises(UserError, match=r"begun with another recipe, trials: give the same"):
        run(tmp_path, trials=2, settings={"recipe": "b"})
    optuna.create_study(storage=url(tmp_path), study_name="least")
    with pytest.raises(UserError, match="does not maximise"):
        run(tmp_path, "least", trials=1)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [("nonsense", "nonsense"), ("nosql://me:secret@host/x", r"\*\*\*"), ("sqlite:////no/such/folder/x.db", "unable")],
)
def test_a_storage_that_cannot_be_opened(wrong: str, word: str) -> None:
    with pytest.raises(UserError, match=f"{word}.*give an Optuna storage URL") as refusal:
        search(height, DIMENSIONS, storage=wrong, study="s", trials=1)
    assert "secret" not in str(refusal.value)


def test_redis_keeps_a_journal_whose_running_trials_nobody_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = JournalFileBackend(str(tmp_path / "journal"))
    monkeypatch.setattr(module, "JournalRedisBackend", lambda _: journal)
    open_study("redis://one", "s").ask()  # of a process that was killed
    assert search(height, DIMENSIONS, storage="redis://one", study="s", trials=1).number == 1


PROGRAM = """
import sys, time
from pathlib import Path
from proxemic.studies.tuning import search as module
from proxemic.studies.tuning.spaces import Range

module.HEARTBEAT, module.GRACE = 1, 4
folder, is_doomed = Path(sys.argv[1]), sys.argv[2] == "doomed"
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

storage = f"sqlite:///{folder / 'study.db'}"
print("best", module.search(objective, {"x": Range(0, 1)}, storage=storage, study="s", trials=12).value)
"""


def test_processes_share_one_study_and_the_trial_of_a_killed_one_is_made_again(tmp_path: Path) -> None:
    open_storage(url(tmp_path))  # makes the tables
    doomed, *others = (warm.Process("-c", PROGRAM, tmp_path, kind) for kind in ("doomed", "other", "other"))
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
    assert lost[2] in made, "with the same number and parameters"
    # Those that look at the same moment may begin a trial more, and the retry has taken a number of its own.
    assert 12 <= len({line.split()[0] for line in made}) == len(made) <= 14


def test_a_trial_that_was_killed_before_its_first_heartbeat_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE", 0.5)
    with pytest.warns(UserWarning, match="Heartbeat of storage"):
        open_study(url(tmp_path), "s").ask()
    assert [item.number for item in run(tmp_path, trials=1)] == [1]


def test_a_process_that_seemed_dead_leaves_its_trial_to_the_other(tmp_path: Path) -> None:
    attempts: list[int] = []

    def silent(trial: Trial) -> float:
        attempts.append(trial.number)
        if len(attempts) == 1:
            open_study(url(tmp_path), "s").tell(0, state=optuna.trial.TrialState.FAIL)
            trial.report(1, 0.5)
        return height(trial)

    assert [item.number for item in run(tmp_path, objective=silent, trials=2)] == [1, 2]


FULL = """
import resource, sys
from proxemic.errors import UserError
from proxemic.studies.tuning.spaces import Range
from proxemic.studies.tuning.search import search

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
        search(height, {"x": Range(0, 1)}, storage=storage, study="s", trials=4, on_trial=told)
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
        search(lambda trial: -trial.parameters["x"], {"x": Range(0, 1)}, storage=storage, study="s", trials=4)
        assert len(finished_trials(open_study(storage, "s"))) == 4
