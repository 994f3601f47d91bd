"""Tune a recipe's hyper-parameters on classes held out from training.

`tune` varies a recipe within a search space (`spaces`). Each trial is a training run (`search`). Processes, also on
several machines, share the trials through an Optuna study (`study`). `curves` estimates the result of fewer trials.
"""

from proxemic.studies.tuning.curves import SearchCurve, draw_search_curves, search_curve
from proxemic.studies.tuning.run import TuningResult, tune
from proxemic.studies.tuning.study import FinishedTrial

__all__ = ["FinishedTrial", "SearchCurve", "TuningResult", "draw_search_curves", "search_curve", "tune"]
