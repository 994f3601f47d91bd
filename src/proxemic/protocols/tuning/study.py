"""An Optuna study that processes share: opened, counted, and freed of trials whose process died."""

import contextlib
import os
import re
import socket
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.protocols.tuning.pulse import GRACE, HEARTBEAT, is_silent

with optional_dependency("tune"):
    import optuna
    from optuna.storages import BaseStorage, JournalStorage, RDBStorage
    from optuna.storages.journal import JournalRedisBackend
    from optuna.trial import FrozenTrial, TrialState
    from sqlalchemy import Connection, event
    from sqlalchemy.exc import IntegrityError, SQLAlchemyError

__all__ = [
    "agree",
    "check_storage",
    "free_dead_trials",
    "importances",
    "masked",
    "open_study",
    "original_of",
    "process_mark",
    "put_back",
    "quiet",
    "slot_of",
    "storage_at_work",
]

CONTINUES = "continues"
"""Attribute of a trial: Optuna's number of the one that it goes on with."""
SLOT = "slot"
"""Which of the trials that a search is to make it is: our number."""
ENDED, FAILURE = "ended", "failure"
"""How it ended, if not with a value, and why."""
PROCESS = "process"
"""Where it runs."""
SURPLUS = "surplus"
"""That it is beyond the number of trials."""
SETTINGS = "settings"
"""Attribute of a study: what all its processes have in common."""


def open_study(url: str, name: str, pruner: optuna.pruners.BasePruner | None = None) -> optuna.Study:
    """Open a study that maximises, or begin it.

    Args:
        url: An Optuna storage: a database of SQLAlchemy (sqlite, postgresql, mysql), or redis.
        name: Of the study.
        pruner: Stops trials that do badly; None stops none.

    Raises:
        UserError: If the storage cannot be opened, or the study is of another kind.
    """
    with quiet(), warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # the heartbeat
        study = optuna.create_study(
            storage=_open_storage(url),
            study_name=name,
            direction="maximize",
            load_if_exists=True,
            pruner=pruner or optuna.pruners.NopPruner(),
        )
    if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
        raise UserError(f"The study {name} of this storage does not maximise one value: choose another --study.")
    return study


def check_storage(url: str) -> None:
    """Raise `UserError` unless the storage can be opened."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        _open_storage(url)


def masked(url: str) -> str:
    """A storage URL without its password.

    >>> masked("postgresql://me:secret@host/tuning")
    'postgresql://me:***@host/tuning'
    >>> masked("mysql://me:se@cret@host/tuning"), masked("postgresql://host/tuning?user=me&password=secret")
    ('mysql://me:***@host/tuning', 'postgresql://host/tuning?user=me&password=***')
    """
    url = re.sub(r"(//[^:/@]*:)[^/?]+@", r"\1***@", url)
    return re.sub(r"(?i)([?&](?:password|passwd|pwd)=)[^&#]*", r"\1***", url)


@contextlib.contextmanager
def storage_at_work(url: str) -> Iterator[None]:
    """While a study is read and written: what its storage fails with, above all a full disk, is told as such.

    Raises:
        UserError: In place of what Optuna raises then, which may be that it should not have come so far.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = _storage_failure(error)
        if reason is None:
            raise
        raise _failed(url, reason) from error


def _failed(url: str, reason: str) -> UserError:
    return UserError(
        f"The storage {masked(url)} failed ({reason[:200]}): free some space, or check its folder or server; the same "
        "command goes on."
    )


def _storage_failure(error: BaseException | None) -> str | None:
    """What the database said, of an error that came of it."""
    if error is not None and type(error).__module__.partition(".")[0] in ("sqlalchemy", "redis"):
        return " ".join(str(getattr(error, "orig", None) or error).split())
    return None if error is None else _storage_failure(error.__cause__ or error.__context__)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Optuna's own lines are not for the user: what they say is said otherwise."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def agree(study: optuna.Study, settings: Mapping[str, Any]) -> None:
    """Keep what all processes of a study must have in common, or compare with what is kept.

    Raises:
        UserError: If they differ.
    """
    kept = study.user_attrs.get(SETTINGS)
    if kept is None:
        study.set_user_attr(SETTINGS, dict(settings))
    elif different := [name for name in {**kept, **settings} if kept.get(name) != settings.get(name)]:
        raise UserError(
            f"The study {study.study_name} was begun with another {', '.join(sorted(different))}: give the same, or "
            "choose another --study."
        )


