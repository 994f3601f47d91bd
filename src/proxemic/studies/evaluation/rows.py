"""Evaluate rows of embeddings: those of a model, or those of files that were made elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from proxemic.data import ImageSet, RowGroups
from proxemic.data.embeddings import PRECISION, LabelledEmbeddings, RowLabels, read_embeddings
from proxemic.data.formats.tables import EMBEDDING_COLUMNS, read_table
from proxemic.data.formats.vectors import read_metadata
from proxemic.data.rows import check_distinct
from proxemic.data.sources import join_query_gallery
from proxemic.errors import UserError
from proxemic.metrics import RetrievalMetrics
from proxemic.recipes.reader import read_evaluation_config
from proxemic.runs.evaluate import evaluate_embeddings
from proxemic.studies.evaluation.open_set import OpenSet, identify_open_set
from proxemic.training import EvaluationConfig


@dataclass(frozen=True)
class TargetMetrics:
    """The metrics of one model or file of embeddings on a split, or on its ``seen`` or ``unseen`` classes.

    ``metric`` ranks classes and queries from worst to best. ``trained_on`` is the number of classes that the models
    were trained on, if known; ``parts`` are the metrics of the unseen and the seen classes, ``categories`` those of the
    queries of each category, which have its name in ``category``. ``open_set`` is its open-set identification;
    ``content`` what was evaluated, by ``config``, and ``images`` the images that were embedded in ``precision``,
    which is None if it is not known. ``stopped`` says where the run of the model stopped, if it is unfinished.
    """

    name: str
    split: str
    rows: RowLabels
    metrics: RetrievalMetrics
    metric: str
    content: LabelledEmbeddings
    config: EvaluationConfig
    images: ImageSet | None = None
    trained_on: int | None = None
    parts: tuple["TargetMetrics", ...] = ()
    categories: tuple["TargetMetrics", ...] = ()
    category: str | None = None
    open_set: OpenSet | None = None
    precision: str | None = None
    stopped: str | None = None

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


def evaluate_rows(
    name: Path | str,
    split: str,
    content: LabelledEmbeddings,
    config: EvaluationConfig,
    open_set_seed: int | None = None,
) -> TargetMetrics:
    """Evaluate embeddings by their labels; with a seed, also where half of the classes are not in the gallery."""
    metrics = evaluate_embeddings(content.embeddings, content.rows, config)
    # A metric of one's own has no value per class.
    metric = config.metric if config.metric in metrics.per_query else "map@r"
    target = TargetMetrics(str(name), split, content.rows, metrics, metric, content, config)
    if open_set_seed is None:
        return target
    return replace(target, open_set=identify_open_set(str(name), content, config.distance, open_set_seed))


def evaluate_files(
    paths: Sequence[Path],
    labels: Path | None,
    gallery: Path | None,
    gallery_labels: Path | None,
    *,
    by_category: bool,
    open_set_seed: int | None,
    overrides: Mapping[str, object],
    report: Callable[[str], object],
) -> list[TargetMetrics]:
    """Evaluate the embeddings of each file by their labels."""
    if gallery_labels is not None and gallery is None:
        raise UserError("--gallery-labels is given without --gallery: give the embeddings that it labels.")
    if gallery is not None and len(paths) > 1:
        raise UserError("--gallery holds embeddings of one model: evaluate the two one by one.")
    config = read_evaluation_config(overrides)
    contents = [read_embeddings(path, labels) for path in paths]
    for path, content in zip(paths, contents, strict=True):
        check_distinct(content.rows.paths or (), path)
    if gallery is not None:
        contents = [join_query_gallery(contents[0], read_embeddings(gallery, gallery_labels))]
    if len(contents) > 1:
        _check_same_rows(paths, *contents)
    for file in (labels, gallery_labels):
        if (
            file is not None
            and file.suffix.lower() != ".npy"
            and (unused := read_table(file, EMBEDDING_COLUMNS).unused)
        ):
            report(f"{file} has columns that are not used: {', '.join(unused)}.")
    targets = [
        replace(
            evaluate_rows(path, "all", content, config, open_set_seed), precision=read_metadata(path).get(PRECISION)
        )
        for path, content in zip(paths, contents, strict=True)
    ]
    return [target.with_categories() for target in targets] if by_category else targets


def _check_same_rows(paths: Sequence[Path], first: LabelledEmbeddings, second: LabelledEmbeddings) -> None:
    for name, one, other in (
        ("number of rows", len(first.embeddings), len(second.embeddings)),
        ("paths", first.rows.paths, second.rows.paths),
        ("labels", first.rows.label_texts(), second.rows.label_texts()),
        ("is_query or is_gallery", _roles(first), _roles(second)),
        ("sequence", _texts(first.rows.sequences), _texts(second.rows.sequences)),
        ("category", _texts(first.rows.categories), _texts(second.rows.categories)),
    ):
        if one is not None and other is not None and one != other:
            raise UserError(
                f"{paths[0]} and {paths[1]} differ in {name}, but two models are compared on the same queries, row by "
                "row."
            )


def _texts(groups: RowGroups | None) -> tuple[str | None, ...] | None:
    return None if groups is None else groups.texts()


def _roles(content: LabelledEmbeddings) -> list[list[bool]]:
    everyone = [True] * len(content.embeddings)
    return [everyone if role is None else role.tolist() for role in (content.rows.is_query, content.rows.is_gallery)]
