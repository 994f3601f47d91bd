"""The search itself, on objectives that cost nothing: budgets, samplers, processes that share and that die."""

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.storages._heartbeat import get_heartbeat_thread
from optuna.storages.journal import JournalFileBackend

import warm
from proxemic.errors import Interrupted, UserError
from proxemic.protocols.tuning import study as study_module
from proxemic.protocols.tuning.search import search
from proxemic.protocols.tuning.spaces import Choices, Range
from proxemic.protocols.tuning.study import (
    BEATS,
    GRACE,
    PROCESS,
    JournalWithHeartbeats,
    is_dead,
    open_storage,
    open_study,
    process_mark,
)
from proxemic.protocols.tuning.trials import SLOT, FinishedTrial, Trial, TrialFailed, finished_trials, spent

DIMENSIONS = {"x": Range(0.01, 1, log=True), "kind": Choices(("flat", "steep")), "n": Range(1, 4, integer=True)}


def height(trial: Trial) -> float:
    steep = 1 if trial.parameters["kind"] == "steep" else 0.5
    return -steep * abs(trial.parameters["x"] - 0.3) - 0.01 * trial.parameters["n"]


def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'study.db'}"


def all_trials(folder: Path, name: str = "s") -> list[optuna.trial.FrozenTrial]:
    return open_study(url(folder), name).get_trials()


def run(folder: Path, name: str = "s", objective: Any = height, **options: Any) -> list[FinishedTrial]:
    search(objective, DIMENSIONS, storage=url(folder), study=name, **options)
    return finished_trials(open_study(url(folder), name))


@pytest.mark.parametrize("sampler", ["tpe", "gp", "random"])
def test_the_same_seed_gives_the_same_trials(sampler: Any, tmp_path: Path) -> None:
    one = run(tmp_path, "one", sampler=sampler, trials=5, seed=3)
    again = run(tmp_path, "again", sampler=sampler, trials=5, seed=3)
    other = run(tmp_path, "other", sampler=sampler, trials=1, seed=4)
    assert [each.parameters for each in one] == [each.parameters for each in again]
    assert one[0].parameters != other[0].parameters
    assert all(dimension.values() and one[0].parameters[name] in dimension for name, dimension in DIMENSIONS.items())
    assert len({str(each.parameters) for each in one}) == 5


def test_an_interrupted_search_makes_the_trials_that_it_would_have_made(tmp_path: Path) -> None:
    whole = run(tmp_path, "whole", trials=5)
    seen: list[int] = []

    def interrupted(trial: Trial) -> float:
        seen.append(trial.number)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return height(trial)

    with pytest.raises(Interrupted, match="goes on"):
        run(tmp_path, "cut", interrupted, trials=5)
    parts = run(tmp_path, "cut", interrupted, trials=5)
    assert [each.parameters for each in parts] == [each.parameters for each in whole]
    assert [each.value for each in parts] == [each.value for each in whole]
    assert seen[3:5] == [3, 3]


def test_a_retried_trial_keeps_what_it_reported(tmp_path: Path) -> None:
    attempts: list[int] = []

    def curve(trial: Trial) -> float:
        attempts.append(trial.number)
        for step in (1, 2, 3):
            if step == 3 and len(attempts) == 1:
                raise KeyboardInterrupt
            trial.report(step, step / len(attempts))
        return 1.0

    for ended in (True, False):
        with pytest.raises(Interrupted) if ended else contextlib.nullcontext():
            run(tmp_path, objective=curve, trials=1)
    assert attempts == [0, 0]
    assert all_trials(tmp_path)[-1].intermediate_values == {1: 1.0, 2: 2.0, 3: 1.5}


def test_tpe_is_better_than_its_first_trials(tmp_path: Path) -> None:
    trials = run(tmp_path, trials=14)
    assert sum(each.value or 0 for each in trials[-6:]) > sum(each.value or 0 for each in trials[:6])


