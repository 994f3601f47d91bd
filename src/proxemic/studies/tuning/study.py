"""Optuna studies: the storage that processes share, with heartbeats, samplers and pruners."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from proxemic.addresses import without_password
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.studies.tuning.spaces import Choices, Range

with optional_dependency("tune"):
    import optuna
    from optuna.exceptions import ExperimentalWarning
    from optuna.pruners import BasePruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
    from optuna.samplers import BaseSampler, GPSampler, GridSampler, RandomSampler, TPESampler
    from optuna.storages import BaseStorage, JournalStorage, RDBStorage, RetryHeartbeatStaleTrialCallback
    from optuna.storages.journal import JournalRedisBackend
    from sqlalchemy import event
    from sqlalchemy.exc import SQLAlchemyError

Sampler = Literal["tpe", "gp", "random", "grid"]
Pruner = Literal["halving", "median", "none"]

HEARTBEAT, GRACE = 10, 60
"""Seconds between the heartbeats of a trial, and without one until the trial counts as dead."""
with warnings.catch_warnings():
    warnings.simplefilter("ignore", ExperimentalWarning)
    RETRY = RetryHeartbeatStaleTrialCallback(inherit_intermediate_values=True)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence Optuna's log, and its warnings about what is experimental, repeated or moved into a range."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            warnings.filterwarnings(
                "ignore", "Fixed parameter|The reported value is ignored|The value .* is out of range"
            )
            yield
    finally:
        optuna.logging.set_verbosity(before)


@quiet()
def open_study(url: str, name: str) -> optuna.Study:
    """Open a study that maximises, in a database that SQLAlchemy knows or in redis, or begin it."""
    storage = open_storage(url)
    study = optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True)
    if study.directions != [optuna.study.StudyDirection.MAXIMIZE]:
        raise UserError(f"The study {name} of this storage does not maximise one value: choose another --study.")
    return study


def has_heartbeats(url: str) -> bool:
    """Return whether trials of dead processes are noticed, as in databases; redis keeps no heartbeats."""
    return not url.startswith(("redis://", "rediss://"))


@functools.lru_cache(maxsize=8)
@quiet()
def open_storage(url: str) -> BaseStorage:
    """Open an Optuna storage, once per process."""
    is_sqlite = url.startswith("sqlite")
    try:
        if not has_heartbeats(url):
            return JournalStorage(JournalRedisBackend(url))
        storage = _Database(
            url,
            # Without an isolation level, the driver begins no transactions by itself.
            engine_kwargs={"connect_args": {"timeout": 60, "isolation_level": None}} if is_sqlite else {},
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=RETRY,
        )
    except (ImportError, RuntimeError, ValueError, SQLAlchemyError) as error:
        if is_sqlite and "unable" not in str(error):  # the disk is full, or the file may not be written
            raise _failed(url, error) from error
        raise UserError(
            f"The storage {without_password(url)} cannot be opened ({_reason(error)}): give an Optuna storage URL, "
            "such as sqlite:///study.db, postgresql://USER@HOST/NAME or redis://HOST."
        ) from error
    if is_sqlite:
        # SQLite has no row locks: two processes that both read that a trial is waiting would both take it. So every
        # transaction takes the write lock at its beginning.
        event.listen(storage.engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    return storage


beaten = threading.Event()
"""Set by each heartbeat. A trial has parameters only after its first one: else nobody would see that it has died."""


class _Database(RDBStorage):
    """A storage whose heartbeat thread does not end in a traceback: a single missed heartbeat does no harm."""

    def record_heartbeat(self, trial_id: int) -> None:
        with contextlib.suppress(Exception):
            super().record_heartbeat(trial_id)
            beaten.set()


@contextlib.contextmanager
def at_work(url: str) -> Iterator[None]:
    """Raise `UserError` in one sentence where the storage fails in the block, above all because the disk is full."""
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and type(cause).__module__.partition(".")[0] not in ("sqlalchemy", "redis"):
            cause = cause.__cause__ or cause.__context__
        if cause is None:
            raise
        raise _failed(url, cause) from error


def _failed(url: str, error: BaseException) -> UserError:
    return UserError(
        f"The storage {without_password(url)} failed ({_reason(error)}): free some space, or check its folder or "
        "server; the same command goes on."
    )


def _reason(error: BaseException) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split())[:200]


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


def make_sampler(
    sampler: Sampler, dimensions: Mapping[str, Range | Choices], trials: int, seed: int | None
) -> BaseSampler:
    """Make a sampler; of ``trials``, a quarter, from 3 to 10, are random before ``tpe`` or ``gp`` learns from them."""
    startup = min(10, max(3, trials // 4))
    if sampler == "tpe":
        return TPESampler(seed=seed, n_startup_trials=startup)
    if sampler == "gp":
        return GPSampler(seed=seed, n_startup_trials=startup)
    if sampler == "grid":
        return GridSampler({name: each.values() for name, each in dimensions.items()})
    return RandomSampler(seed=seed)


def make_pruner(pruner: Pruner, steps: int) -> BasePruner:
    """Make a pruner of trials that have ``steps`` at most."""
    if pruner == "halving":
        return SuccessiveHalvingPruner(min_resource=halving_rungs(steps)[0], reduction_factor=2)
    return MedianPruner(n_startup_trials=5, n_warmup_steps=steps // 4) if pruner == "median" else NopPruner()


def halving_rungs(steps: int) -> list[int]:
    """Return the steps after which successive halving compares trials: a quarter of all, rounded up, and its double.

    >>> halving_rungs(20), halving_rungs(3)
    ([5, 10], [1, 2])
    """
    quarter = -(-steps // 4)
    return [quarter, 2 * quarter]


def importances(study: optuna.Study) -> dict[str, float]:
    """Return the importance of each parameter by PED-ANOVA, largest first; {} for too few trials, or equal ones."""
    try:
        with quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return optuna.importance.get_param_importances(study)
    except (RuntimeError, ValueError):
        return {}
