"""Evaluate the embeddings of a model or of a file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from jaxtyping import Float
from torch import Tensor

from proxemic.data import ImageSet
from proxemic.data.embeddings import read_embeddings
from proxemic.data.formats.tables import EMBEDDING_COLUMNS, read_table, unused_note
from proxemic.data.rows import Rows, check_distinct
from proxemic.data.sources import join_query_gallery
from proxemic.errors import UserError
from proxemic.files import readable
from proxemic.metrics import RetrievalMetrics
from proxemic.recipes.reader import read_evaluation_config
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.studies.evaluation.open_set import OpenSet, identify_open_set
from proxemic.training import EvaluationConfig


@dataclass(frozen=True)
class TargetMetrics:
    """The metrics of one model or file of embeddings on a split, or on its ``seen`` or ``unseen`` classes.

    Args:
        name: The model or file, as the user named it.
        split: The split, or ``seen`` or ``unseen``.
        embeddings: The evaluated embeddings.
        images: Their rows, as they were read.
        config: Settings of the evaluation.
        metrics: The metrics.
        trained_on: Number of these classes that the models were trained on; None if unknown.
        parts: Metrics of the unseen and the seen classes.
        categories: Metrics of the queries of each category.
        prefixes: Metrics of the first numbers of the embeddings.
        category: Name of the category, in ``categories``.
        open_set: Open-set identification, if requested.
        precision: Precision of the embeddings; None if unknown.
        stopped: Where the model's run stopped; None if it is finished.
        reranked: Whether neighbours were ranked again by `k_reciprocal_distances`.
    """

    name: str
    split: str
    embeddings: Float[Tensor, "rows dim"]
    images: ImageSet
    config: EvaluationConfig
    metrics: RetrievalMetrics
    trained_on: int | None = None
    parts: tuple["TargetMetrics", ...] = ()
    categories: tuple["TargetMetrics", ...] = ()
    prefixes: tuple["TargetMetrics", ...] = ()
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
    def metric(self) -> str:
        """The metric that ranks classes and queries from worst to best."""
        # A metric of the user has no value per class.
        return self.config.metric if self.config.metric in self.metrics.per_query else "map@r"

    @property
    def classes(self) -> int:
        """The number of classes of the rows, or of the queries of a category."""
        if self.category is not None:
            return self.query_classes
        return self.images.num_classes

    @property
    def query_classes(self) -> int:
        """The number of classes with an evaluated query, which the metrics are means over."""
        return len(self.metrics.labels[self.metrics.evaluated].unique())

    def with_categories(self) -> "TargetMetrics":
        """Add metrics of the queries of each category; they search the whole gallery."""
        categories, is_query = self.images.categories, self.images.is_query
        if categories is None:
            raise UserError(
                f"--by category needs categories, but the rows of {self.name} have none: give a table with a column "
                "category, or leave it out."
            )
        parts = self.metrics.by_group(categories if is_query is None else categories[is_query])
        names = self.images.category_names
        named = (replace(self, metrics=part, category=names[group]) for group, part in parts.items())
        return replace(self, categories=tuple(named))

    def with_prefixes(self, dims: Sequence[int]) -> "TargetMetrics":
        """Add metrics of the first ``dim`` numbers of the embeddings, for each of ``dims``."""
        size, prefixes = self.embeddings.shape[1], list[TargetMetrics]()
        for dim in sorted({*dims}):
            if not 1 <= dim <= size:
                raise UserError(f"--dims has {dim}, but the embeddings of {self.name} have {size} numbers.")
            first = self.embeddings[:, :dim].contiguous()
            prefixes.append(evaluate_rows(self.name, f"first {dim}", first, self.images, self.config))
        return replace(self, prefixes=tuple(prefixes))


def evaluate_rows(
    name: Path | str,
    split: str,
    embeddings: Float[Tensor, "rows dim"],
    images: ImageSet,
    config: EvaluationConfig,
    open_set_seed: int | None = None,
) -> TargetMetrics:
    """Evaluate embeddings by their labels; with a seed, also the open-set identification."""
    metrics = evaluate_embeddings(embeddings, images, config)
    target = TargetMetrics(str(name), split, embeddings, images, config, metrics)
    if open_set_seed is None:
        return target
    return replace(target, open_set=identify_open_set(str(name), embeddings, images, config.distance, open_set_seed))


def rerank(target: TargetMetrics) -> TargetMetrics:
    """Evaluate the rows again with the first neighbours of each query re-ranked."""
    metrics = evaluate_embeddings(target.embeddings, target.images, target.config, rerank=True)
    parts = tuple(map(rerank, target.parts))
    again = replace(target, metrics=metrics, reranked=True, open_set=None, parts=parts, categories=())
    return again.with_categories() if target.categories else again


def evaluate_files(
    paths: Sequence[Path],
    *,
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    by_category: bool,
    open_set_seed: int | None,
    overrides: Mapping[str, object],
    report: Callable[[str], object],
) -> list[TargetMetrics]:
    """Evaluate the embeddings of each file by their labels."""
    if gallery_labels is not None and gallery is None:
        raise UserError("--gallery-labels needs --gallery, the embeddings that it labels: give both.")
    if gallery is not None and len(paths) > 1:
        raise UserError("--gallery holds embeddings of one model: evaluate the two files one by one.")
    config = read_evaluation_config(overrides)
    contents = [read_embeddings(path, labels) for path in paths]
    for path, content in zip(paths, contents, strict=True):
        check_distinct(content.names, path)
    if gallery is not None:
        contents = [join_query_gallery(contents[0], read_embeddings(gallery, gallery_labels))]
    if len(contents) > 1:
        for name, one, other in zip(("number of rows", *_COMPARED), *map(_compared, contents), strict=True):
            if one is None or other is None or one == other:
                continue
            raise UserError(
                f"{paths[0]} and {paths[1]} differ in {name}, but two models are compared on the same queries, "
                "row by row."
            )
    for file in filter(None, (labels, gallery_labels)):
        for note in unused_note(file, read_table(file, EMBEDDING_COLUMNS)):
            report(note)
    targets = []
    for path, content in zip(paths, contents, strict=True):
        assert content.embeddings is not None
        target = evaluate_rows(path, "all", content.embeddings, ImageSet.of(content), config, open_set_seed)
        target = replace(target, precision=content.precision)
        targets.append(target.with_categories() if by_category else target)
    return targets


_COMPARED = ("paths", "labels", "is_query or is_gallery", "sequence", "category")


def _compared(rows: Rows) -> tuple[object, ...]:
    """Return the number of rows and the values of `_COMPARED`, which must be equal for two models; None if unknown."""
    roles = [[True] * len(rows) if role is None else role.tolist() for role in rows.flags()]
    texts = {name: rows.texts(name) if rows.numbers(name)[1] else None for name in ("label", "sequence", "category")}
    return len(rows), rows.names if rows.has("path") else None, texts["label"], roles, *[*texts.values()][1:]