def test_the_first_trial_takes_what_is_given_and_allowed(tmp_path: Path) -> None:
    first = run(tmp_path, trials=1, first=[{"x": 0.25, "kind": "flat", "n": 9, "unknown": 1}])[0].parameters
    assert first == {"x": 0.25, "kind": "flat", "n": 4}


def test_several_first_trials_each_once(tmp_path: Path) -> None:
    given = [{"x": 0.25}, {"x": 0.5, "kind": "steep"}, {"x": 0.25}, {"x": 7.0, "kind": "mild"}]
    made = [each.parameters for each in run(tmp_path, trials=3, first=given)]
    assert [each["x"] for each in made] == [0.25, 0.5, 1.0]
    assert made[1]["kind"] == "steep"
    assert made[2]["kind"] in DIMENSIONS["kind"]


def climb(trial: Trial) -> float:
    for step in range(1, 9):
        trial.report(step, trial.parameters["x"] * step)
    return 8 * trial.parameters["x"]


def test_successive_halving_compares_at_rungs_alone_and_keeps_the_better_half(tmp_path: Path) -> None:
    given = [{"x": x} for x in (0.5, 0.4, 0.3, 0.45, 0.2, 0.6)]
    trials = run(tmp_path, objective=climb, pruner="halving", steps=8, trials=6, first=given)
    # At rung 2, 0.5 is the best of one, 0.45 among the better two of four, and 0.6 among three of six; at rung 4, 0.45
    # is the second of two.
    assert [each.steps for each in trials] == [8, 2, 2, 4, 2, 8]
    assert [each.state for each in trials] == ["complete", "pruned", "pruned", "pruned", "pruned", "complete"]


def test_a_retried_trial_does_not_count_twice(tmp_path: Path) -> None:
    given, cut = [{"x": x} for x in (0.5, 0.4, 0.3, 0.6, 0.2, 0.45)], list[int]()

    def killed_once(trial: Trial) -> float:
        for step in range(1, 9):
            trial.report(step, trial.parameters["x"] * step)
            if trial.number == 3 and step == 3 and not cut:
                cut.append(step)
                raise KeyboardInterrupt
        return 8 * trial.parameters["x"]

    options: dict[str, Any] = {"pruner": "halving", "steps": 8, "trials": 6, "first": given}
    with pytest.raises(Interrupted):
        run(tmp_path, objective=killed_once, **options)
    trials = run(tmp_path, objective=killed_once, **options)
    # The last one is the third of six at its first rung; with 0.6 twice, it would be the fourth of seven.
    assert [each.steps for each in trials] == [8, 2, 2, 8, 2, 4]


def test_a_budget_is_spent_and_no_more_trials_begin(tmp_path: Path) -> None:
    options: dict[str, Any] = {"sampler": "random", "pruner": "halving", "steps": 8, "budget": 40}
    trials = run(tmp_path, "whole", climb, **options)
    assert 40 <= spent(trials) < 48
    assert spent(trials[:-1]) < 40
    assert len(trials) > 5
    cut: list[int] = []

    def stopped(trial: Trial) -> float:
        if len(cut) < 3 and trial.number == 2 + len(cut):
            cut.append(trial.number)
            raise KeyboardInterrupt
        return climb(trial)

    for ended in (True, True, True, False):
        with pytest.raises(Interrupted) if ended else contextlib.nullcontext():
            run(tmp_path, "cut", stopped, **options)
    again = finished_trials(open_study(url(tmp_path), "cut"))
    assert [(each.parameters, each.steps) for each in again] == [(each.parameters, each.steps) for each in trials]
    with pytest.raises(UserError, match="begun with another budget"):
        run(tmp_path, "whole", climb, **{**options, "budget": 41})


def test_trials_that_fail_before_their_first_step_spend_a_budget(tmp_path: Path) -> None:
    def refused(trial: Trial) -> float:
        if trial.number % 2:
            raise TrialFailed("alpha is -1.")
        return climb(trial)

    trials = run(tmp_path, objective=refused, steps=8, budget=20)
    assert [each.steps for each in trials] == [8, 0, 8, 0, 8]


