"""Evaluate the embeddings of a model or of a file, as a whole and in parts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from proxemic.data import ImageSet
from proxemic.errors import UserError
from proxemic.files import readable
from proxemic.metrics import RetrievalMetrics, RetrievalResults
from proxemic.runs.evaluate import evaluate_embeddings, results_of
from proxemic.studies.evaluation.open_set import OpenSet
from proxemic.training import EvaluationConfig


@dataclass(frozen=True)
class TargetMetrics:
    """The metrics of one model or file of embeddings on a split, or on a part of it.

    Args:
        name: The model or file, as the user named it.
        split: The split, its ``seen`` or ``unseen`` classes, or the first dimensions of its embeddings.
        images: The evaluated images, with their embeddings.
        config: Settings of the evaluation.
        metrics: The metrics.
        trained_on: Number of these classes on which the models were trained; None if unknown.
        category: Name of the category whose queries are evaluated.
        open_set: Open-set identification, if requested.
        precision: Precision of the embeddings; None if unknown.
        stopped: Where the model's run stopped; None if it is finished.
        reranked: Whether neighbours were re-ranked by `k_reciprocal_distances`.
    """

    name: str
    split: str
    images: ImageSet
    config: EvaluationConfig
    metrics: RetrievalMetrics
    trained_on: int | None = None
    category: str | None = None
    open_set: OpenSet | None = None
    precision: str | None = None
    stopped: str | None = None
    reranked: bool = False

    @property
    def title(self) -> str:
        """The name in texts for people."""
        return readable(self.name) + ", re-ranked" * self.reranked

    @property
    def embeddings(self) -> Float[Tensor, "rows dim"]:
        """The evaluated embeddings."""
        assert self.images.rows.embeddings is not None
        return self.images.rows.embeddings

    @cached_property
    def results(self) -> RetrievalResults:
        """The neighbours of the queries."""
        return results_of(self.embeddings, self.images, self.config.distance)

    @property
    def metric(self) -> str:
        """The metric that ranks classes and queries from worst to best."""
        # The user's own metrics have no value per class.
        return self.config.metric if self.config.metric in self.metrics.per_query else "map@r"

    @property
    def classes(self) -> int:
        """The number of classes of the images, or of the queries of a category."""
        return self.images.num_classes if self.category is None else self.query_classes

    @property
    def query_classes(self) -> int:
        """The number of classes with an evaluated query, over which metrics are averaged."""
        return len(self.metrics.labels[self.metrics.evaluated].unique())

    def rerank(self) -> "TargetMetrics":
        """Evaluate again with the first neighbours of each query re-ranked."""
        metrics = evaluate_embeddings(self.embeddings, self.images, self.config, rerank=True)
        return replace(self, metrics=metrics, open_set=None, reranked=True)

    def parts(self, trained: Sequence[int]) -> list["TargetMetrics"]:
        """Evaluate the unseen and the seen classes, if there are both; each part is its own gallery."""
        parts, is_query = list[TargetMetrics](), self.images.is_query
        is_seen = torch.isin(self.images.labels, torch.tensor(trained, dtype=torch.int64))
        for split, chosen in (("unseen", ~is_seen), ("seen", is_seen)):
            queries = chosen if is_query is None else chosen[is_query]
            if 0 < len(trained) < self.classes and bool((queries & self.metrics.evaluated).any()):
                parts.append(self._part(split, self.images.select(chosen.nonzero().squeeze(1))))
        return parts

    def by_category(self) -> list["TargetMetrics"]:
        """Evaluate the queries of each category; they search the whole gallery."""
        categories, is_query = self.images.categories, self.images.is_query
        assert categories is not None
        parts = self.metrics.by_group(categories if is_query is None else categories[is_query])
        names = self.images.category_names
        return [replace(self, metrics=part, category=names[group], trained_on=None) for group, part in parts.items()]

    def prefixes(self, dims: Sequence[int]) -> list["TargetMetrics"]:
        """Evaluate the first ``dim`` dimensions of the embeddings, for each of ``dims``."""
        rows, size, parts = self.images.rows, self.embeddings.shape[1], list[TargetMetrics]()
        for dim in sorted({*dims}):
            if not 1 <= dim <= size:
                raise UserError(f"--dims has {dim}, but the embeddings of {self.name} have {size} dimensions.")
            first = replace(rows, embeddings=self.embeddings[:, :dim].contiguous())
            parts.append(self._part(f"first {dim}", replace(self.images, rows=first)))
        return parts

    def _part(self, split: str, images: ImageSet) -> "TargetMetrics":
        return evaluate_rows(self.name, split, images, self.config, rerank=self.reranked)


def evaluate_rows(
    name: Path | str, split: str, images: ImageSet, config: EvaluationConfig, *, rerank: bool = False
) -> TargetMetrics:
    """Evaluate embeddings by their labels."""
    assert images.rows.embeddings is not None
    metrics = evaluate_embeddings(images.rows.embeddings, images, config, rerank=rerank)
    return TargetMetrics(str(name), split, images, config, metrics, reranked=rerank)
