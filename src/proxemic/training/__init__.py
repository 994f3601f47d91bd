"""Training: from a recipe to a run directory, resumable at any moment."""

from proxemic.extras import optional_dependency

with optional_dependency("train"):
    from proxemic.optim.schedules import PolynomialDecay
    from proxemic.runs.directory import RunDirectory
    from proxemic.runs.embed import embed_dataset
    from proxemic.runs.evaluate import EvaluationConfig
    from proxemic.training.callbacks.callback import Callback
    from proxemic.training.callbacks.measures import DistanceToProxy, EpochMeasure, ProxyGap, Snapshots
    from proxemic.training.config import Averaging, BatchConfig, GammaAnnealing, TrainingConfig, UntilPlateau
    from proxemic.training.parameter_groups import Optimization, parameter_groups
    from proxemic.training.parts.loggers import CSVLog, Logger, TensorBoardLog
    from proxemic.training.phases import SecondPhase
    from proxemic.training.recipe import Recipe
    from proxemic.training.state import TrainingState
    from proxemic.training.train import TrainingResult, train

__all__ = [
    "Averaging",
    "BatchConfig",
    "CSVLog",
    "Callback",
    "DistanceToProxy",
    "EpochMeasure",
    "EvaluationConfig",
    "GammaAnnealing",
    "Logger",
    "Optimization",
    "PolynomialDecay",
    "ProxyGap",
    "Recipe",
    "RunDirectory",
    "SecondPhase",
    "Snapshots",
    "TensorBoardLog",
    "TrainingConfig",
    "TrainingResult",
    "TrainingState",
    "UntilPlateau",
    "embed_dataset",
    "parameter_groups",
    "train",
]