def test_a_grid_is_made_whole_once_and_no_more(tmp_path: Path) -> None:
    small = {"x": Range(0.01, 1, log=True), "kind": Choices(("flat", "steep")), "n": Range(1, 1, integer=True)}
    for name, asked, made in (("all", None, 6), ("part", 4, 4), ("more", 9, 6)):
        search(height, small, storage=url(tmp_path), study=name, sampler="grid", trials=asked)
        trials = finished_trials(open_study(url(tmp_path), name))
        assert len(trials) == len({str(each.parameters) for each in trials}) == made
    assert {each.parameters["x"] for each in trials} == {0.01, 0.1, 1.0}


def test_bad_trials_are_pruned_and_good_ones_are_not(tmp_path: Path) -> None:
    def curve(trial: Trial) -> float:
        for step in (1, 2, 3):
            trial.report(step, trial.parameters["x"] * step)
        return 3 * trial.parameters["x"]

    trials = run(tmp_path, "random", curve, sampler="random", pruner="median", steps=4, trials=9)
    complete = [each for each in trials if each.state == "complete"]
    assert len(complete) < 9
    assert max(each.parameters["x"] for each in complete) == max(each.parameters["x"] for each in trials)


@pytest.mark.parametrize("pruned", [True, False])
def test_gp_learns_from_trials_that_came_to_no_value(pruned: bool, tmp_path: Path) -> None:
    def cliff(trial: Trial) -> float:
        if trial.parameters["x"] > 0.5:
            trial.report(1, -1.0)
            raise optuna.TrialPruned if pruned else TrialFailed("The loss is nan.")
        return 1 + trial.parameters["x"]

    search(cliff, {"x": Range(0, 1)}, storage=url(tmp_path), study="s", sampler="gp", trials=9)
    trials = finished_trials(open_study(url(tmp_path), "s"))
    places = [each.parameters["x"] for each in trials]
    # Of Optuna's pruned and failed trials it knows nothing: it would try the far end of the cliff again and again.
    assert len(set(places)) >= 8, places
    assert {each.state for each in trials} == {"complete", "pruned" if pruned else "failed"}


def test_failed_trials_are_kept_with_their_reason_and_the_search_goes_on(tmp_path: Path) -> None:
    def sometimes(trial: Trial) -> float:
        if trial.number % 2:
            raise TrialFailed("The loss is nan.")
        return float("nan") if trial.number == 4 else height(trial)

    trials = run(tmp_path, objective=sometimes, trials=6)
    assert [each.state for each in trials] == ["complete", "failed", "complete", "failed", "failed", "failed"]
    assert [each.failure for each in trials][3:5] == ["The loss is nan.", "The value is nan."]
    assert all(each.value is None for each in trials if each.state == "failed")


def test_a_search_in_which_nothing_works_ends(tmp_path: Path) -> None:
    def never(trial: Trial) -> float:
        raise TrialFailed("There is no disk.")

    with pytest.raises(UserError, match="first 5 trials all failed; the last: There is no disk"):
        run(tmp_path, "many", never, trials=20)
    with pytest.raises(UserError, match="None of the 2 trials worked; the last: There is no disk"):
        run(tmp_path, "few", never, trials=2)


def test_another_error_ends_the_search_and_the_trial_is_made_again(tmp_path: Path) -> None:
    def full_disk(trial: Trial) -> float:
        if trial.number == 1:
            raise UserError("The disk is full.")
        return height(trial)

    with pytest.raises(UserError, match=r"^The disk is full\.$"):
        run(tmp_path, objective=full_disk, trials=3)
    trials = run(tmp_path, trials=3)
    assert [each.number for each in trials] == [0, 1, 2]
    assert [each.state for each in trials] == ["complete"] * 3


