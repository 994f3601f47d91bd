"""Training: from a recipe to a run directory, resumable at any moment.

Classes that derive from those of Lightning or torchmetrics are imported at first use, since that takes seconds.
"""

from typing import TYPE_CHECKING

from proxemic.extras import optional_dependency
from proxemic.lazy import lazy_names

with optional_dependency("train"):
    from proxemic.optim.schedules import PolynomialDecay
    from proxemic.runs.directory import RunDirectory
    from proxemic.runs.embed import embed_dataset
    from proxemic.runs.evaluate import EvaluationConfig
    from proxemic.training.config import Averaging, BatchConfig, GammaAnnealing, TrainingConfig, UntilPlateau
    from proxemic.training.parameter_groups import Optimization, parameter_groups
    from proxemic.training.phases import SecondPhase
    from proxemic.training.recipe import Recipe
    from proxemic.training.train import TrainingResult, train

if TYPE_CHECKING:
    from proxemic.training.callbacks.measures import DistanceToProxy, EpochMeasure, ProxyGap, Snapshots
    from proxemic.training.callbacks.retrieval import RetrievalCallback
    from proxemic.training.callbacks.retrieval_metric import RetrievalMetric

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

__getattr__, __dir__ = lazy_names(__name__)
