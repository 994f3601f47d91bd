"""Proxy-based deep metric learning: train an embedding, evaluate it on unseen classes, understand why it works.

Sub-packages and functions are imported when they are first used, so that ``import proxemic`` costs nothing.
"""

from typing import TYPE_CHECKING

from proxemic.lazy import lazy_names

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

__getattr__, __dir__ = lazy_names(__name__)