def test_settings_must_agree(tmp_path: Path) -> None:
    run(tmp_path, trials=1, settings={"recipe": "a"})
    with pytest.raises(UserError, match=r"begun with another recipe, trials: give the same"):
        run(tmp_path, trials=2, settings={"recipe": "b"})


@pytest.mark.parametrize(
    ("wrong", "word"),
    [("nonsense", "nonsense"), ("nosql://me:secret@host/x", r"\*\*\*"), ("sqlite:////no/such/folder/x.db", "unable")],
)
def test_a_storage_that_cannot_be_opened(wrong: str, word: str) -> None:
    with pytest.raises(UserError, match=f"{word}.*give an Optuna storage URL") as refusal:
        search(height, DIMENSIONS, storage=wrong, study="s", trials=1)
    assert "secret" not in str(refusal.value)


def test_a_study_that_minimises_is_refused(tmp_path: Path) -> None:
    optuna.create_study(storage=url(tmp_path), study_name="s")
    with pytest.raises(UserError, match="does not maximise"):
        run(tmp_path, trials=1)


def test_a_trial_that_two_processes_enqueue_is_made_once(tmp_path: Path) -> None:
    study = open_study(url(tmp_path), "s")
    for slot in (0, 0, 1):
        study.enqueue_trial({}, {SLOT: slot})
    study.enqueue_trial({})  # as Optuna has it for a process whose trial another one took from the queue
    assert [each.number for each in run(tmp_path, trials=2)] == [0, 1]
    assert [each.state.name for each in all_trials(tmp_path)] == ["COMPLETE", "FAIL", "COMPLETE", "FAIL"]


def test_a_process_that_seemed_dead_leaves_its_trial_to_the_other(tmp_path: Path) -> None:
    attempts: list[int] = []

    def silent(trial: Trial) -> float:
        attempts.append(trial.number)
        if len(attempts) == 1:
            other = open_study(url(tmp_path), "s")
            other.tell(0, state=optuna.trial.TrialState.FAIL)
            other.enqueue_trial({}, {SLOT: 0})
            trial.report(1, 0.5)
        return height(trial)

    assert [each.number for each in run(tmp_path, objective=silent, trials=2)] == [0, 1]
    assert attempts == [0, 0, 1]


def test_a_study_of_an_earlier_version_goes_on(tmp_path: Path) -> None:
    """Its trials have their numbers as ours have them, but those that were retried are not Optuna's retries."""
    begun = run(tmp_path, "begun", trials=2)
    copies = {trial.number: trial for trial in all_trials(tmp_path, "begun")}
    study = open_study(url(tmp_path), "s")
    study.add_trial(copies[0])
    study.add_trial(_changed(copies[1], "FAIL", slot=1))
    study.add_trial(_changed(copies[1], "FAIL", surplus=True))
    study.add_trial(_changed(copies[1], "WAITING", slot=1, continues=1))
    made: list[int] = []

    def noted(trial: Trial) -> float:
        made.append(trial.number)
        return height(trial)

    trials = run(tmp_path, objective=noted, trials=4)
    assert made == [1, 2, 3]
    assert [each.number for each in trials] == [0, 1, 2, 3]
    assert [each.parameters for each in trials[:2]] == [each.parameters for each in begun]


def _changed(trial: optuna.trial.FrozenTrial, state: str, **attributes: Any) -> optuna.trial.FrozenTrial:
    return optuna.trial.create_trial(
        state=optuna.trial.TrialState[state],
        params=trial.params,
        distributions=trial.distributions,
        user_attrs=attributes,
    )


def test_where_the_system_does_not_say_when_a_process_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "exists", lambda _: False)
    host, pid, began = process_mark()
    assert began == ""
    trial = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, user_attrs={PROCESS: [host, pid, began]})
    assert not is_dead(trial)
    trial.set_user_attr(PROCESS, [host, 2**22 + 1, began])  # beyond the largest number of a process
    assert is_dead(trial)


