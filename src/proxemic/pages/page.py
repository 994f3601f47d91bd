"""Render pages: HTML files that contain everything they show, make no requests and run only their own scripts."""

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import readable
from proxemic.outputs import check_output, is_page
from proxemic.pages.charts import MARK, vega
from proxemic.tables import Table

with optional_dependency("train"):
    from markupsafe import Markup
    from PIL import Image

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Args:
        title: Its heading, as plain text.
        html: Its content. Escape foreign text when you insert it: by `Markup.format`, a template of `environment`, or
            the functions of this package.
    """

    title: str
    html: Markup

    @property
    def anchor(self) -> str:
        """The fragment of a link to this section.

        >>> Section("Queries, worst first", Markup()).anchor
        'queries-worst-first'
        """
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


def environment(*folders: Path) -> "Environment":
    """Return Jinja2's environment for templates that extend ``base.html``; all content is escaped.

    Args:
        folders: Folders of further templates, which are searched before those of this package.

    Returns:
        An environment in which a name without a value is an error.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        autoescape=True,
        loader=FileSystemLoader([*folders, _HERE]),
        lstrip_blocks=True,
        trim_blocks=True,
        undefined=StrictUndefined,
    )
    made.filters |= {"digest": _digest, "short": short}
    return made


def short(name: str, label: str | None = None) -> str:
    """Shorten a path to its folder and file, or to the file alone if the folder is the label shown next to it.

    >>> short("/data/photos/cat/1.jpg"), short("/data/photos/cat/1.jpg", "cat"), short("1.jpg")
    ('cat/1.jpg', '1.jpg', '1.jpg')
    """
    folder, file = ["", *name.rstrip("/").split("/")][-2:]
    return file if folder in ("", label) else f"{folder}/{file}"


def check_page(path: Path, given_as: str = "The report") -> None:
    """Raise `UserError` if a page cannot be written to a path; call this before the page takes minutes to make."""
    if path.suffix.lower() != ".html":
        raise UserError(f"{given_as} is {path}, but must end in .html.")
    if path.is_dir():
        raise UserError(f"{given_as} is {path}, but that is a folder: give the name of a file.")
    check_output(path, is_page, given_as=given_as)


def render_page(title: str, sections: Sequence[Section], *, summary: str = "") -> str:
    """Render sections as a page that opens without a network and works by keyboard, on a phone and in dark mode.

    If a section has a chart, the page contains Vega, once.

    Args:
        title: The title and first heading, as plain text.
        sections: What the page shows, in order; if there are more than two, a menu links to them.
        summary: A sentence below the title, as plain text.

    Returns:
        The text of the file.

    Example:
        >>> page = render_page("A <b> page", [Section("Part", Markup("<p>Text.</p>"))])
        >>> "<h1>A &lt;b&gt; page</h1>" in page, "<script" in page
        (True, False)
    """
    scripts = vega() if any(MARK in section.html for section in sections) else ()
    template = environment().get_template("sections.html")
    text = template.render(title=title, summary=summary, sections=sections, scripts=[*map(Markup, scripts)])
    return readable(text)


def _digest(script: str) -> str:
    """Return the hash by which a content security policy allows a script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def table(content: Table, *, description: str = "") -> Markup:
    """Render a table whose first column names the rows; a table wider than the screen scrolls by itself.

    Args:
        content: The table. Its title becomes the caption, and its notes follow below.
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
"""Fractions of the side, and JPEG qualities, to try until an image is small enough."""


def data_url(image: Image.Image, side: int, most: int | None = None) -> str:
    """Encode a small copy of an image as a data URL.

    Args:
        image: An image of any mode and size.
        side: The longest side of the copy, in pixels; smaller images stay as they are.
        most: The largest length of the URL in characters, 1,500 or more: noisy images are compressed more and made
            smaller until they fit. None sets no limit.

    Returns:
        The data URL of a JPEG: ``data:image/jpeg;base64,…``.
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
    """Render an image in the centre of a square.

    Args:
        image: The image, of any size; None shows the words *no image*.
        side: The side of the square, in CSS pixels, and the longest side of the copy in the page.
        alt: The text that a screen reader reads instead; empty if the text next to the image says the same.
        most: The largest length of its data URL in characters, as in `data_url`.

    Example:
        >>> print(picture(None, 96, "hat"))
        <span class="picture" style="width:96px;height:96px">no image</span>
    """
    size = f"width:{side:d}px;height:{side:d}px"
    if image is None:
        return Markup('<span class="picture" style="{}">no image</span>').format(size)
    return Markup('<img class="picture" style="{}" alt="{}" src="{}">').format(size, alt, data_url(image, side, most))


def figure(shown: Markup, caption: Markup | str) -> Markup:
    """Render one or more images above a caption."""
    return Markup("<figure>{}<figcaption>{}</figcaption></figure>").format(shown, caption)
