"""One object for the results of retrieval, from embeddings to metrics, tables and plots."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from proxemic.arrays import number_texts
from proxemic.metrics.arrays import take_arrays
from proxemic.metrics.exact import Distance
from proxemic.metrics.neighbours import nearest_neighbours
from proxemic.metrics.results import RetrievalMetrics
from proxemic.metrics.retrieval import retrieval_metrics

if TYPE_CHECKING:
    from proxemic.tables import Table


@dataclass(frozen=True, eq=False)
class RetrievalResults:
    """The nearest gallery items of each query; queries and gallery are subsets of the same samples.

    A query finds neither itself nor samples of its own sequence. `of` makes the object from the columns of a table.

    Args:
        embeddings: `[samples, dim]`, finite.
        labels: Class of each sample.
        is_query: Whether each sample is a query; None for all.
        is_gallery: Whether each sample is in the gallery; None for all.
        sequences: Sequence of each sample, below 0 for none.
        categories: Category of each sample, below 0 for none.
        category_names: Name of each category.
        distance: Distance that ranks the gallery.
        k: Number of neighbours of each query.

    >>> rows = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> results = RetrievalResults.of(rows, ["owl", "owl", "jay", "jay"], category=["a", "a", "b", "b"], k=1)
    >>> results.neighbours.flatten().tolist(), results.metrics(recall_at=(1,), by="category")["b"]["recall@1"]
    ([1, 0, 3, 2], 1.0)
    """

    embeddings: Float[Tensor, "samples dim"]
    labels: Int64[Tensor, " samples"]
    is_query: Bool[Tensor, " samples"] | None = None
    is_gallery: Bool[Tensor, " samples"] | None = None
    sequences: Int64[Tensor, " samples"] | None = None
    categories: Int64[Tensor, " samples"] | None = None
    category_names: tuple[str, ...] = ()
    distance: Distance = "cosine"
    k: int = 10

    @classmethod
    @take_arrays("embeddings", "labels", "is_query", "is_gallery")
    def of(
        cls,
        embeddings: Float[Tensor, "samples dim"],
        labels: Int64[Tensor, " samples"],
        *,
        is_query: Bool[Tensor, " samples"] | None = None,
        is_gallery: Bool[Tensor, " samples"] | None = None,
        sequence: Sequence[str | None] | None = None,
        category: Sequence[str | None] | None = None,
        distance: Distance = "cosine",
        k: int = 10,
    ) -> "RetrievalResults":
        """Make results from columns of a table: labels are numbers or texts; sequences and categories texts or None."""
        sequences = None if sequence is None else number_texts(sequence)[0]
        categories, names = (None, ()) if category is None else number_texts(category)
        return cls(embeddings, labels, is_query, is_gallery, sequences, categories, names, distance, k)

    @cached_property
    def queries(self) -> Int64[Tensor, " queries"]:
        """The index of each query among the samples."""
        return torch.arange(len(self.labels)) if self.is_query is None else self.is_query.nonzero().squeeze(1)

    @cached_property
    def gallery(self) -> Int64[Tensor, " gallery"]:
        """The index of each gallery item among the samples."""
        return torch.arange(len(self.labels)) if self.is_gallery is None else self.is_gallery.nonzero().squeeze(1)

    @cached_property
    def roles(self) -> dict[str, Any]:
        """The arguments by which `retrieval_metrics` evaluates the samples."""
        x, labels, sequences = self.embeddings, self.labels, self.sequences
        if sequences is not None and not bool((sequences >= 0).any()):
            sequences = None  # saves a comparison per pair
        asked, searched = self.queries, self.gallery
        if len(asked) == len(searched) == len(labels):
            return {"queries": x, "query_labels": labels, "query_sequences": sequences}
        place = torch.full((len(labels),), -1).index_copy(0, searched, torch.arange(len(searched)))
        return {
            "queries": x[asked],
            "query_labels": labels[asked],
            "gallery": x[searched],
            "gallery_labels": labels[searched],
            "exclude": place[asked],
            "query_sequences": None if sequences is None else sequences[asked],
            "gallery_sequences": None if sequences is None else sequences[searched],
        }

    @cached_property
    def _found(self) -> tuple[Float[Tensor, "queries k"], Int64[Tensor, "queries k"]]:
        roles, k = self.roles, min(self.k, len(self.gallery) - 1)
        asked = roles["queries"]
        if k < 1 or not len(asked):
            return torch.empty(len(asked), 0), torch.empty(len(asked), 0, dtype=torch.int64)
        distances, found = nearest_neighbours(
            asked,
            roles.get("gallery", asked),
            k=k,
            distance=self.distance,
            exclude=roles.get("exclude", torch.arange(len(asked))),
            query_sequences=roles["query_sequences"],
            gallery_sequences=roles.get("gallery_sequences", roles["query_sequences"]),
        )
        return distances, torch.where(found < 0, -1, self.gallery[found])

    @property
    def distances(self) -> Float[Tensor, "queries k"]:
        """The distance of each query to its neighbours; infinite if there are fewer than k neighbours."""
        return self._found[0]

    @property
    def neighbours(self) -> Int64[Tensor, "queries k"]:
        """The index of each neighbour among the samples, nearest first; -1 if there are fewer than k neighbours."""
        return self._found[1]

    def metrics(self, *, by: str | None = None, **options: Any) -> Any:
        """Evaluate the queries.

        Args:
            by: ``"category"`` evaluates the queries of each category separately; they search the whole gallery.
            options: Keyword arguments of `retrieval_metrics`, such as ``recall_at``.

        Returns:
            `RetrievalMetrics`, or a mapping of category names to them.

        Raises:
            ValueError: If an option is out of range, no query has a match, or there are no categories.
        """
        values: RetrievalMetrics = retrieval_metrics(**self.roles, distance=self.distance, **options)
        if by is None:
            return values
        if by != "category" or self.categories is None:
            raise ValueError(f"by is {by!r}, but must be 'category', and the samples must have categories.")
        groups = values.by_group(self.categories[self.queries])
        return {self.category_names[group]: part for group, part in groups.items()}

    def table(self, **options: Any) -> "Table":
        """Return the metrics in percent, with 95 % intervals, as a table."""
        from proxemic.tables import Table, percent

        values: RetrievalMetrics = self.metrics(**options)
        rows = [
            [name, percent(interval.value), percent(interval.low), percent(interval.high)]
            for name, interval in values.intervals().items()
        ]
        title = f"{values.queries:,} queries, {len(self.gallery):,} in the gallery; in percent"
        return Table(["metric", "value", "low", "high"], rows, title)

    def plot(self, path: str | Path, **options: Any) -> None:
        """Draw the metrics with their 95 % intervals, as a ``.png`` or ``.svg`` file."""
        from matplotlib.figure import Figure

        from proxemic.plots import save_figure

        intervals = self.metrics(**options).intervals()
        figure = Figure(figsize=(6, 0.4 * len(intervals) + 1), layout="constrained")
        axes = figure.subplots()
        for place, interval in enumerate(intervals.values()):
            axes.plot([100 * interval.low, 100 * interval.high], [place, place], color="C0")
            axes.plot(100 * interval.value, place, "o", color="C0")
        axes.set(yticks=range(len(intervals)), yticklabels=[*intervals], xlabel="percent")
        axes.invert_yaxis()
        save_figure(figure, Path(path))
