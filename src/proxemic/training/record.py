"""Progress of a run: its history and choice, the files of its chosen network, and where the time went."""

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
    """Seconds of wall clock, by what they were spent on, since ``began`` (`time.monotonic`; None is now)."""

    def __init__(self, began: float | None = None) -> None:
        now = time.monotonic()
        self._began = now if began is None else began
        self._spent = {"start": now - self._began}

    def add(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds

    @contextmanager
    def of(self, name: str) -> Iterator[None]:
        """Add the seconds that the block takes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.add(name, time.monotonic() - began)

    def seconds(self) -> dict[str, float]:
        """Return the seconds by name, with ``other`` and the ``total``."""
        total = time.monotonic() - self._began
        spent = self._spent | {"other": max(0.0, total - sum(self._spent.values())), "total": total}
        return {name: round(value, 3) for name, value in spent.items()}


def seconds_sentence(seconds: Mapping[str, float]) -> str:
    """Format the content of ``seconds.json`` in one line, without what took less than half a second.

    >>> seconds_sentence({"training": 8.7, "test": 0.3, "total": 9.1})
    'Seconds: training 9, in all 9'
    """
    parts = [f"{name} {value:.0f}" for name, value in seconds.items() if value >= 0.5 and name != "total"]
    total = f"in all {seconds['total']:.0f}"
    return f"Seconds: {', '.join([*parts, total])}"


@dataclass
class Record:
    """The history of a run and its choice, which its checkpoint holds.

    Args:
        rows: One mapping of names to values per epoch.
        best: The row that is chosen; ``epoch`` 0 is a network before the first step. None before any is chosen.
        kept: What is kept of it: the weights after the ``epoch``, their ``average``, the ``start`` without a head, or
            the ``untrained`` network with its head.
        starts: The metrics of the networks before the first step.
        step: The step of the last checkpoint.
        ended: The phases that are over, of a training that ends phases at a plateau; it follows from the rows.
    """

    rows: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, float] | None = None
    kept: str = "epoch"
    starts: dict[str, dict[str, float]] = field(default_factory=dict)
    step: int = 0
    ended: list[EndedPhase] = field(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint holds."""
        return {name: value for name, value in vars(self).items() if name != "ended"}


@dataclass
class Session:
    """A training run in progress: what it does and where, who takes part, who is told, and how far it has come.

    Args:
        recipe: What the run does.
        run: The directory that it writes.
        processes: The processes that train together.
        report: Receives lines for the user.
        bars: Whether to show progress bars.
        on_epoch: Receives each new row of the history.
        times: Where the time goes.
        record: The history and the choice.
        begun: Whether there is a run to continue.
        raised: The error by which ``on_epoch`` has ended the training.
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
    """Write the chosen network and, unless that is the pretrained one without a head, its loss."""
    run, is_bare = session.run, session.record.kept == "start"
    save_model(run.path, without_head(model) if is_bare else model, session.recipe.preprocessing)
    if is_bare:  # the proxies have another size, and are untrained
        run.loss.unlink(missing_ok=True)
    else:
        write_loss(run, loss, shards)


def write_loss(run: RunDirectory, loss: nn.Module, shards: ProxyShards | None) -> None:
    """Write what the loss has learnt; sharded proxies as they are in the last checkpoint."""
    state: dict[str, Tensor] = loss.state_dict()
    if shards is not None:
        state["proxies"] = shards.whole()
    run.write_loss(state)