def test_a_trial_whose_process_was_killed_before_it_left_its_mark() -> None:
    trial = optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING)
    trial.datetime_start = datetime.now()
    assert not is_dead(trial)
    trial.datetime_start -= timedelta(seconds=GRACE + 1)
    assert is_dead(trial)


def test_redis_keeps_a_journal_with_heartbeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def backend(address: str) -> JournalFileBackend:
        opened.append(address)
        return JournalFileBackend(str(tmp_path / "journal"))

    monkeypatch.setattr(study_module, "JournalRedisBackend", backend)
    for address in ("redis://one", "rediss://two"):
        assert isinstance(open_storage(address), JournalWithHeartbeats)
    assert opened == ["redis://one", "rediss://two"]


def test_tables_that_another_process_makes_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [RuntimeError("table studies already exists"), RuntimeError("database is locked")]

    def busy(*given: Any, **options: Any) -> optuna.storages.RDBStorage:
        if errors:
            raise errors.pop()
        return storage(*given, **options)

    storage = study_module._DatabaseStorage
    monkeypatch.setattr(study_module, "_DatabaseStorage", busy)
    monkeypatch.setattr(study_module, "time", SimpleNamespace(sleep=lambda _: None))
    assert isinstance(open_storage(url(tmp_path)), storage)
    errors = [RuntimeError("database is locked")] * 50
    with pytest.raises(UserError, match="cannot be opened"):
        open_storage(f"{url(tmp_path)}?second")


PROGRAM = """
import sys, time
from pathlib import Path
from proxemic.protocols.tuning.spaces import Range
from proxemic.protocols.tuning.search import search

folder, pause, hang = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])

def objective(trial):
    print(trial.number, trial.parameters["x"], flush=True)
    time.sleep(1000 if trial.number == hang else pause)
    return trial.parameters["x"]

best = search(objective, {"x": Range(0, 1)}, storage=f"sqlite:///{folder / 'study.db'}", study="s", trials=12)
print("best", best.value)
"""


def begin(folder: Path, pause: float = 0, hang: int = -1) -> warm.Process:
    return warm.Process("-c", PROGRAM, folder, str(pause), str(hang))


def test_two_processes_share_one_sqlite_study_exactly(tmp_path: Path) -> None:
    processes = [begin(tmp_path, pause=0.1), begin(tmp_path, pause=0.1)]
    outputs = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert [error for _, error in outputs] == ["", ""]
    lines = [output.splitlines() for output, _ in outputs]
    assert lines[0][-1] == lines[1][-1]
    made = [line for each in lines for line in each if not line.startswith("best")]
    assert sorted(int(line.split()[0]) for line in made) == list(range(12))
    assert len({line.split()[1] for line in made}) == 12
    kept = [each.user_attrs[SLOT] for each in all_trials(tmp_path) if each.state.name == "COMPLETE"]
    assert sorted(kept) == list(range(12))


