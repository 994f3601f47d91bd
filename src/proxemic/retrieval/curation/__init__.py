"""Clean a data set with an embedding: find wrong labels, duplicates and outliers, and correct labels.

`clean` finds all of them; `wrong_label_scores` and `outlier_scores` are functions of embeddings. For a gallery, people
decide about the findings of `find_doubts` (``proxemic serve --review``), and `apply_decisions` corrects its labels.
"""

from proxemic.retrieval.curation.cleaning import clean
from proxemic.retrieval.curation.decisions import (
    Applied,
    Decision,
    apply_decisions,
    list_decisions,
    write_corrected_table,
)
from proxemic.retrieval.curation.doubts import Doubt, find_doubts
from proxemic.retrieval.curation.findings import Cleaning, Duplicate, Outlier, Suspect
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
