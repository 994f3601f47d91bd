"""Cleaning a data set with an embedding: wrong labels, duplicates, outliers.

`clean` does all of it; the scores are functions of embeddings: `wrong_label_scores`, `outlier_scores`.
"""

from proxemic.retrieval.curation.cleaning import Cleaning, Duplicate, Outlier, Suspect, clean
from proxemic.retrieval.curation.scores import LabelScores, outlier_scores, wrong_label_scores

__all__ = [
    "Cleaning",
    "Duplicate",
    "LabelScores",
    "Outlier",
    "Suspect",
    "clean",
    "outlier_scores",
    "wrong_label_scores",
]
