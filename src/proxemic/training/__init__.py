"""Training: from a recipe to a run directory, resumable at any moment.

What is derived from classes of Lightning or torchmetrics is imported when it is first used: those take seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from proxemic.extras import optional_dependency

with optional_dependency("train"):
    from proxemic.optim.schedules import PolynomialDecay
    from proxemic.training.annealing import GammaAnnealing
    from proxemic.training.averaging import Averaging
    from proxemic.training.embed import embed_dataset
    from proxemic.training.parameter_groups import Optimization, parameter_groups
    from proxemic.training.phases import SecondPhase, UntilPlateau
    from proxemic.training.recipe import BatchConfig, EvaluationConfig, Recipe, TrainingConfig
    from proxemic.training.run_directory import RunDirectory
    from proxemic.training.train import TrainingResult, train

if TYPE_CHECKING:
    from proxemic.training.epoch_metrics import DistanceToProxy, EpochMeasure, ProxyGap, Snapshots
    from proxemic.training.retrieval_callback import RetrievalCallback
    from proxemic.training.retrieval_metric import RetrievalMetric

__all__ = [
    "Averaging",
    "BatchConfig",
    "DistanceToProxy",
    "EpochMeasure",
    "EvaluationConfig",
    "GammaAnnealing",
    "Optimization",
    "PolynomialDecay",
    "ProxyGap",
    "Recipe",
    "RetrievalCallback",
    "RetrievalMetric",
    "RunDirectory",
    "SecondPhase",
    "Snapshots",
    "TrainingConfig",
    "TrainingResult",
    "UntilPlateau",
    "embed_dataset",
    "parameter_groups",
    "train",
]

_LATE = {
    "DistanceToProxy": "epoch_metrics",
    "EpochMeasure": "epoch_metrics",
    "ProxyGap": "epoch_metrics",
    "RetrievalCallback": "retrieval_callback",
    "RetrievalMetric": "retrieval_metric",
    "Snapshots": "epoch_metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module 'proxemic.training' has no attribute {name!r}")
    with optional_dependency("train"):
        return getattr(import_module(f"proxemic.training.{_LATE[name]}"), name)
