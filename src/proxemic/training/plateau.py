"""Phases that end at a plateau of the validation metric."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class UntilPlateau:
    """A phase ends before its epochs are over where evaluation.metric on the validation classes no longer grows.

    Args:
        patience: Epochs without an improvement after which the phase ends, at least 1.
        min_improvement: By more than this the metric, in [0, 1], must exceed the best of the phase so far; 0 or more.

    Raises:
        ValueError: If a number is out of its range.

    Source: realigned softmax warping, appendix D-A1 ("until validation accuracy plateaus"); it states no patience.

    >>> UntilPlateau(patience=2, min_improvement=0.01).reached([0.5, 0.6, 0.605, 0.61, 0.7])
    4
    """

    patience: int = 5
    min_improvement: float = 0.0

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"training.until_plateau.patience is {self.patience}, but must be at least 1 epoch.")
        if not 0 <= self.min_improvement < math.inf:
            raise ValueError(
                f"training.until_plateau.min_improvement is {self.min_improvement}, but must be a number of 0 or more."
            )

    def reached(self, values: Sequence[float]) -> int | None:
        """After how many epochs a phase is at its plateau; None where it is not yet.

        Args:
            values: Of the metric after each epoch of the phase.
        """
        best, since = -math.inf, 0
        for epoch, value in enumerate(values, start=1):
            if value > best + self.min_improvement:
                best, since = value, epoch
            elif epoch - since >= self.patience:
                return epoch
        return None


@dataclass(frozen=True)
class EndedPhase:
    """A phase that is over.

    Args:
        epochs: That it had.
        reason: Why it ended: the metric was at a ``plateau``, or its ``epochs`` were over.
    """

    epochs: int
    reason: Literal["plateau", "epochs"]


def ended_phases(values: Sequence[float], lengths: Sequence[int], until: UntilPlateau) -> list[EndedPhase]:
    """The phases that are over, by the history alone, so that a run that is resumed ends them where it would have.

    Args:
        values: Of the metric after each epoch of the run.
        lengths: The most epochs that each phase has.
        until: What is waited for.

    >>> ended_phases([0.5, 0.4, 0.6, 0.7], [3, 2], UntilPlateau(patience=1))
    [EndedPhase(epochs=2, reason='plateau'), EndedPhase(epochs=2, reason='epochs')]
    """
    ended: list[EndedPhase] = []
    for length in lengths:
        at = until.reached(values[:length])
        if at is None and len(values) < length:
            break
        ended.append(EndedPhase(length, "epochs") if at is None else EndedPhase(at, "plateau"))
        values = values[ended[-1].epochs :]
    return ended
