"""The state of a run: its history, its selected epoch, the files of the selected network, and the time spent."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from proxemic.models import EmbeddingModel, save_model
from proxemic.models.model import without_head
from proxemic.runs.directory import RunDirectory
from proxemic.runs.processes import Processes
from proxemic.training.distributed.shards import ProxyShards
from proxemic.training.phases import EndedPhase
from proxemic.training.recipe import Recipe


class Times:
    """Seconds of wall clock by activity, since ``began`` (`time.monotonic`; None for now)."""

    def __init__(self, began: float | None = None) -> None:
        now = time.monotonic()
        self._began = now if began is None else began
        self._spent = {"start": now - self._began}

    def add(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes to an activity."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by activity, with ``other`` and the ``total``."""
        total = time.monotonic() - self._began
        spent = self._spent | {"other": max(0.0, total - sum(self._spent.values())), "total": total}
        return {name: round(value, 3) for name, value in spent.items()}


def seconds_sentence(seconds: Mapping[str, float]) -> str:
    """Format the content of ``seconds.json`` in one line, without activities of less than half a second.

    >>> seconds_sentence({"training": 8.7, "test": 0.3, "total": 9.1})
    'Seconds: training 9, in all 9'
    """
    parts = [f"{name} {value:.0f}" for name, value in seconds.items() if value >= 0.5 and name != "total"]
    total = f"in all {seconds['total']:.0f}"
    return f"Seconds: {', '.join([*parts, total])}"


@dataclass
class Record:
    """The history and the selected epoch of a run, which are in its checkpoint.

    Args:
        rows: One mapping of names to values per epoch.
        best: The row of the selected epoch, or None before any is selected; ``epoch`` 0 is the network before the first
            step.
        kept: Which weights are kept: those after the ``epoch``, their ``average``, the ``start`` without a head, or the
            ``untrained`` network with its head.
        starts: The metrics of the networks before training.
        step: The step of the last checkpoint.
        ended: The phases that have ended, if phases end at a plateau; derived from the rows.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] | None = None
    kept: str = "epoch"
    starts: dict[str, dict[str, float]] = field(default_factory=dict)
    step: int = 0
    ended: list[EndedPhase] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """Return the content for the checkpoint."""
        return {name: value for name, value in vars(self).items() if name != "ended"}


@dataclass
class Session:
    """The state that all steps of a training run share.

    Args:
        recipe: The recipe of the run.
        run: The run directory.
        processes: The processes that train together.
        report: Receives lines for the user.
        bars: Whether to show progress bars.
        on_epoch: Receives each new row of the history.
        times: Seconds spent so far, by activity.
        record: The history and the selected epoch so far.
        begun: Whether there is a run directory that can be resumed.
        raised: The error that ``on_epoch`` raised.
    """

    recipe: Recipe
    run: RunDirectory
    processes: Processes = Processes()
    report: Callable[[str], object] = print
    bars: bool = False
    on_epoch: Callable[[Mapping[str, float]], object] | None = None
    times: Times = field(default_factory=Times)
    record: Record = field(default_factory=Record)
    begun: bool = False
    raised: Exception | None = None


def write_chosen(session: Session, model: EmbeddingModel, loss: nn.Module, shards: ProxyShards | None) -> None:
    """Write the selected network and its loss, but no loss for the pretrained network without a head."""
    run, is_bare = session.run, session.record.kept == "start"
    save_model(run.path, without_head(model) if is_bare else model, session.recipe.preprocessing)
    if is_bare:  # the proxies have another size, and are untrained
        run.loss.unlink(missing_ok=True)
    else:
        write_loss(run, loss, shards)


def write_loss(run: RunDirectory, loss: nn.Module, shards: ProxyShards | None) -> None:
    """Write the weights of the loss; sharded proxies are taken from the last checkpoint."""
    state: dict[str, Tensor] = loss.state_dict()
    if shards is not None:
        state["proxies"] = shards.whole()
    run.write_loss(state)
