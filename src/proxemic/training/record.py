"""What a run has come to so far, and the files of its chosen network."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from proxemic.models import EmbeddingModel, save_model
from proxemic.models.model import without_head
from proxemic.runs.directory import RunDirectory
from proxemic.training.distributed.shards import ProxyShards
from proxemic.training.phases import EndedPhase
from proxemic.training.recipe import Recipe
from proxemic.training.times import Times


@dataclass
class Display:
    """Who is told what on the way: lines for the user, each new row of the history, and where the time goes.

    ``raised`` is the error by which ``on_epoch`` has ended the training.
    """

    report: Callable[[str], object]
    bars: bool
    on_epoch: Callable[[Mapping[str, float]], object] | None
    times: Times
    raised: Exception | None = None


@dataclass
class Record:
    """The history of a run and its choice, which its checkpoint holds.

    Args:
        rows: One mapping of names to values per epoch.
        best: The row that is chosen; ``epoch`` 0 is a network of before the first step. None before any is.
        kept: What is kept of it: the weights after the ``epoch``, their ``average``, the ``start`` without a head, or
            the ``untrained`` network with its head.
        starts: The metrics of the networks of before the first step.
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
        return {name: getattr(self, name) for name in ("rows", "best", "kept", "starts", "step")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what a checkpoint holds."""
        for name, value in state.items():
            setattr(self, name, value)


def write_chosen(
    run: RunDirectory,
    recipe: Recipe,
    kept: str,
    model: EmbeddingModel,
    loss: nn.Module,
    shards: ProxyShards | None,
) -> None:
    """Write the chosen network and, unless that is the pretrained one without a head, its loss."""
    save_model(run.path, without_head(model) if kept == "start" else model, recipe.preprocessing)
    if kept == "start":  # the proxies are of another size, and untrained
        run.loss.unlink(missing_ok=True)
    else:
        write_loss(run, loss, shards)


def write_loss(run: RunDirectory, loss: nn.Module, shards: ProxyShards | None) -> None:
    """Write what the loss has learnt; sharded proxies as they are in the last checkpoint."""
    state: dict[str, Tensor] = loss.state_dict()
    if shards is not None:
        state["proxies"] = shards.whole()
    run.write_loss(state)
