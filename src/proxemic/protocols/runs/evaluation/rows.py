"""The metrics of one model, or of one file of embeddings."""

from dataclasses import dataclass, replace
from pathlib import Path

from proxemic.data.embeddings import LabelledEmbeddings, RowLabels
from proxemic.errors import UserError
from proxemic.metrics import RetrievalMetrics
from proxemic.training import EvaluationConfig
from proxemic.training.embed import evaluate_embeddings


@dataclass(frozen=True)
class TargetMetrics:
    """The metrics of one model or file of embeddings on a split, or on its ``seen`` or ``unseen`` classes.

    ``metric`` ranks classes and queries from worst to best. ``trained_on`` is the number of classes that the models
    were trained on, if known; ``parts`` are the metrics of the unseen and the seen classes, ``categories`` those of the
    queries of each category, which have its name in ``category``.
    """

    name: str
    split: str
    rows: RowLabels
    metrics: RetrievalMetrics
    metric: str
    trained_on: int | None = None
    parts: tuple["TargetMetrics", ...] = ()
    categories: tuple["TargetMetrics", ...] = ()
    category: str | None = None

    @property
    def classes(self) -> int:
        """Number of classes of the rows, or of the queries of a category."""
        if self.category is not None:
            return self.query_classes
        return 0 if self.rows.labels is None else len(self.rows.labels.unique())

    @property
    def query_classes(self) -> int:
        """Number of classes that have a query with something to find: the values are means over these."""
        return len(self.metrics.labels[self.metrics.evaluated].unique())

    def with_categories(self) -> "TargetMetrics":
        """Add the metrics of the queries of each category, which search the whole gallery."""
        categories, is_query = self.rows.categories, self.rows.is_query
        if categories is None:
            raise UserError(
                f"--by category needs categories, but the rows of {self.name} have none: give a table with a column "
                "category, or leave it out."
            )
        parts = self.metrics.by_group(categories.numbers if is_query is None else categories.numbers[is_query])
        named = (replace(self, metrics=part, category=categories.names[group]) for group, part in parts.items())
        return replace(self, categories=tuple(named))


def evaluate_rows(name: Path | str, split: str, content: LabelledEmbeddings, config: EvaluationConfig) -> TargetMetrics:
    """Evaluate embeddings by their labels."""
    metrics = evaluate_embeddings(content.embeddings, content.rows, config)
    # A metric of one's own has no value per class.
    metric = config.metric if config.metric in metrics.per_query else "map@r"
    return TargetMetrics(str(name), split, content.rows, metrics, metric)
