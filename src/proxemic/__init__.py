"""Proxy-based deep metric learning: train an embedding, evaluate it on unseen classes, understand why it works.

Sub-packages and functions are imported when they are first used, so that ``import proxemic`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxemic import (
        analysis,
        analyze,
        data,
        distributed,
        losses,
        metrics,
        models,
        optim,
        published,
        recipes,
        report,
        retrieval,
        studies,
        training,
    )
    from proxemic.allocator import keep_freed_memory
    from proxemic.studies.comparison import compare
    from proxemic.studies.evaluate import evaluate
    from proxemic.studies.reality_check import reality_check
    from proxemic.studies.tuning import tune
    from proxemic.studies.verify import verify
    from proxemic.training import train
    from proxemic.training.memory import plan

    __version__: str

__all__ = [
    "__version__",
    "analysis",
    "analyze",
    "compare",
    "data",
    "distributed",
    "evaluate",
    "keep_freed_memory",
    "losses",
    "metrics",
    "models",
    "optim",
    "plan",
    "published",
    "reality_check",
    "recipes",
    "report",
    "retrieval",
    "studies",
    "train",
    "training",
    "tune",
    "verify",
]

_FUNCTIONS = {
    "compare": "studies.comparison",
    "evaluate": "studies.evaluate",
    "keep_freed_memory": "allocator",
    "plan": "training.memory",
    "reality_check": "studies.reality_check",
    "train": "training",
    "tune": "studies.tuning",
    "verify": "studies.verify",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("proxemic")
    if name in _FUNCTIONS:
        return getattr(import_module(f"proxemic.{_FUNCTIONS[name]}"), name)
    if name in __all__:
        return import_module(f"proxemic.{name}")
    raise AttributeError(f"module 'proxemic' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
