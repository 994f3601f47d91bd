"""The report of a gallery: retrieval metrics, suspected labels, duplicates, outliers, and a map."""

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from logging import getLogger
from pathlib import Path

import numpy as np
import torch
from markupsafe import Markup

from proxemic.data import FilePixels, ImageSet
from proxemic.data.roots import find_picture
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.pages import Section, render_page, table
from proxemic.pages.page import check_page
from proxemic.report.classes import confused, distances
from proxemic.report.judged import Judged, picture_at, shown
from proxemic.report.metrics import metrics
from proxemic.report.pictured_map import Projection, check_projection, pictured_map
from proxemic.report.queries import has_labels, queries
from proxemic.report.verdict import lead
from proxemic.report.why_near import why_near
from proxemic.retrieval import Gallery, open_gallery, summarize_store
from proxemic.retrieval.curation.cleaning import examine
from proxemic.retrieval.curation.findings import finding_sections
from proxemic.runs.evaluate import EvaluationConfig
from proxemic.tables import Table, counted

_MOST, _SHOWN = 10_000, 12  # images that are examined, and findings of a kind that are shown


def write_gallery_report(
    address: str | os.PathLike[str],
    *,
    out: str | Path,
    model: str | os.PathLike[str] | None = None,
    projection: Projection = "pca",
    report: Callable[[str], object] | None = None,
) -> Path:
    """Write a page about a gallery: one file that works offline.

    It has a summary, duplicates and outliers, queries with their neighbours, a map with images, and why two images are
    near. If there are labels, it also has labels that are probably wrong, metrics of leave-one-out search, confused
    classes, and distances with the threshold that was learnt.

    Args:
        address: The gallery's address, or a folder of images, as `open_gallery` takes them. If it has more than 10,000
            images, the report shows a random sample of 10,000.
        out: The page, ``.html``.
        model: Path of the gallery's model if it has moved, or the model that embeds the folder; see `Embedder.load`.
        projection: The projection of the map, as in `write_report`.
        report: Called with notes for the user, such as that the model is missing. None logs them.

    Returns:
        The page.

    Raises:
        UserError: If there is no gallery, it is empty, or the page cannot be written.

    Example::

        proxemic.report.write_gallery_report("shop", out="shop.html")
    """
    report, path = report or getLogger("proxemic").info, Path(out)
    check_page(path)
    check_projection(projection)  # before the minutes in which images are embedded
    gallery = open_gallery(address, model, report=report)
    try:
        name = os.fspath(address).partition("?")[0].rstrip("/").rpartition("/")[2]  # of a column
        judged, total = judge_gallery(gallery, name, report=report), len(gallery)
        roots = gallery.store.roots
        facts = [[name, said] for name, said in summarize_store(gallery.store).facts().items()]
    finally:
        gallery.close()
    if len(judged.embeddings) < total:
        report(f"The report shows {len(judged.embeddings):,} of {total:,} images, drawn at random.")
        facts.append(["this page", f"shows {len(judged.embeddings):,} of the images, drawn at random"])
    summary = lead(_verdict(judged, total)) + table(Table(["fact", "value"], facts, align="ll"), description="Summary")
    sections = [
        Section("Summary", summary),
        _doubtful(judged, roots),
        *([metrics(judged)] if has_labels(judged) else []),
        queries(judged),
        confused(judged),
        distances(judged),
        pictured_map(judged, method=projection),
        why_near(judged),
    ]
    write_text(
        path, render_page(f"Gallery {os.fspath(address)}", [section for section in sections if section is not None])
    )
    return path


def judge_gallery(gallery: Gallery, name: str, *, report: Callable[[str], object]) -> Judged:
    """Evaluate a gallery with each image as a query to the others; of a large gallery, evaluate a random sample."""
    count = len(gallery)
    if not count:
        raise UserError(f"{gallery.store.address} is empty: add images with proxemic gallery add.")
    chosen = np.sort(np.random.default_rng(0).permutation(count)[:_MOST])
    vectors, names, labels, first = [], list[str](), list[str | None](), 0
    for part, items in gallery.store.iterate():
        own = chosen[(chosen >= first) & (chosen < first + len(part))] - first
        taken = items.take(own)
        vectors.append(np.asarray(part)[own])
        names += taken.column("path").to_pylist()
        labels += taken.column("label").to_pylist()
        first += len(part)
    images = ImageSet.of(Rows.of(path=names, label=labels))
    try:
        embedder = gallery.embedder
    except UserError as error:
        report(f"The report does not say why images are near: {error}")
        embedder = None
    info = gallery.store.info
    precision = "bf16-mixed" if info.precision == "bf16-mixed" else "32-true"
    config = EvaluationConfig(distance=info.distance, recall_at=(1, 10), ndcg_at=(), precision=precision)
    embeddings = torch.from_numpy(np.concatenate(vectors))
    picture = partial(picture_at, names, gallery.store.roots)
    calibration = None
    with suppress(UserError):  # it has no calibration
        calibration = gallery.read_calibration()
    return Judged(name, "all", embeddings, images, config, picture, embedder=embedder, calibration=calibration)


def _verdict(judged: Judged, total: int) -> str:
    """Say how many images and labels there are, and how often the nearest other image has the same label."""
    said = counted(total, "image")
    if not has_labels(judged):
        return f"{said}. Without two images of one label, a search cannot be judged."
    names, found = judged.images.class_names, judged.metrics
    interval = judged.intervals["recall@1"]
    bounds = "" if math.isnan(interval.low) else f" ({100 * interval.low:.1f} to {100 * interval.high:.1f})"
    return (
        f"{said} of {counted(len(names), 'label')}: the nearest other image has the same label for "
        f"{100 * found['recall@1']:.1f} %{bounds}; by chance {100 * found.chance['recall@1']:.1f} %."
    )


def _doubtful(judged: Judged, roots: Sequence[str]) -> Section | None:
    """Show labels that are probably wrong, duplicates and outliers, the worst first."""
    names = judged.images.names
    if names is None or len(names) < 2:
        return None
    places = [path for name in names if (path := find_picture(name, roots)) is not None and Path(path).is_file()]
    files = FilePixels(places) if len(places) == len(names) else None
    rows = replace(judged.images.described(), embeddings=judged.embeddings, pixels=files)
    found, number = examine(rows, judged.config.distance), {name: row for row, name in enumerate(names)}
    content = Markup("<p>{}</p>").format(found.counts)
    for section in finding_sections(
        found, lambda name, alt: shown(judged, number[name], alt), _SHOWN, "proxemic clean lists all"
    ):
        content += Markup("<h3>{}</h3>{}").format(section.title, section.html)
    return Section("Suspected images", content)
