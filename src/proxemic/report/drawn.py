"""Queries of an evaluation, drawn with their neighbours on a page of their own."""

from collections.abc import Sequence
from pathlib import Path

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.pages import render_page
from proxemic.pages.page import check_page
from proxemic.report.judged import Judged, PicturesOf
from proxemic.report.pictured import PicturesNamed, name_of
from proxemic.report.queries import chosen_queries, worst_queries
from proxemic.studies.evaluation import Evaluation

_MOST = 100  # queries, some 5 MB where pictures are noise
_LOCAL = ("/",)  # no address, which a file of embeddings from elsewhere may name


def draw_queries(evaluation: Evaluation, out: str | Path, *, worst: int = 0, chosen: Sequence[str] = ()) -> Path:
    """Draw queries of an evaluation, each with its nearest neighbours and the first right one.

    Pictures of embeddings that were made elsewhere are looked for on this machine, by the paths of the rows.

    Args:
        evaluation: Of one model, by `proxemic.evaluate`.
        out: The page, ``.html``, which opens without a network.
        worst: How many of the worst queries: those of the lowest average precision over the first R neighbours and, of
            equal ones, the latest first right neighbour; at most 100.
        chosen: Paths of queries, whole or their ends.

    Returns:
        The page.

    Raises:
        UserError: If there is no such query, or several, or the page cannot be written.

    Example::

        evaluation = proxemic.evaluate("runs/photos")
        proxemic.report.draw_queries(evaluation, "worst.html", worst=20)
    """
    path, target = Path(out), evaluation.targets[0]
    check_page(path, "The page")
    if not 0 <= worst <= _MOST or len(chosen) > _MOST or not (worst or chosen):
        raise UserError(
            f"There are {worst:,} worst and {len(chosen):,} chosen queries to draw, but there must be some, and "
            f"at most {_MOST} of each."
        )
    rows, images = target.rows, target.images
    picture = PicturesOf(images) if images is not None else PicturesNamed(rows.paths, _LOCAL)
    judged = Judged(target.name, target.split, target.content.embeddings, rows, target.config, picture)
    sections = []
    if chosen:
        try:
            sections.append(chosen_queries(judged, [_row(judged, each) for each in chosen]))
        except ValueError as error:
            raise UserError(str(error)) from error
    if worst:
        sections.append(worst_queries(judged, worst))
    write_text(path, render_page(f"Queries of {target.name}", sections))
    return path


def _row(judged: Judged, wanted: str) -> int:
    names = [name_of(judged, row) for row in range(len(judged.embeddings))]
    end = "/" + wanted.lstrip("/")
    found = [row for row, name in enumerate(names) if name == wanted] or [
        row for row, name in enumerate(names) if ("/" + name).endswith(end)
    ]
    if len(found) != 1:
        said = f"{len(found):,} pictures end in it" if found else "no picture has this path"
        example = names[found[0] if found else 0]
        raise UserError(f"--chosen is {wanted}, but {said}: give one of them, such as {example}.")
    return found[0]
