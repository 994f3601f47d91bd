"""Cleaning a data set with an embedding: wrong labels, duplicates, outliers.

`clean` finds all of it; the scores are functions of embeddings: `wrong_label_scores`, `outlier_scores`. For a gallery,
people decide about what `find_doubts` finds (``proxemic serve --review``), and `apply_decisions` corrects its labels.
"""

from proxemic.retrieval.curation.cleaning import Cleaning, Duplicate, Outlier, Suspect, clean
from proxemic.retrieval.curation.decisions import (
    Applied,
    Decision,
    apply_decisions,
    list_decisions,
    write_corrected_table,
)
from proxemic.retrieval.curation.doubts import Doubt, find_doubts
from proxemic.retrieval.curation.scores import LabelScores, outlier_scores, wrong_label_scores

__all__ = [
    "Applied",
    "Cleaning",
    "Decision",
    "Doubt",
    "Duplicate",
    "LabelScores",
    "Outlier",
    "Suspect",
    "apply_decisions",
    "clean",
    "find_doubts",
    "list_decisions",
    "outlier_scores",
    "write_corrected_table",
    "wrong_label_scores",
]
