"""Evaluate models and files of embeddings: choose images, compute metrics and format the result."""

from proxemic.studies.evaluation.files import read_files
from proxemic.studies.evaluation.models import check_made_by, choose_images, embed_models, trained_labels
from proxemic.studies.evaluation.result import Evaluation

__all__ = ["Evaluation", "check_made_by", "choose_images", "embed_models", "read_files", "trained_labels"]
