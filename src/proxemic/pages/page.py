"""A page: one file that holds all it shows, asks the network for nothing and runs no script but its own."""

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import readable
from proxemic.pages.charts import MARK, vega

with optional_dependency("train"):
    from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Args:
        title: Its heading, as plain text.
        html: Its content. Text of others is escaped where it is put in: by `Markup.format`, a template of
            `environment`, or the functions of this package.
    """

    title: str
    html: Markup

    @property
    def anchor(self) -> str:
        """What a link to this section ends in.

        >>> Section("Queries, worst first", Markup()).anchor
        'queries-worst-first'
        """
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


def environment(*folders: Path) -> "Environment":
    """Jinja2 for templates that extend ``base.html``; whatever is put into them is escaped.

    Args:
        folders: Where further templates are, beside those of this package.

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
    made.filters["digest"] = _digest
    return made


def check_page(path: Path, given_as: str = "The report") -> None:
    """Raise `UserError` where a page cannot be written to a path: before the minutes in which its content is made."""
    if path.suffix.lower() != ".html":
        raise UserError(f"{given_as} is {path}, but must end in .html.")
    if path.is_dir():
        raise UserError(f"{given_as} is {path}, but that is a folder: give the name of a file.")


def render_page(title: str, sections: Sequence[Section], *, summary: str = "") -> str:
    """Put sections together to a page that opens without a network, by keyboard, on a phone and in the dark.

    Charts are drawn by Vega, which is put into the page once, and only where there is a chart.

    Args:
        title: The title and first heading, as plain text.
        sections: What the page shows, in order; a list of links to them stands above where there are several.
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
    """What a content security policy knows a script by."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
