"""How models and files of embeddings are evaluated: which images they are, their metrics, and their report."""

from proxemic.protocols.runs.evaluation.files import evaluate_files
from proxemic.protocols.runs.evaluation.models import choose_images, evaluate_models
from proxemic.protocols.runs.evaluation.result import Evaluation

__all__ = ["Evaluation", "choose_images", "evaluate_files", "evaluate_models"]
