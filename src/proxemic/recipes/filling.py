"""Arguments that the program fills in, given to the classes that have parameters of their names."""

import inspect
from typing import Any, TypeVar

__all__ = ["FILLED_IN", "make", "parameters"]

FILLED_IN = {"num_classes", "embedding_size", "num_images", "labels", "batch_size", "seed"}

Made = TypeVar("Made")


def make(class_type: type[Made], *given: Any, **options: Any) -> Made:
    """Make an object, leaving out what its class has no use for.

    >>> from proxemic.data import RandomBatches
    >>> len(make(RandomBatches, num_images=10, labels=None, batch_size=5, seed=0))
    2
    """
    taken = parameters(class_type)
    return class_type(
        *given, **{name: value for name, value in options.items() if name in taken or name not in FILLED_IN}
    )


def parameters(kind: type) -> list[str]:
    """Names of the parameters of a class's constructor, with those that it hands on as keywords to its base class."""
    names: list[str] = []
    for base in inspect.getmro(kind):
        found = inspect.signature(base.__init__).parameters
        names += [each for each in found if each not in names]
        if all(each.kind is not each.VAR_KEYWORD for each in found.values()):
            break
    return names
