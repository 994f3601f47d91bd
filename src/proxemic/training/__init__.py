"""Training: from a recipe to a run directory, resumable at any moment."""

from proxemic.extras import extra

with extra("train"):
    from proxemic.training.embed import embed_dataset
    from proxemic.training.measures import DistanceToProxy, EpochMeasure, ProxyGap, Snapshots
    from proxemic.training.optim import Optimization, parameter_groups
    from proxemic.training.phases import SecondPhase
    from proxemic.training.plateau import UntilPlateau
    from proxemic.training.recipe import BatchConfig, EvaluationConfig, Recipe, TrainingConfig
    from proxemic.training.retrieval_callback import RetrievalCallback
    from proxemic.training.retrieval_metric import RetrievalMetric
    from proxemic.training.run import RunDirectory
    from proxemic.training.schedules import PolynomialDecay
    from proxemic.training.train import train

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
    "UntilPlateau",
    "embed_dataset",
    "parameter_groups",
    "train",
]
