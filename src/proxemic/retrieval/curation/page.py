"""The page of `proxemic clean`: one HTML file with small copies of the pictures, that needs no network."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from proxemic.data import FilePixels
from proxemic.data.pixels import UnreadableImageError
from proxemic.extras import optional_dependency
from proxemic.files import readable, write_text
from proxemic.pages import environment, picture

with optional_dependency("train"):
    from markupsafe import Markup

SHOWN, _SIDE = 100, 96


def write_page(
    path: Path,
    summary: str,
    not_found: str,
    tables: Mapping[str, Sequence[Any]],
    pixels: Mapping[str, tuple[FilePixels, int]],
) -> Path:
    """Write the page, whole or not at all, with the first hundred of each table and their pictures."""

    def show(name: str) -> Markup:
        image = None
        if name in pixels:
            store, row = pixels[name]
            with suppress(UnreadableImageError):  # it was there a moment ago
                image = store.load(row, _SIDE)
        return picture(image, _SIDE, "")  # the caption has its name

    template = environment(Path(__file__).parent).get_template("page.html")
    facts = {"title": "proxemic clean", "scripts": [], "summary": summary, "not_found": not_found, "shown": SHOWN}
    write_text(path, readable(template.render(**facts, **tables, show=show)))
    return path
