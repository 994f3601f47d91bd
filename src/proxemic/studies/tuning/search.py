"""Search for the best parameters with Optuna, in one process or in several that share a study."""

import contextlib
import functools
import math
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from proxemic.addresses import without_password
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.studies.jobs import check_stopped
from proxemic.studies.tuning.spaces import Choices, Range

with optional_dependency("tune"):
    import optuna
    from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
    from optuna.pruners import MedianPruner, NopPruner, SuccessiveHalvingPruner
    from optuna.samplers import GPSampler, GridSampler, RandomSampler, TPESampler
    from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
    from optuna.storages.journal import JournalRedisBackend
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy import event
    from sqlalchemy.exc import SQLAlchemyError

Sampler = Literal["tpe", "gp", "random", "grid"]
Pruner = Literal["halving", "median", "none"]

HEARTBEAT, GRACE, POLL = 10, 60, 0.5
"""Seconds between heartbeats of a trial, until a silent trial counts as dead, and between polls of the study."""
ENDED, FAILURE = "ended", "failure"
"""User attributes of Optuna's trials: ``pruned`` or ``failed``, and the reason of a failure."""
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ExperimentalWarning)
    RETRY = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)


class TrialFailed(Exception):
    """Raised by an objective if the parameters do not work; the trial fails and the search continues."""


@dataclass(frozen=True)
class Trial:
    """The argument of an objective; ``report(step, value)`` raises if the trial is pruned. A retry keeps its number."""

    number: int
    parameters: Mapping[str, Any]
    report: Callable[[int, float], None]


@dataclass(frozen=True)
class FinishedTrial:
    """A trial that has ended.

    Args:
        number: Number from 0. A retried trial keeps the number of its first attempt, so that a later number is missing.
        state: How the trial ended.
        value: Value of the objective if the trial is complete; otherwise the last reported value, or None.
        parameters: Parameters by key of the recipe.
        seconds: Duration of the last attempt.
        failure: Why the trial failed, in one sentence.
        steps: Last step that reported a value, such as the last epoch; 0 if none did.
    """

    number: int
    state: Literal["complete", "pruned", "failed"]
    value: float | None
    parameters: Mapping[str, Any]
    seconds: float
    failure: str = ""
    steps: int = 0

    @classmethod
    def of(cls, trial: FrozenTrial) -> "FinishedTrial":
        """Convert one of Optuna's finished trials."""
        state = trial.user_attrs.get(ENDED, "complete" if trial.state == TrialState.COMPLETE else "pruned")
        value = None if state == "failed" else trial.value
        assert trial.duration is not None
        seconds, failure = trial.duration.total_seconds(), trial.user_attrs.get(FAILURE, "")
        return cls(_number(trial), state, value, trial.params, seconds, failure, trial.last_step or 0)


def _number(trial: FrozenTrial) -> int:
    """Return the number of a trial, or of its first attempt if it is a retry (Optuna's callback records that)."""
    return trial.system_attrs.get("failed_trial", trial.number)


def finished_trials(study: optuna.Study) -> list[FinishedTrial]:
    """Return all finished trials of a study, sorted by number."""
    over = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return sorted(map(FinishedTrial.of, over), key=lambda trial: trial.number)


def best_of(trials: Sequence[FinishedTrial]) -> FinishedTrial | None:
    """Return the complete trial with the largest value, the earliest on ties; None if no trial is complete."""
    complete = (trial for trial in trials if trial.state == "complete")
    return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)


def spent(trials: Sequence[FinishedTrial]) -> int:
    """Count the steps of all trials; a trial that failed before its first step counts as one, so that a budget ends."""
    return sum(max(1, trial.steps) for trial in trials)


