"""Evaluate models on images, or files of embeddings, and compare two models or files."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from proxemic.errors import UserError
from proxemic.outputs import check_output, has_columns, is_embeddings, is_evaluation
from proxemic.ranges import SEEDS, check_range
from proxemic.studies.targets import check_outputs, check_target, target_path
from proxemic.tables import Table, format_of

if TYPE_CHECKING:
    from proxemic.studies.evaluation import Evaluation


def evaluate(
    targets: str | Path | Sequence[str | Path],
    *,
    split: Literal["train", "validation", "test", "all"] | None = None,
    by: Literal["category"] | None = None,
    new_images: Literal["leave", "join"] = "leave",
    query: str | Path | None = None,
    gallery: str | Path | None = None,
    labels: str | Path | None = None,
    gallery_labels: str | Path | None = None,
    dims: Sequence[int] = (),
    open_set: bool = False,
    rerank: bool = False,
    seed: int = 0,
    strict: bool = False,
    level: float = 0.95,
    resamples: int = 2000,
    overrides: dict[str, Any] | None = None,
    out: str | Path | None = None,
    per_class: str | Path | None = None,
    per_query: str | Path | None = None,
    save_embeddings: str | Path | None = None,
    report: Callable[[str], object] | None = None,
) -> "Evaluation":
    """Evaluate one model or file of embeddings, or compare two on the same queries.

    Args:
        targets: One or two of: a run directory, a folder that `save_model` wrote, a ``model.safetensors``, an
            ``.onnx`` file, or a pretrained network (``timm:NAME``, ``hf:NAME``, see
            `proxemic.runs.pretrained.model_path`); or one or two files of embeddings (``.parquet``, ``.npy``).
        split: Split to evaluate a model on. None takes the test split of the run's data, even if the data has moved;
            for other data, the test split that it defines, or else all images.
        new_images: Images that came after the run began: ``leave`` leaves them out, ``join`` adds them to the split of
            their class, except those of unknown classes.
        by: Also evaluate the queries of each category (a table's column ``category``); each query searches all images.
        query: Folder or table of query images for ``gallery``, or a file of vectors for a model of vectors.
        gallery: Folder or table of images, or file of vectors, to search; for a file of embeddings, the file of
            embeddings to search.
        labels: Labels of the embeddings, or of the vectors of ``query``: a table (CSV or Parquet).
        gallery_labels: Labels of the embeddings, or of the vectors, of ``gallery``.
        dims: Also evaluate the first dimensions of the embeddings, as many as each of these numbers, to see how much
            nested embeddings (`proxemic.losses.MatryoshkaLoss`) lose.
        open_set: Also identify queries in a gallery that lacks half of the classes, at false alarm rates of 0.1, 0.01
            and 0.001: see `proxemic.metrics.open_set_identification`.
        rerank: Also re-rank the first hundred neighbours of each query by their common neighbours, and compare: A is
            the plain ranking, B the re-ranked one. See `proxemic.metrics.k_reciprocal_distances` (Zhong et al., 2017).
        seed: Seed of the classes that ``open_set`` leaves out and of the images in its gallery.
        strict: Raise an error for an unreadable image; by default it is skipped.
        level: Confidence level of the intervals, in (0, 1).
        resamples: Resamples of the bootstrap, up to 100,000; 0 skips intervals and tests.
        overrides: Values of the sections ``data``, ``evaluation`` and ``batches`` of the run's recipe by dotted key,
            such as ``{"evaluation.recall_at": [1, 10]}``. The precision of the run's recipe is ignored:
            ``evaluation.precision`` is ``32-true`` unless it is given here.
        out: Also write the result to this file (``.json``, ``.csv`` or ``.md``).
        per_class: Write the metrics of each class, worst first, to this CSV file.
        per_query: Write the metrics of each query, worst first, to this CSV file.
        save_embeddings: Write the embeddings to this file: ``NAME.parquet``, with labels and paths, or ``NAME.npy``,
            with labels and paths in ``NAME.paths.csv`` and the checksum of the model in ``NAME.json`` next to it.
        report: Called with notes for the user, such as which images were skipped. None logs the notes.

    Returns:
        The metrics with chance levels and, from 20 classes on, intervals; for two targets, also the differences.

    Raises:
        UserError: If an argument is refused, or a file cannot be read or written.
        ValueError: If a value is out of its range.

    Example::

        evaluation = proxemic.evaluate("runs/photos", overrides={"evaluation.recall_at": [1, 10]})
        evaluation.metrics["recall@10"], evaluation.intervals["recall@10"]
        print(evaluation.text("markdown"))
    """
    report, overrides = report or getLogger("proxemic").info, overrides or {}
    paths = [target_path(target) for target in ([targets] if isinstance(targets, str | Path) else targets)]
    query, gallery, labels, gallery_labels, out, per_class, per_query, save_embeddings = (
        None if path is None else Path(path)
        for path in (query, gallery, labels, gallery_labels, out, per_class, per_query, save_embeddings)
    )
    if len(paths) > 2:
        raise UserError(f"{len(paths)} runs or files are given, such as {paths[2]}: evaluate one, or compare two.")
    for path in paths:
        check_target(path, ("a run directory", "a model.safetensors", "embeddings"))
    of_one = {"per-class": per_class, "per-query": per_query, "save-embeddings": save_embeddings, "rerank": rerank}
    twice = [name for name, value in of_one.items() if value and len(paths) > 1]
    no_csv = [str(path) for path in (per_class, per_query) if path is not None and path.suffix.lower() != ".csv"]
    for refused, sentence in (
        (twice, f"--{' '.join(twice[:1])} is for one model: leave it out, or evaluate the two one by one."),
        (no_csv, f"{' '.join(no_csv[:1])} is written as CSV: let its name end in .csv."),
    ):
        if refused:
            raise UserError(sentence)
    check_range("level", level, "(0, 1)")
    check_range("seed", seed, SEEDS)
    if out is not None:
        format_of(out)

    from proxemic.data.embeddings import check_embedding_name, files_of_embeddings, write_embeddings
    from proxemic.metrics import MOST_RESAMPLES
    from proxemic.models import is_model, read_checksum
    from proxemic.recipes.reader import read_evaluation_config
    from proxemic.runs.directory import RunDirectory
    from proxemic.studies.evaluation import Evaluation, choose_images, embed_models, read_files, trained_labels
    from proxemic.studies.evaluation.evaluated import evaluate_rows
    from proxemic.studies.evaluation.open_set import identify_open_set

    check_range("resamples", resamples, f"[0, {MOST_RESAMPLES}]")
    saved = [] if save_embeddings is None else [Path(path) for path in files_of_embeddings(save_embeddings)]
    for path, kind in (
        (out, is_evaluation),
        (per_class, has_columns(("label", "queries"))),
        (per_query, has_columns(("query", "label"))),
        (save_embeddings, is_embeddings),
    ):
        check_output(path, kind)
    check_outputs([out, per_class, per_query, *saved], [*paths, labels, gallery_labels, query, gallery])

    models = [path.is_dir() or is_model(path) for path in paths]
    if any(models) and not all(models):
        raise UserError(f"{paths[0]} and {paths[1]} are a model and embeddings: give two of the same kind.")
    if all(models):
        data: Any = {"labels": labels, "gallery_labels": gallery_labels, "strict": strict, "new_images": new_images}
        images, part, notes, request = choose_images(paths, split, query, gallery, overrides=overrides, **data)
        for note in notes:
            report(note)
        config, sets, trained = request.evaluation, [images], trained_labels(paths, images)
    else:
        for path in paths:
            check_embedding_name(path)
        given = {"query": query, "split": split, "save-embeddings": save_embeddings, "strict": strict}
        given |= {"new-images": new_images == "join"}
        names = [*(name for name, value in given.items() if value), *(key for key in overrides if key[:4] == "data")]
        if names:
            raise UserError(f"--{names[0]} is for models, but {paths[0]} holds embeddings.")
        part, config, trained, request = "all", read_evaluation_config(overrides), None, None
        sets = read_files(paths, labels=labels, gallery=gallery, gallery_labels=gallery_labels, report=report)
    for path, images in zip(paths, sets, strict=False):
        if by is not None and images.categories is None:
            raise UserError(
                f"--by category needs categories, but the rows of {path} have none: give a table with a column "
                "category (of images: --data.root TABLE), or leave it out."
            )
    if request is not None:
        sets = embed_models(paths, sets[0], request, report)
    if save_embeddings is not None:
        write_embeddings(save_embeddings, replace(sets[0].described(), made_by=read_checksum(paths[0])))
    evaluated = []
    for path, images in zip(paths, sets, strict=True):
        target = evaluate_rows(path, part, images, config)
        target = replace(
            target,
            precision=images.rows.precision,
            stopped=None if request is None else RunDirectory.of_model(path).stopped,
            trained_on=None if trained is None else len(trained),
            open_set=identify_open_set(str(path), target.results, seed) if open_set else None,
        )
        evaluated.append(target)
    if rerank:
        evaluated.append(evaluated[0].rerank())
    evaluation = Evaluation.of(
        evaluated, level, resamples, trained=trained or (), by_category=by is not None, dims=dims
    )
    if out is not None:
        evaluation.write(out)
    for path, rows in ((per_class, evaluation.class_rows), (per_query, evaluation.query_rows)):
        if path is not None:
            Table.of_records(rows()).write(path)
    return evaluation
