"""What one model, or one file of embeddings, was found to be worth."""

from dataclasses import dataclass, replace
from pathlib import Path

from proxemic.data.embeddings import LabelledEmbeddings, RowLabels
from proxemic.errors import UserError
from proxemic.metrics import RetrievalMetrics
from proxemic.training import EvaluationConfig
from proxemic.training.embed import evaluate_embeddings

__all__ = ["Judged", "judge_by_category", "judge_rows"]


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
        categories: The same of the queries of each category alone, where that was asked for.
        category: Which category's queries these are, where they are one's.
    """

    name: str
    split: str
    rows: RowLabels
    metrics: RetrievalMetrics
    metric: str
    trained_on: int | None = None
    parts: tuple["Judged", ...] = ()
    categories: tuple["Judged", ...] = ()
    category: str | None = None

    @property
    def classes(self) -> int:
        """How many classes the rows are of, or the queries of a category."""
        if self.category is not None:
            return self.query_classes
        return 0 if self.rows.labels is None else len(self.rows.labels.unique())

    @property
    def query_classes(self) -> int:
        """How many of them ask and have something to find: what the values are means over."""
        return len(self.metrics.labels[self.metrics.judged].unique())


def judge_by_category(judged: Judged) -> Judged:
    """Add the metrics of the queries of each category, which search the whole gallery.

    Raises:
        UserError: If the rows have no categories.
    """
    categories, is_query = judged.rows.categories, judged.rows.is_query
    if categories is None:
        raise UserError(
            f"--by category needs categories, but the rows of {judged.name} have none: give a table with a column "
            "category, or leave it out."
        )
    numbers = categories.numbers if is_query is None else categories.numbers[is_query]
    parts = judged.metrics.by_group(numbers)
    found = [replace(judged, metrics=each, category=categories.names[group]) for group, each in parts.items()]
    return replace(judged, categories=tuple(found))


def judge_rows(name: Path | str, split: str, content: LabelledEmbeddings, config: EvaluationConfig) -> Judged:
    """Judge embeddings by their labels."""
    metrics = evaluate_embeddings(content.embeddings, content.rows, config)
    # A metric of one's own has no value per class.
    metric = config.metric if config.metric in metrics.per_query else "map@r"
    return Judged(str(name), split, content.rows, metrics, metric)
