"""The page of `proxemic clean`: one HTML file with small copies of the pictures, that needs no network."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from proxemic.data.pixels import UnreadableImageError
from proxemic.files import readable, write_text
from proxemic.pages import environment, picture

if TYPE_CHECKING:
    from markupsafe import Markup

    from proxemic.retrieval.cleaning.cleaning import Cleaning

SHOWN, _SIDE = 100, 96


def write_page(cleaning: "Cleaning", path: Path) -> Path:
    """Write the page, whole or not at all, with the first hundred of each table."""
    from proxemic.retrieval.cleaning.cleaning import NOT_FOUND

    def show(name: str) -> "Markup":
        image = None
        if name in cleaning.pixels:
            pixels, row = cleaning.pixels[name]
            with suppress(UnreadableImageError):  # it was there a moment ago
                image = pixels.load(row, _SIDE)
        return picture(image, _SIDE, "")  # the caption has its name

    text = (
        environment(Path(__file__).parent)
        .get_template("page.html")
        .render(
            title="proxemic clean",
            scripts=[],
            summary=cleaning.summary(),
            not_found=NOT_FOUND,
            labels=cleaning.labels,
            duplicates=cleaning.duplicates,
            outliers=cleaning.outliers,
            unreadable=[*cleaning.unreadable.items()],
            shown=SHOWN,
            show=show,
        )
    )
    write_text(path, readable(text))
    return path
