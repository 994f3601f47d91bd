"""Write the report of a run from its sections."""

from collections.abc import Callable, Mapping
from logging import getLogger
from pathlib import Path
from types import MappingProxyType

from jaxtyping import Float
from torch import Tensor

from proxemic.data.sources.own_source import NewImages
from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.models import read_checksum
from proxemic.pages import render_page
from proxemic.pages.page import check_page
from proxemic.report.about import curves, data, environment, recipe
from proxemic.report.classes import confused, distances
from proxemic.report.judged import judge_run
from proxemic.report.metrics import differences, metrics, recorded_metrics
from proxemic.report.pictured_map import Projection, check_projection, pictured_map
from proxemic.report.queries import queries
from proxemic.report.verdict import verdict_on_run
from proxemic.report.why_near import why_near
from proxemic.studies.finished import FinishedRun
from proxemic.studies.recipe_content import class_name


def write_report(
    target: str | Path,
    *others: str | Path,
    out: str | Path,
    root: str | Path | None = None,
    projection: Projection = "pca",
    embedded: Mapping[str, Float[Tensor, "images width"]] = MappingProxyType({}),
    new_images: NewImages = "leave",
    report: Callable[[str], object] | None = None,
) -> Path:
    """Write a page about a run, and compare it with others: one file that works offline.

    Args:
        target: The directory of a finished run. The report is about its test classes, or about its validation classes
            if it has no test.
        others: Further runs, which are compared with the first on its images.
        out: The page, ``.html``.
        root: Show other labelled images instead, a folder or a table, as `proxemic.evaluate` takes them by
            ``data.root``.
        projection: The projection of the map: ``pca``, ``tsne``, or ``umap``, which needs the extra ``umap``.
        embedded: The embeddings of the run's test by `proxemic.train`; empty embeds the images again.
        new_images: Images that came after the run began: ``leave`` leaves them out, ``join`` adds them to the split of
            their class, except those of unknown classes.
        report: Called with notes for the user, such as that the images are gone and the page shows only what the run
            has recorded. None logs them.

    Returns:
        The page.

    Raises:
        UserError: If there is no finished run, or the page cannot be written.

    Example::

        proxemic.report.write_report("runs/photos", out="photos.html")
    """
    report, path = report or getLogger("proxemic").info, Path(out)
    check_page(path)
    check_projection(projection)  # before embedding takes minutes
    run = FinishedRun(Path(target), new_images)
    read_checksum(run.path)  # refuse a damaged model, although a report can do without images
    try:
        judged = judge_run(run, others, root=root, embedded=embedded, report=report)
    except (UserError, ValueError) as error:
        if others or root is not None or new_images == "join":
            raise
        report(f"The report shows what the run has recorded, without images: {error}")
        judged = None
    first = verdict_on_run(run, judged)
    if judged is None:
        sections = [first, recorded_metrics(run)]
    else:
        of_judged = (metrics, differences, queries, confused, distances, why_near)
        sections = [first, *(section(judged) for section in of_judged), pictured_map(judged, method=projection)]
    sections += [section(run) for section in (curves, data, recipe, environment)]
    title = f"{run.name}: {class_name(run.content['loss'])}, seed {run.seed}"
    write_text(path, render_page(title, [section for section in sections if section is not None]))
    return path
