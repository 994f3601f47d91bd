"""Evaluate models and files of embeddings: choose images, compute metrics and format the result."""

from proxemic.studies.evaluation.models import check_made_by, choose_images, evaluate_models
from proxemic.studies.evaluation.result import Evaluation
from proxemic.studies.evaluation.rows import evaluate_files, rerank

__all__ = ["Evaluation", "check_made_by", "choose_images", "evaluate_files", "evaluate_models", "rerank"]
