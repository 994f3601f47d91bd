"""Training: from a recipe to a run directory, resumable at any moment."""

from proxemic.extras import optional_dependency

with optional_dependency("train"):
    from proxemic.optim.schedules import PolynomialDecay
    from proxemic.training.embed import embed_dataset
    from proxemic.training.epoch_metrics import DistanceToProxy, EpochMeasure, ProxyGap, Snapshots
    from proxemic.training.parameter_groups import Optimization, parameter_groups
    from proxemic.training.phases import SecondPhase, UntilPlateau
    from proxemic.training.recipe import BatchConfig, EvaluationConfig, Recipe, TrainingConfig
    from proxemic.training.retrieval_callback import RetrievalCallback
    from proxemic.training.retrieval_metric import RetrievalMetric
    from proxemic.training.run_directory import RunDirectory
    from proxemic.training.train import TrainingResult, train

__all__ = [
    "BatchConfig",
    "DistanceToProxy",
    "EpochMeasure",
    "EvaluationConfig",
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
