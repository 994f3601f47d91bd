"""An Optuna study that processes share: opened, checked, and freed of trials whose process died."""

import contextlib
import functools
import os
import re
import socket
import time
import warnings
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from proxemic.addresses import without_password
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import process_runs

with optional_dependency("tune"):
    import optuna
    from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
    from optuna.storages import BaseStorage, JournalStorage, RDBStorage
    from optuna.storages._heartbeat import BaseHeartbeat
    from optuna.storages.journal import BaseJournalBackend, JournalRedisBackend
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy import event
    from sqlalchemy.exc import IntegrityError, SQLAlchemyError

HEARTBEAT, GRACE = 30, 150
"""Seconds between the heartbeats of a trial, and without one until the trial counts as dead."""
BEATS, PROCESS = "beat", "process"
"""Attributes of a trial: in a journal, the number of its heartbeats, and the process that makes it."""


def open_study(url: str, name: str, pruner: optuna.pruners.BasePruner | None = None) -> optuna.Study:
    """Open a study that maximises, in a database that SQLAlchemy knows or in redis, or begin it."""
    with quiet():
        study = optuna.create_study(
            storage=open_storage(url),
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            pruner=pruner or optuna.pruners.NopPruner(),
        )
    if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
        raise UserError(f"The study {name} of this storage does not maximise one value: choose another --study.")
    return study


@contextlib.contextmanager
def storage_at_work(url: str) -> Iterator[None]:
    """Raise `UserError` in one sentence where the storage fails in the block, above all because the disk is full."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and type(cause).__module__.partition(".")[0] not in ("sqlalchemy", "redis"):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise _failed(url, _reason(cause)) from error


def _failed(url: str, reason: str) -> UserError:
    return UserError(
        f"The storage {without_password(url)} failed ({reason[:200]}): free some space, or check its folder or server; "
        "the same command goes on."
    )


def _reason(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's log, and its warnings that heartbeats and retries are experimental."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def agree(study: optuna.Study, settings: Mapping[str, Any]) -> None:
    """Store the settings that all processes of a study share; raise `UserError` if other ones are stored."""
    kept = study.user_attrs.get("settings")
    if kept is None:
        study.set_user_attr("settings", dict(settings))
    elif different := [name for name in {**kept, **settings} if kept.get(name) != settings.get(name)]:
        raise UserError(
            f"The study {study.study_name} was begun with another {', '.join(sorted(different))}: give the same, or "
            "choose another --study."
        )


def fail_dead_trials(study: optuna.Study) -> None:
    """Fail the trials whose process is dead, so that they are retried.

    On other machines, Optuna's heartbeats tell. On this one the process itself is looked up: a resumed search that
    waited for heartbeats would meanwhile make other trials than an uninterrupted search.
    """
    optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if is_dead(trial):
            with contextlib.suppress(ValueError, UpdateFinishedTrialError):  # another process was quicker
                study.tell(trial.number, state=TrialState.FAIL)


def importances(study: optuna.Study) -> dict[str, float]:
    """The importance of each parameter by PED-ANOVA, largest first; {} for trials that are too few or do not differ."""
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optuna.importance.get_param_importances(study)
    except (RuntimeError, ValueError):
        return {}


def process_mark() -> list[Any]:
    """What tells this process from all others, also from a later one with the same process ID."""
    return [socket.gethostname(), os.getpid(), _started(os.getpid())]


def is_dead(trial: FrozenTrial) -> bool:
    """Whether a running trial's process was on this machine and has ended."""
    mark = trial.user_attrs.get(PROCESS)
    if mark is None:  # killed between the trial's start and its mark
        born = trial.datetime_start
        return born is not None and datetime.now() - born > timedelta(seconds=GRACE)
    host, pid, started = mark
    return host == socket.gethostname() and _started(pid) != started


def _started(pid: int) -> str | None:
    """The start time of a process in clock ticks, "" where the system does not tell it; None if there is none."""
    if not Path("/proc/self/stat").exists():
        return "" if os.name != "posix" or process_runs(pid) else None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]


class _DatabaseStorage(RDBStorage):
    """A storage whose heartbeat thread does not end in a traceback: a single missed heartbeat does no harm."""

    def record_heartbeat(self, trial_id: int) -> None:
        with contextlib.suppress(Exception):
            super().record_heartbeat(trial_id)


class JournalWithHeartbeats(JournalStorage, BaseHeartbeat):
    """Optuna's journal, as redis keeps it, with heartbeats, which Optuna itself has for databases alone.

    An attribute of the trial counts them, and every process times the counts by its own clock, so that the clocks of
    two machines are never compared.
    """

    def __init__(self, backend: BaseJournalBackend) -> None:
        super().__init__(backend)
        self._first_seen: dict[tuple[int, int], float] = {}

    def record_heartbeat(self, trial_id: int) -> None:
        with contextlib.suppress(Exception):
            beats = self.get_trial(trial_id).user_attrs.get(BEATS, 0)
            self.set_trial_user_attr(trial_id, BEATS, beats + 1)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        now = time.monotonic()
        running = self.get_all_trials(study_id, deepcopy=False, states=(TrialState.RUNNING,))
        beats = [(trial._trial_id, trial.user_attrs.get(BEATS, 0)) for trial in running]
        self._first_seen = {beat: self._first_seen.get(beat, now) for beat in beats}
        return [trial_id for (trial_id, _), since in self._first_seen.items() if now - since > GRACE]

    def get_heartbeat_interval(self) -> int:
        return HEARTBEAT

    def get_heartbeat_stale_trial_callback(self) -> None:
        return None


@functools.lru_cache(maxsize=8)
@quiet()
def open_storage(url: str) -> BaseStorage:
    """Open an Optuna storage, once per process."""
    is_sqlite = url.startswith("sqlite")
    for attempt in range(50):
        try:
            if url.startswith(("redis://", "rediss://")):
                return JournalWithHeartbeats(JournalRedisBackend(url))
            storage = _DatabaseStorage(
                url,
                # Without an isolation level, the driver begins no transactions by itself.
                engine_kwargs={"connect_args": {"timeout": 60, "isolation_level": None}} if is_sqlite else {},
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
            )
        except (ImportError, RuntimeError, ValueError, SQLAlchemyError) as error:
            # Two processes may make the tables at the same time.
            again = isinstance(error, IntegrityError) or re.search("already exists|locked", str(error))
            if again and attempt < 49:
                time.sleep(0.1)
                continue
            reason = _reason(error)
            if re.search("disk|readonly", reason):  # what SQLite says of one that is full or may not be written
                raise _failed(url, reason) from error
            raise UserError(
                f"The storage {without_password(url)} cannot be opened ({reason[:200]}): give an Optuna storage URL, "
                "such as sqlite:///study.db, postgresql://USER@HOST/NAME or redis://HOST."
            ) from error
        if is_sqlite:
            # SQLite has no row locks: two processes that both read that a trial is waiting, and then write that they
            # take it, would both train it. So every transaction takes the write lock at its beginning.
            event.listen(storage.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return storage
    raise AssertionError
