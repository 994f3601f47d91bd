"""Pictures in sections: what each is called, and copies that are small enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup
from PIL import Image

from proxemic.data.roots import picture_named
from proxemic.pages import environment, picture
from proxemic.report.judged import Judged

SIDE = 112
"""Of a picture beside others, in CSS pixels."""

_MOST = 6000  # characters of a picture of noise, which has no limit of its own
_HERE = Path(__file__).parent


def shown(judged: Judged, row: int, alt: str, side: int = SIDE) -> Markup:
    """A row's picture, or that there is none."""
    return picture(judged.picture(row, side), side, alt, _MOST)


@dataclass(frozen=True)
class PicturesNamed:
    """Reads pictures by the paths of rows, below the roots alone."""

    names: Sequence[str] | None
    roots: Sequence[str]

    def __call__(self, row: int, side: int) -> Image.Image | None:
        return None if self.names is None else picture_named(self.names[row], side, self.roots)


def name_of(judged: Judged, row: int) -> str:
    """What a row is known by: its path, or its number."""
    return judged.rows.paths[row] if judged.rows.paths is not None else f"row {row + 1}"


def short(name: str) -> str:
    """The end of a path.

    >>> short("photos/cat/1.jpg")
    '1.jpg'
    """
    return name.rstrip("/").rpartition("/")[2] or name


def render(template: str, **content: Any) -> Markup:
    """A template of this package, with whatever is put into it escaped."""
    return Markup(environment(_HERE).get_template(template).render(content, short=short))
