"""Classes of Lightning that recipes name, without importing Lightning: it takes seconds, and only training needs it."""

from abc import ABCMeta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger
else:

    class _StandIn(ABCMeta):
        """The type of classes that stand for the one in `path`: what is derived from that is derived from them."""

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return cls is subclass or any(f"{b.__module__}.{b.__qualname__}" == cls.path for b in subclass.__mro__)

        def __instancecheck__(cls, instance: Any) -> bool:
            return issubclass(type(instance), cls)

    class Callback(metaclass=_StandIn):
        """Stands for Lightning's class."""

        path = "lightning.pytorch.callbacks.callback.Callback"

    class Logger(metaclass=_StandIn):
        """Stands for Lightning's class."""

        path = "lightning.pytorch.loggers.logger.Logger"
