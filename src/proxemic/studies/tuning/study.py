"""Run the trials of an Optuna study, in one process or in several that share its storage."""

import contextlib
import functools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxemic.addresses import without_password
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.studies.jobs import check_stopped
from proxemic.studies.tuning.spaces import Choices, Dimension

with optional_dependency("tune"):
    import optuna
    from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
    from optuna.pruners import MedianPruner, NopPruner
    from optuna.samplers import GridSampler, RandomSampler, TPESampler
    from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy import event
    from sqlalchemy.exc import SQLAlchemyError

Sampler = Literal["tpe", "random", "grid"]
Pruner = Literal["median", "none"]

HEARTBEAT, GRACE, POLL = 10, 60, 0.5
"""Seconds between heartbeats of a trial, until a silent trial counts as dead, and between polls of the study."""
ENDED, FAILURE, SURPLUS = "ended", "failure", "surplus"
"""User attributes of Optuna's trials: ``pruned``, ``failed`` or ``surplus``, and the reason of a failure."""
OVER = (TrialState.COMPLETE, TrialState.PRUNED)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ExperimentalWarning)
    RETRY = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)


class TrialFailed(Exception):
    """Raised by an objective if the parameters do not work; the trial fails and the study continues."""


class _Surplus(Exception):
    """Raised in a trial that began although the requested number of trials was reached."""


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
        parameters: Parameters by key of the recipe; those of a `Factor` are factors.
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


def _is_retry(trial: FrozenTrial) -> bool:
    return "failed_trial" in trial.system_attrs


def finished_trials(study: optuna.Study) -> list[FinishedTrial]:
    """Return all finished trials of a study, sorted by number."""
    return [FinishedTrial.of(trial) for trial in _attempts(study).values() if trial.state in OVER]


def _attempts(study: optuna.Study) -> dict[int, FrozenTrial]:
    """Return the last attempt of each trial that has begun, by number."""
    begun = [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.user_attrs.get(ENDED) != SURPLUS and (trial.state != TrialState.WAITING or _is_retry(trial))
    ]
    return {_number(trial): trial for trial in sorted(begun, key=lambda trial: (_number(trial), trial.number))}


def best_of(trials: Sequence[FinishedTrial]) -> FinishedTrial | None:
    """Return the complete trial with the largest value, the earliest on ties; None if no trial is complete."""
    complete = (trial for trial in trials if trial.state == "complete")
    return max(complete, key=lambda trial: (trial.value or 0.0, -trial.number), default=None)


def spent(trials: Sequence[FinishedTrial]) -> int:
    """Count the steps of all trials; a trial that failed before its first step counts as one, so that a budget ends."""
    return sum(max(1, trial.steps) for trial in trials)


@dataclass(frozen=True)
class StudyOptions:
    """How the trials of a study are run; the same for all processes that share the study.

    Args:
        trials: Number of trials of all processes.
        budget: Instead of ``trials``: start no trial once all trials together have made this many steps.
        sampler: How parameters are drawn. The first quarter of the trials of ``tpe`` (3 to 10) are random.
        pruner: Rule that stops a trial early, based on the values that it reports.
        steps: Number of steps of a trial that is not pruned.
    """

    trials: int = 50
    budget: int | None = None
    sampler: Sampler = "tpe"
    pruner: Pruner = "none"
    steps: int = 1

    @property
    def limit(self) -> int:
        """The budget, or else the number of trials."""
        return self.trials if self.budget is None else self.budget

    def begun(self, study: optuna.Study, before: float = math.inf) -> int:
        """Count the trials with a smaller number that have begun, or the steps that they cost."""
        attempts = [trial for number, trial in _attempts(study).items() if number < before]
        done = [FinishedTrial.of(trial) for trial in attempts if trial.state in OVER]
        return len(attempts) if self.budget is None else spent(done) + self.steps * (len(attempts) - len(done))


