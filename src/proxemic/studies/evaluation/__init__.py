"""How models and files of embeddings are evaluated: which images they are, their metrics, and their report."""

from proxemic.studies.evaluation.models import check_made_by, choose_images, evaluate_models
from proxemic.studies.evaluation.result import Evaluation
from proxemic.studies.evaluation.rows import evaluate_files, rerank

__all__ = ["Evaluation", "check_made_by", "choose_images", "evaluate_files", "evaluate_models", "rerank"]
