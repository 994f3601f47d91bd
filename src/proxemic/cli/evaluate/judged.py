"""What one model, or one file of embeddings, was found to be worth."""

from dataclasses import dataclass
from pathlib import Path

from proxemic.data import LabelledEmbeddings, RowLabels
from proxemic.metrics import RetrievalMetrics
from proxemic.training import EvaluationConfig
from proxemic.training.embed import evaluate_embeddings

__all__ = ["Judged", "judge_rows"]


@dataclass(frozen=True)
class Judged:
    """One model or file of embeddings, judged.

    Args:
        name: What the user called it.
        split: Which images they are.
        rows: What is known of the rows.
        metrics: What was found.
        metric: The one that says which classes and queries are the worst.
        trained_on: How many of the classes the models were trained on; None where that is not known.
        parts: The same on the unseen classes alone, and on those trained on, where there are both.
    """

    name: str
    split: str
    rows: RowLabels
    metrics: RetrievalMetrics
    metric: str
    trained_on: int | None = None
    parts: tuple["Judged", ...] = ()

    @property
    def classes(self) -> int:
        """How many classes the rows are of."""
        return 0 if self.rows.labels is None else len(self.rows.labels.unique())

    @property
    def query_classes(self) -> int:
        """How many of them ask and have something to find: what the values are means over."""
        return len(self.metrics.labels[self.metrics.judged].unique())


def judge_rows(name: Path | str, split: str, content: LabelledEmbeddings, config: EvaluationConfig) -> Judged:
    """Judge embeddings by their labels."""
    metrics = evaluate_embeddings(content.embeddings, content.rows, config)
    # A metric of one's own has no value per class.
    metric = config.metric if config.metric in metrics.per_query else "map@r"
    return Judged(str(name), split, content.rows, metrics, metric)
