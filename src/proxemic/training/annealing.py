"""What a recipe says of a softness of pooling that falls over the first epochs."""

from dataclasses import dataclass

from proxemic.losses.checks import check_positive


@dataclass(frozen=True)
class GammaAnnealing:
    """The γ of the pooling over the proxies of a class goes from ``begin`` to that of the recipe, epoch by epoch.

    While γ is large, all proxies of a class take part in its score and move alike; as it falls, each is left with the
    images that it is nearest to. γ is the same in all steps of an epoch, and its logarithm changes evenly. The loss
    that is saved has the γ of the recipe.

    Args:
        begin: γ > 0 in the first epoch.
        epochs: The epochs, at least 2, of which the last has the γ of the recipe, as have all after it.

    Raises:
        ValueError: If a number is out of its range.

    >>> [round(GammaAnnealing(begin=1.0, epochs=3).gamma(epoch, end=0.01), 4) for epoch in range(4)]
    [1.0, 0.1, 0.01, 0.01]
    """

    begin: float
    epochs: int

    def __post_init__(self) -> None:
        check_positive("training.anneal_gamma.begin", self.begin)
        if self.epochs < 2:
            raise ValueError(
                f"training.anneal_gamma.epochs is {self.epochs}, but must be at least 2: in the first epoch gamma is "
                "begin, in the last of these that of the recipe."
            )

    def gamma(self, epoch: int, end: float) -> float:
        """γ in an epoch, counted from 0, where it ends at ``end``."""
        if epoch >= self.epochs - 1:
            return end
        return self.begin * (end / self.begin) ** (epoch / (self.epochs - 1))