def halving_rungs(steps: int) -> list[int]:
    """Return the steps after which successive halving compares trials: a quarter, rounded up, and its double.

    >>> halving_rungs(20), halving_rungs(3)
    ([5, 10], [1, 2])
    """
    quarter = -(-steps // 4)
    return [quarter, 2 * quarter]


def search(
    objective: Callable[[Trial], float],
    dimensions: Mapping[str, Range | Choices],
    *,
    storage: str,
    study: str,
    trials: int | None = 50,
    budget: int | None = None,
    sampler: Sampler = "tpe",
    pruner: Pruner = "none",
    steps: int = 1,
    seed: int | None = 0,
    first: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    alone: bool = False,
    on_trial: Callable[[FinishedTrial], object] | None = None,
) -> FinishedTrial:
    """Maximise an objective and return the best trial; calls with the same storage and study share the trials.

    Every call returns when the study has its number of trials, including pruned and failed ones. `TrialFailed` and
    `ValueError` of the objective fail the trial; any other exception ends the search in this process. A trial that was
    interrupted, also by a kill of its process, is repeated with the same number and parameters.

    Args:
        objective: Function that returns the value of a trial.
        dimensions: Searched dimensions by name; choices that are lists or mappings are JSON text.
        storage: Optuna storage URL.
        study: Name of the study in the storage.
        trials: Number of trials of all processes; None takes all points of a grid, or 50.
        budget: Instead of ``trials``: start no trial once all trials together have made this many steps.
        sampler: How parameters are chosen. The first quarter of the trials (3 to 10) are random.
        pruner: Rule that stops a trial early, based on the values that it reports.
        steps: Number of steps of a trial that is not pruned.
        seed: Seed of the sampler of a new study; None, or a study with trials, draws one.
        first: Parameters of the first trials, clipped to the dimensions; a grid ignores them.
        settings: Further settings that must be equal in all processes.
        alone: No other process works on the study, so that its running trials belong to a killed process.
        on_trial: Called with each trial that this process finished.
    """
    total, is_grid, notices_deaths = trials or 50, sampler == "grid", not _is_redis(storage)
    if is_grid:
        points = math.prod(len(dimension.values()) for dimension in dimensions.values())
        total = min(trials or points, points)
    limit = total if budget is None else budget

    def evaluate(trial: optuna.Trial) -> float:
        def report(step: int, value: float) -> None:
            check_stopped()
            trial.report(value, step)
            if step < steps and trial.should_prune():
                raise optuna.TrialPruned

        def frozen() -> FrozenTrial:
            return shared.get_trials(deepcopy=False)[trial.number]

        try:
            if notices_deaths and not _beaten.wait(6 * HEARTBEAT):
                raise RuntimeError("it records no heartbeats")
            parameters = {name: _suggest(trial, name, dimension) for name, dimension in dimensions.items()}
            value = objective(Trial(_number(frozen()), parameters, report))
            if not math.isfinite(value):
                raise TrialFailed(f"The value is {value}.")
            return value
        except (optuna.TrialPruned, TrialFailed, ValueError) as error:
            is_pruned = isinstance(error, optuna.TrialPruned)
            trial.set_user_attr(ENDED, "pruned" if is_pruned else "failed")
            trial.set_user_attr(FAILURE, "" if is_pruned else " ".join(str(error).split()))
            if sampler != "gp":
                raise optuna.TrialPruned from error  # rather than failed: samplers ignore failed trials
            # GP learns only from trials with a value; without one, it would suggest the same parameters again.
            known = [trial.value for trial in shared.get_trials() if trial.value is not None]
            reported = frozen().intermediate_values
            return reported[max(reported)] if is_pruned else min(known, default=0.0)
        except BaseException:  # the disk is full, or the user stops the search: repeat the trial
            if frozen().state == TrialState.RUNNING:
                RETRY(shared, frozen())
            raise

    def told(_: optuna.Study, trial: FrozenTrial) -> None:
        if on_trial is not None:
            on_trial(FinishedTrial.of(trial))

    with storage_errors(storage):
        shared = open_study(storage, study)
        known = {"search": {name: repr(dimension) for name, dimension in dimensions.items()}, "sampler": sampler}
        known |= {"pruner": pruner} | ({"trials": total} if budget is None else {"budget": budget})
        known |= settings or {}
        if (stored := shared.user_attrs.get("settings")) is None:
            shared.set_user_attr("settings", known)
        elif different := sorted(name for name in {**stored, **known} if stored.get(name) != known.get(name)):
            raise UserError(
                f"The study {study} was begun with another {', '.join(different)}: give the same, or choose another "
                "--study."
            )
        startup = min(10, max(3, (total if budget is None else budget // steps) // 4))
        drawn = None if shared.get_trials() else seed
        if is_grid:
            shared.sampler = GridSampler({name: dimension.values() for name, dimension in dimensions.items()})
        elif sampler == "random":
            shared.sampler = RandomSampler(seed=drawn)
        else:
            shared.sampler = (TPESampler if sampler == "tpe" else GPSampler)(seed=drawn, n_startup_trials=startup)
        if pruner == "halving":
            shared.pruner = SuccessiveHalvingPruner(min_resource=halving_rungs(steps)[0], reduction_factor=2)
        else:
            shared.pruner = MedianPruner(5, steps // 4) if pruner == "median" else NopPruner()
        for given in first if not is_grid else ():
            near = {name: dimension.nearest(given[name]) for name, dimension in dimensions.items() if name in given}
            point = {name: value for name, value in near.items() if value is not None}
            shared.enqueue_trial(point, skip_if_exists=True)
        for trial in shared.get_trials(states=(TrialState.RUNNING,)) if alone else ():
            shared.tell(trial.number, state=TrialState.FAIL)
            RETRY(shared, trial)
        while True:
            check_stopped()
            done, running = finished_trials(shared), _running(shared) if notices_deaths else 0
            if len(done) >= 5 and all(trial.state == "failed" for trial in done):
                raise UserError(f"The first {len(done)} trials all failed; the last: {done[-1].failure}")
            # Optuna's `MaxTrialsCallback` counts neither steps nor running trials, and does not wait for these.
            begun = len(done) + running if budget is None else spent(done) + running * steps
            if begun < limit:
                _beaten.clear()
                try:
                    shared.optimize(evaluate, n_trials=1, callbacks=[told])
                except (UpdateFinishedTrialError, ValueError) as error:
                    if isinstance(error, ValueError) and "Cannot tell" not in str(error):
                        raise
                    # This process seemed dead, and another process has repeated its trial.
            elif running:
                time.sleep(POLL)
            else:
                break
    best = best_of(done)
    if best is None:
        raise UserError(f"None of the {len(done)} trials worked; the last: {done[-1].failure or 'pruned'}")
    return best


def _suggest(trial: optuna.Trial, name: str, dimension: Range | Choices) -> Any:
    if isinstance(dimension, Choices):
        return trial.suggest_categorical(name, dimension.choices)
    low, high, step, log = dimension.low, dimension.high, dimension.step, dimension.log
    if dimension.integer:
        return trial.suggest_int(name, int(low), int(high), step=int(step or 1), log=log)
    return trial.suggest_float(name, low, high, step=step, log=log)


def _running(study: optuna.Study) -> int:
    """Count the running trials, after failing those of dead processes (Optuna then retries them)."""
    optuna.storages.fail_stale_trials(study)
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    for trial in running:
        assert trial.datetime_start is not None
        if not trial.params and datetime.now() - trial.datetime_start > timedelta(seconds=GRACE):
            with contextlib.suppress(ValueError, UpdateFinishedTrialError):  # another process was quicker
                study.tell(trial.number, state=TrialState.FAIL)  # its process was killed before a heartbeat
    return len(running)


_beaten = threading.Event()
"""Set by each heartbeat. A trial gets parameters only after one; otherwise its death could go unnoticed."""


class _Database(RDBStorage):
    """A storage whose heartbeat thread ignores errors, because a single missed heartbeat does no harm."""

    def record_heartbeat(self, trial_id: int) -> None:
        with contextlib.suppress(Exception):
            super().record_heartbeat(trial_id)
            _beaten.set()


def _is_redis(url: str) -> bool:
    return url.startswith(("redis://", "rediss://"))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's log and its warnings about experimental features, duplicates and clipped values."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            repeated = "Fixed parameter|The reported value is ignored|The value .* is out of range"
            warnings.filterwarnings("ignore", repeated)
            yield
    finally:
        optuna.logging.set_verbosity(before)


@quiet()
def open_study(url: str, name: str) -> optuna.Study:
    """Open or create a study that maximises, in a database that SQLAlchemy supports or in redis."""
    storage = open_storage(url)
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
        raise UserError(f"The study {name} of this storage does not maximise one value: choose another --study.")
    return study


@functools.lru_cache(maxsize=8)
@quiet()
def open_storage(url: str) -> BaseStorage:
    """Open an Optuna storage, once per process; databases detect trials of dead processes by heartbeats."""
    is_sqlite = url.startswith("sqlite")
    # Without an isolation level, the driver starts no transactions by itself.
    engine = {"connect_args": {"timeout": 60, "isolation_level": None}} if is_sqlite else {}
    heartbeats = {"heartbeat_interval": HEARTBEAT, "grace_period": GRACE, "heartbeat_stale_trial_callback": RETRY}
    try:
        if _is_redis(url):
            return JournalStorage(JournalRedisBackend(url))
        storage = _Database(url, engine_kwargs=engine, **heartbeats)
    except (ImportError, RuntimeError, ValueError, SQLAlchemyError) as error:
        if is_sqlite and "unable" not in str(error):  # the disk is full, or the file may not be written
            raise _failed(url, error) from error
        raise UserError(
            f"The storage {without_password(url)} cannot be opened ({_reason(error)}): give an Optuna storage URL, "
            "such as sqlite:///study.db, postgresql://USER@HOST/NAME or redis://HOST."
        ) from error
    if is_sqlite:
        # SQLite has no row locks, so that two processes could take the same waiting trial. Therefore every transaction
        # starts with the write lock.
        event.listen(storage.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return storage


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Convert an error of the storage in the block, such as a full disk, to a `UserError`."""
    try:
        with quiet():
            yield
    except Exception as error:
        cause: BaseException | None = None if isinstance(error, UserError) else error
        while cause is not None and type(cause).__module__.partition(".")[0] not in ("sqlalchemy", "redis"):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise _failed(url, cause) from error


def _failed(url: str, error: BaseException) -> UserError:
    return UserError(
        f"The storage {without_password(url)} failed ({_reason(error)}): free some space, or check its folder or "
        "server; the same command continues."
    )


def _reason(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())[:200]