def run_trials(
    study: optuna.Study,
    objective: Callable[[Trial], float],
    space: Mapping[str, Dimension],
    options: StudyOptions,
    *,
    seed: int | None = 0,
    alone: bool = False,
    on_trial: Callable[[FinishedTrial], object] = lambda _: None,
) -> None:
    """Maximise an objective; calls for the same study share the trials, and return when all of them are finished.

    `TrialFailed` and `ValueError` of the objective fail the trial; any other exception ends the study in this process.
    A trial that was interrupted, also by a kill of its process, is repeated with the same number and parameters.

    Args:
        study: A study that `open_study` returns.
        objective: Function that returns the value of a trial.
        space: Dimensions of the search space by name; choices that are lists or mappings are JSON text.
        options: How many trials are run, and how.
        seed: Seed of the sampler of a new study; None, or a study with finished trials, draws one.
        alone: No other process works on the study, so that its running trials belong to a killed process.
        on_trial: Called with each trial that this process finished.
    """
    evaluate = functools.partial(_evaluate, study, objective, space, options)

    def told(_: optuna.Study, trial: FrozenTrial) -> None:
        if trial.state in OVER:
            on_trial(FinishedTrial.of(trial))

    study.sampler = _sampler(study, space, options, seed)
    study.pruner = MedianPruner(5, options.steps // 4) if options.pruner == "median" else NopPruner()
    for trial in _attempts(study).values() if alone else ():
        if trial.state in (TrialState.RUNNING, TrialState.FAIL):
            _repeat(study, trial)
    silent_since: dict[tuple[int, TrialState], float] = {}
    while True:
        check_stopped()
        optuna.storages.fail_stale_trials(study)
        left = [trial for trial in _attempts(study).values() if trial.state not in OVER]
        for trial in left:
            # Either its process was killed before the first heartbeat, or the one that was about to repeat it.
            silent = trial.state == TrialState.FAIL or (trial.state == TrialState.RUNNING and not trial.params)
            # Of each state by itself: a trial that once had no parameters yet may just have been failed by a process
            # that is about to repeat it.
            since = silent_since.setdefault((trial.number, trial.state), time.monotonic()) if silent else math.inf
            if time.monotonic() - since > GRACE:
                _repeat(study, trial)
        if options.begun(study) < options.limit or any(trial.state == TrialState.WAITING for trial in left):
            try:
                study.optimize(evaluate, n_trials=1, catch=(_Surplus,), callbacks=[told])
            except (UpdateFinishedTrialError, ValueError) as error:
                if isinstance(error, ValueError) and "Cannot tell" not in str(error):
                    raise
                # This process seemed dead, and another process has repeated its trial.
        elif left:
            time.sleep(POLL)
        else:
            return


def _repeat(study: optuna.Study, trial: FrozenTrial) -> None:
    """Queue the trial of a dead process again, unless another process has been quicker."""
    with contextlib.suppress(ValueError, UpdateFinishedTrialError):
        if trial.state == TrialState.RUNNING:
            study.tell(trial.number, state=TrialState.FAIL)
        RETRY(study, trial)


def _sampler(
    study: optuna.Study, space: Mapping[str, Dimension], options: StudyOptions, seed: int | None
) -> optuna.samplers.BaseSampler:
    if options.sampler == "grid":
        return GridSampler({name: dimension.values() for name, dimension in space.items()})
    drawn = None if _attempts(study) else seed
    if options.sampler == "random":
        return RandomSampler(seed=drawn)
    planned = options.trials if options.budget is None else options.budget // options.steps
    return TPESampler(seed=drawn, n_startup_trials=min(10, max(3, planned // 4)))


def _evaluate(
    study: optuna.Study,
    objective: Callable[[Trial], float],
    space: Mapping[str, Dimension],
    options: StudyOptions,
    trial: optuna.Trial,
) -> float:
    """Compute the value of a trial, and note how it ended."""

    def report(step: int, value: float) -> None:
        check_stopped()
        trial.report(value, step)
        if step < options.steps and trial.should_prune():
            raise optuna.TrialPruned

    def frozen() -> FrozenTrial:
        return study.get_trials(deepcopy=False)[trial.number]

    if not _is_retry(frozen()) and options.begun(study, trial.number) >= options.limit:
        trial.set_user_attr(ENDED, SURPLUS)  # another process has begun the last trial at the same moment
        raise _Surplus
    try:
        # Before the parameters: a trial that has these and dies without a heartbeat would go unnoticed.
        study._storage.record_heartbeat(trial._trial_id)  # pyright: ignore
        parameters = {name: _suggest(trial, name, dimension) for name, dimension in space.items()}
        value = objective(Trial(_number(frozen()), parameters, report))
        if not math.isfinite(value):
            raise TrialFailed(f"The value is {value}.")
        return value
    except (optuna.TrialPruned, TrialFailed, ValueError) as error:
        is_pruned = isinstance(error, optuna.TrialPruned)
        trial.set_user_attr(ENDED, "pruned" if is_pruned else "failed")
        trial.set_user_attr(FAILURE, "" if is_pruned else " ".join(str(error).split()))
        raise optuna.TrialPruned from error  # rather than failed: samplers ignore failed trials
    except BaseException:  # the disk is full, or the user stops the study: repeat the trial
        if frozen().state == TrialState.RUNNING:
            RETRY(study, frozen())
        raise


def _suggest(trial: optuna.Trial, name: str, dimension: Dimension) -> Any:
    if isinstance(dimension, Choices):
        return trial.suggest_categorical(name, dimension.choices)
    low, high, step, log = dimension.low, dimension.high, dimension.step, dimension.log
    if dimension.integer:
        return trial.suggest_int(name, int(low), int(high), step=int(step or 1), log=log)
    return trial.suggest_float(name, low, high, step=step, log=log)


class _Database(RDBStorage):
    """A storage whose heartbeat thread ignores errors, because a single missed heartbeat does no harm."""

    def record_heartbeat(self, trial_id: int) -> None:
        with contextlib.suppress(Exception):
            super().record_heartbeat(trial_id)


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
def open_study(
    url: str, name: str, settings: Mapping[str, Any] | None = None, first: Sequence[Mapping[str, Any]] = ()
) -> optuna.Study:
    """Open or create a study that maximises, in a database that SQLAlchemy supports.

    Args:
        url: Optuna storage URL.
        name: Name of the study in the storage.
        settings: What must be equal in all processes that share the study; `UserError` names what differs.
        first: Parameters of the first trials of a new study.
    """
    study = optuna.create_study(storage=open_storage(url), study_name=name, direction="maximize", load_if_exists=True)
    if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
        raise UserError(f"The study {name} of this storage does not maximise one value: choose another --study.")
    if settings is None:
        return study
    if (stored := study.user_attrs.get("settings")) is None:
        for parameters in first:
            study.enqueue_trial(dict(parameters), skip_if_exists=True)
        study.set_user_attr("settings", dict(settings))  # last: a process killed before begins the study once more
    elif different := sorted(key for key in {**stored, **settings} if stored.get(key) != settings.get(key)):
        raise UserError(
            f"The study {name} was begun with another {', '.join(different)}: give the same, or choose another --study."
        )
    return study


@functools.lru_cache(maxsize=8)
@quiet()
def open_storage(url: str) -> RDBStorage:
    """Open a database, once per process; heartbeats detect the trials of dead processes."""
    is_sqlite = url.startswith("sqlite")
    # Without an isolation level, the driver starts no transactions by itself.
    engine = {"connect_args": {"timeout": 60, "isolation_level": None}} if is_sqlite else {}
    heartbeats = {"heartbeat_interval": HEARTBEAT, "grace_period": GRACE, "heartbeat_stale_trial_callback": RETRY}
    try:
        storage = _connect(url, engine_kwargs=engine, **heartbeats)
    except (ImportError, RuntimeError, ValueError, SQLAlchemyError) as error:
        if is_sqlite and "unable" not in str(error):  # the disk is full, or the file may not be written
            raise _failed(url, error) from error
        raise UserError(
            f"The storage {without_password(url)} cannot be opened ({_reason(error)}): give an Optuna storage URL, "
            "such as sqlite:///study.db or postgresql+psycopg://USER@HOST/NAME."
        ) from error
    if is_sqlite:
        # SQLite has no row locks, so that two processes could take the same waiting trial. Therefore every transaction
        # starts with the write lock.
        event.listen(storage.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return storage


def _connect(url: str, **options: Any) -> _Database:
    """Connect to a database and create its tables, which another process may be creating at the same moment."""
    for _ in range(20):
        try:
            return _Database(url, **options)
        except SQLAlchemyError as error:
            if "already exists" not in str(error):
                raise
            time.sleep(POLL)
    return _Database(url, **options)


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Convert an error of the storage in the block, such as a full disk, to a `UserError`."""
    try:
        with quiet():
            yield
    except Exception as error:
        # Optuna raises an AssertionError if it cannot even note that the storage failed.
        cause: BaseException | None = None if isinstance(error, UserError) else error
        while cause is not None and not isinstance(cause, SQLAlchemyError):
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
