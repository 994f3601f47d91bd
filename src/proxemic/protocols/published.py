"""The papers' figures, `proxemic.published`, by the name that they had before recipes named their rows."""

from proxemic.published import (
    Paper,
    PublishedFigure,
    PublishedProtocol,
    PublishedTable,
    list_papers,
    published_figures,
    published_protocol,
    published_tables,
)

__all__ = [
    "Paper",
    "PublishedFigure",
    "PublishedProtocol",
    "PublishedTable",
    "list_papers",
    "published_figures",
    "published_protocol",
    "published_tables",
]