def slot_of(trials: Sequence[FrozenTrial], number: int) -> int:
    """Which of the trials that a search is to make a trial is, from 0; no two processes have the same one."""
    attrs = {each.number: each.user_attrs for each in trials if each.number <= number}
    original = attrs.get(number, {}).get(CONTINUES, number)
    return sum(n < original and CONTINUES not in own and SURPLUS not in own for n, own in attrs.items())


def original_of(trial: FrozenTrial) -> int:
    """Optuna's number of the trial, or of the first one that it goes on with."""
    return trial.user_attrs.get(CONTINUES, trial.number)


def put_back(study: optuna.Study, trial: FrozenTrial) -> None:
    """Have a trial that was ended before its time taken up again, by any process, with the same parameters."""
    attrs = {name: value for name, value in trial.user_attrs.items() if name not in (ENDED, FAILURE, PROCESS)}
    study.add_trial(
        optuna.trial.create_trial(
            state=TrialState.WAITING,
            params=trial.params,
            distributions=trial.distributions,
            user_attrs=attrs | {CONTINUES: original_of(trial)},
            intermediate_values=trial.intermediate_values,
        )
    )


def free_dead_trials(study: optuna.Study) -> None:
    """Put back the trials whose process is no more: it is known on this machine, and elsewhere misses its heartbeat."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if _is_dead(trial) or is_silent(study, trial):
            try:
                study.tell(trial.number, state=TrialState.FAIL)
            except (ValueError, optuna.exceptions.UpdateFinishedTrialError):
                continue  # another process was quicker
            put_back(study, trial)


def importances(study: optuna.Study) -> dict[str, float]:
    """How much of the difference between the trials each parameter explains, largest first; {} if that is not known."""
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optuna.importance.get_param_importances(study)
    except (RuntimeError, ValueError):
        return {}  # of trials that are too few, or do not differ


def process_mark() -> list[Any]:
    """What tells this process from all others, also from a later one of the same number."""
    return [socket.gethostname(), os.getpid(), _started(os.getpid())]


def _is_dead(trial: FrozenTrial) -> bool:
    mark = trial.user_attrs.get(PROCESS)
    if mark is None:  # killed between the trial's birth and its first words
        born = trial.datetime_start
        return born is not None and datetime.now() - born > timedelta(seconds=GRACE)
    host, pid, started = mark
    return host == socket.gethostname() and _started(pid) != started


def _started(pid: int) -> str | None:
    """When a process began, in the system's ticks, or "" where the system does not say; None if there is none."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            return stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[19]
        except OSError:
            return None
    if os.name == "posix":
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
    return ""


class _Storage(RDBStorage):
    """One whose thread of heartbeats does not end in a traceback: a beat that is missed does no harm."""

    def record_heartbeat(self, trial_id: int) -> None:
        with contextlib.suppress(Exception):
            super().record_heartbeat(trial_id)


def _open_storage(url: str) -> BaseStorage:
    for attempt in range(50):
        try:
            if url.startswith(("redis://", "rediss://")):
                return JournalStorage(JournalRedisBackend(url))
            storage = _Storage(
                url,
                engine_kwargs={"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {},
                heartbeat_interval=int(HEARTBEAT),
                grace_period=int(GRACE),
                heartbeat_stale_trial_callback=put_back,
            )
        except (ImportError, RuntimeError, ValueError, SQLAlchemyError) as error:
            # Two processes may make the tables at the same time.
            again = isinstance(error, IntegrityError) or re.search("already exists|locked", str(error))
            if again and attempt < 49:
                time.sleep(0.1)
                continue
            reason = " ".join(str(getattr(error, "orig", None) or error).split())
            if re.search("disk|readonly", reason):  # what SQLite says of one that is full or may not be written
                raise _failed(url, reason) from error
            raise UserError(
                f"The storage {masked(url)} cannot be opened ({reason[:200]}): give an Optuna storage URL, such as "
                "sqlite:///study.db, postgresql://USER@HOST/NAME or redis://HOST."
            ) from error
        if storage.engine.name == "sqlite":
            _serialize(storage)
        return storage
    raise AssertionError


def _serialize(storage: RDBStorage) -> None:
    """Take SQLite's write lock at the beginning of each transaction.

    SQLite has no locks of rows: two processes that both read that a trial waits, and only then write that they take it,
    would both train it.
    """

    def connected(connection: Any, record: object) -> None:
        connection.isolation_level = None  # the driver would begin by itself, without the lock

    def begun(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    event.listen(storage.engine, "connect", connected)
    event.listen(storage.engine, "begin", begun)
    storage.engine.dispose()  # of connections made before
