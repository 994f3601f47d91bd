"""Signs of life of trials, for storages that keep none of their own: redis, of those that Optuna has."""

import contextlib
import threading
import time
from collections.abc import Iterator

from proxemic.extras import optional_dependency

with optional_dependency("tune"):
    import optuna
    from optuna.storages import JournalStorage
    from optuna.trial import FrozenTrial

__all__ = ["GRACE", "HEARTBEAT", "beating", "is_silent"]

HEARTBEAT, GRACE = 30.0, 150.0
"""Seconds between signs of life of a trial, and without one until it is taken for dead."""
BEAT = "beat"
"""Attribute of a trial: how many signs of life it gave."""

_heard: dict[tuple[str, int], tuple[int, float]] = {}
"""Of each trial, the last sign and when this process first saw it: no two machines' clocks are compared."""


@contextlib.contextmanager
def beating(study: optuna.Study, trial: optuna.Trial) -> Iterator[None]:
    """Give signs of life of a trial while the block runs, unless the storage does."""
    if not isinstance(study._storage, JournalStorage):
        yield
        return
    over = threading.Event()

    def beat() -> None:
        count = 0
        while not over.wait(HEARTBEAT):
            count += 1
            with contextlib.suppress(Exception):  # one that is missed does no harm, and the next may arrive
                trial.set_user_attr(BEAT, count)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def is_silent(study: optuna.Study, trial: FrozenTrial) -> bool:
    """Whether a running trial of such a storage has given no sign for as long as this process looks at it."""
    if not isinstance(study._storage, JournalStorage):
        return False
    key, beat, now = (study.study_name, trial.number), trial.user_attrs.get(BEAT, 0), time.monotonic()
    last, since = _heard.get(key, (beat, now))
    _heard[key] = (beat, now if beat != last else since)
    return beat == last and now - since > GRACE
