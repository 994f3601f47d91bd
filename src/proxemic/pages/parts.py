"""Tables and pictures of a page, whose text and names are escaped."""

import base64
import io
from collections.abc import Sequence

from proxemic.extras import optional_dependency
from proxemic.tables import Table

with optional_dependency("train"):
    from markupsafe import Markup
    from PIL import Image


def table(content: Table, *, description: str = "") -> Markup:
    """A table whose rows are named by their first column; where it is wider than the screen, it scrolls by itself.

    Args:
        content: The table: its title becomes the caption, its notes follow below.
        description: What a screen reader calls a table that has no title.

    Example:
        >>> print(table(Table(["run", "Recall@1"], [["<a>", 0.5]])))
        <div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
        <thead><tr><th scope="col">run</th><th scope="col" class="right">Recall@1</th></tr></thead>
        <tbody>
        <tr><th scope="row">&lt;a&gt;</th><td class="right">0.5</td></tr>
        </tbody>
        </table></div>
    """
    classes = [Markup(' class="right"') if side == "r" else "" for side in content.sides]

    def row(cells: Sequence[str], heads: int, scope: str) -> Markup:
        return Markup().join(
            Markup('<th scope="{}"{}>{}</th>').format(scope, side, cell)
            if number < heads
            else Markup("<td{}>{}</td>").format(side, cell)
            for number, (cell, side) in enumerate(zip(cells, classes, strict=True))
        )

    head = row(content.columns, len(content.columns), "col")
    body = Markup().join(Markup("<tr>{}</tr>\n").format(row(line, 1, "row")) for line in content.cells)
    caption = Markup("<caption><span>{}</span></caption>\n").format(content.title) if content.title else ""
    notes = Markup().join(Markup("\n<p><small>{}</small></p>").format(note) for note in content.notes)
    return Markup(
        '<div class="scroll" tabindex="0" role="group" aria-label="{}"><table>\n{}'
        "<thead><tr>{}</tr></thead>\n<tbody>\n{}</tbody>\n</table></div>{}"
    ).format(content.title or description or "Table", caption, head, body, notes)


_SMALLER = ((1, 80), (1, 60), (1, 40), (0.7, 60), (0.7, 40), (0.5, 50), (0.5, 30), (0.35, 30), (0.25, 30), (0.15, 20))
"""Sides, as parts of the side, and qualities that are tried for a picture that is to be small."""


def data_url(image: Image.Image, side: int, most: int | None = None) -> str:
    """A small copy of a picture, as an address that holds it.

    Args:
        image: A picture of any mode and size.
        side: The longest side of the copy, in pixels; smaller pictures stay as they are.
        most: Characters of the address, some 1,500 or more: noisy pictures are compressed more, and made smaller, until
            it has no more. None does neither.

    Returns:
        The address of a JPEG: ``data:image/jpeg;base64,…``.
    """
    whole, address = image.convert("RGB"), ""
    for part, quality in _SMALLER:
        small = whole.copy()
        longest = max(1, round(part * side))
        small.thumbnail((longest, longest))
        content = io.BytesIO()
        small.save(content, "JPEG", quality=quality, optimize=True)
        address = f"data:image/jpeg;base64,{base64.b64encode(content.getvalue()).decode()}"
        if most is None or len(address) <= most:
            break
    return address


def picture(image: Image.Image | None, side: int, alt: str, most: int | None = None) -> Markup:
    """A picture of a page in a square of its own.

    Args:
        image: The picture, of any size; None says that there is none.
        side: The side of the square, in CSS pixels, and the longest side of the copy in the page.
        alt: What a screen reader says in its place; nothing where the text beside it says the same.
        most: As of `data_url`.

    Example:
        >>> print(picture(None, 96, "hat"))
        <span class="picture" style="width:96px;height:96px">no picture</span>
    """
    size = f"width:{side:d}px;height:{side:d}px"
    if image is None:
        return Markup('<span class="picture" style="{}">no picture</span>').format(size)
    return Markup('<img class="picture" style="{}" alt="{}" src="{}">').format(size, alt, data_url(image, side, most))


def figure(shown: Markup, caption: Markup | str) -> Markup:
    """A picture, or several, above a caption."""
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(shown, caption)
