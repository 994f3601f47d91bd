"""What a recipe says of an average of the network's weights."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Averaging:
    """An average of the network's weights, which stands for selection beside the weights themselves.

    It is evaluated after each epoch, and the better of the two stands for selection; where nothing is selected, the
    average is kept. The statistics of batch norm are averaged as the weights are. The loss and its proxies are not
    averaged: they are kept as they are after the chosen epoch.

    Args:
        decay: Of an exponential average of the weights after each step, the share that it keeps of itself, in (0, 1),
            such as 0.999; it looks back over about 1/(1 − decay) steps. Null is the average of the weights after each
            epoch, all alike.
        begins: The first epoch, from 1, whose weights are averaged.

    Raises:
        ValueError: If a number is out of its range.

    Source: Izmailov et al. 2018, Averaging weights leads to wider optima and better generalization (null), and Polyak
    and Juditsky 1992 (exponential averages), by `torch.optim.swa_utils.AveragedModel`.
    """

    decay: float | None = 0.999
    begins: int = 1

    def __post_init__(self) -> None:
        if self.decay is not None and not 0 < self.decay < 1:
            raise ValueError(
                f"training.average.decay is {self.decay}, but must be above 0 and below 1, as 0.999 is, or null for "
                "the average over epochs."
            )
        if self.begins < 1:
            raise ValueError(f"training.average.begins is {self.begins}, but must be an epoch, from 1 on.")

    def share(self, averaged: int) -> float:
        """The share of new weights in the average of ``averaged`` earlier ones and these.

        >>> Averaging(decay=None).share(3), Averaging(decay=0.75).share(3)
        (0.25, 0.25)
        """
        return 1 / (averaged + 1) if self.decay is None else 1 - self.decay