FULL = """
import resource, sys
from proxemic.errors import UserError
from proxemic.protocols.tuning.spaces import Range
from proxemic.protocols.tuning.search import search

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
def test_a_full_disk_ends_the_search_in_one_sentence_and_another_goes_on(tmp_path: Path) -> None:
    done = warm.run("-c", FULL, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for at, line in zip(("objective", "between", "beginning"), done.stdout.splitlines(), strict=True):
        storage, found = f"sqlite:///{tmp_path / at}.db", []
        assert re.fullmatch(rf"The storage {storage} failed \(.+\): free some space, .* goes on\.", line)

        def lower(trial: Trial, found: list[int] = found) -> float:
            found.append(trial.number)
            return -trial.parameters["x"]

        search(lower, {"x": Range(0, 1)}, storage=storage, study="s", trials=4)
        assert found == [0, 1, 2, 3][at != "beginning" :]


def test_a_killed_process_is_found_dead_and_its_trial_made_again(tmp_path: Path) -> None:
    open_study(url(tmp_path), "s")
    doomed = begin(tmp_path, hang=4)
    while not (len(trials := all_trials(tmp_path)) == 5 and trials[4].params):
        assert doomed.poll() is None, doomed.communicate()
        time.sleep(0.05)
    time.sleep(0.2)
    doomed.kill()
    doomed.communicate()
    killed = all_trials(tmp_path)[4]
    assert killed.state == optuna.trial.TrialState.RUNNING
    other = begin(tmp_path)
    output, error = other.communicate(timeout=200)
    assert (other.returncode, error) == (0, "")
    made = output.splitlines()
    assert made[0] == f"4 {killed.params['x']}"
    assert [int(line.split()[0]) for line in made[:-1]] == [4, 5, 6, 7, 8, 9, 10, 11]
    trials = all_trials(tmp_path)
    assert [each.state.name for each in trials] == [*["COMPLETE"] * 4, "FAIL", *["COMPLETE"] * 8]
    assert trials[5].system_attrs["retry_history"] == [4]


def test_a_live_process_keeps_its_trial_and_is_waited_for(tmp_path: Path) -> None:
    stat = Path("/proc/self/stat")
    if not stat.exists():
        pytest.skip("the system does not say when a process began")
    study = optuna.create_study(storage=url(tmp_path), study_name="s", direction="maximize")
    study.enqueue_trial({}, {SLOT: 0})
    trial = study.ask()
    with subprocess.Popen(["sleep", "100"]) as other:
        began = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        trial.set_user_attr(PROCESS, [os.uname().nodename, other.pid, began])
        with pytest.raises(EnoughLooks), looks(2):
            run(tmp_path, trials=1)
        assert [each.state.name for each in all_trials(tmp_path)] == ["RUNNING"]
        other.kill()
    assert run(tmp_path, trials=1)[0].number == 0


class EnoughLooks(BaseException):
    """Not one that the search could take for an error of its own."""


@contextlib.contextmanager
def looks(count: int) -> Iterator[None]:
    """Ends a search that waits for another's trial, once it has looked at it so often."""
    left = iter(range(count))

    def sleep(seconds: float) -> None:
        if next(left, None) is None:
            raise EnoughLooks
        time.sleep(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.protocols.tuning.search.time", SimpleNamespace(sleep=sleep))
        yield


def test_without_heartbeats_of_the_storage_trials_give_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As redis has none: a file with the same journal, and another machine's trials, one alive and one dead."""
    journal = JournalWithHeartbeats(JournalFileBackend(str(tmp_path / "journal")))
    monkeypatch.setattr(study_module, "open_storage", lambda _: journal)
    monkeypatch.setattr(study_module, "HEARTBEAT", 0.05)
    monkeypatch.setattr(study_module, "GRACE", 1)
    shared = open_study("journal", "s")
    shared.enqueue_trial({}, {SLOT: 0, PROCESS: ["elsewhere", 1, "1"]})
    trial_id = shared._pop_waiting_trial_id()
    assert trial_id is not None
    with get_heartbeat_thread(trial_id, journal), pytest.raises(EnoughLooks), looks(4):  # for longer than GRACE
        run(tmp_path, trials=1)
    assert [each.state.name for each in shared.trials] == ["RUNNING"]
    assert run(tmp_path, trials=1)[0].number == 0  # it no longer beats
    assert [each.state.name for each in shared.trials] == ["FAIL", "COMPLETE"]

    def until_the_second_beat(trial: Trial) -> float:
        end = time.monotonic() + 300
        while optuna.load_study(study_name="slow", storage=journal).trials[0].user_attrs.get(BEATS, 0) < 2:
            assert time.monotonic() < end
            time.sleep(0.02)
        return 1.0

    search(until_the_second_beat, {"x": Range(0, 1)}, storage="journal", study="slow", trials=1)
    assert [each.state.name for each in optuna.load_study(study_name="slow", storage=journal).trials] == ["COMPLETE"]
