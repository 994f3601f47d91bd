"""The figures that the papers print, as data, to compare with ours, with the differences in protocol.

The folder of this file holds one CSV file per table; `tables.csv`, which lists the tables; `papers.csv`, which lists
the papers; and `protocols.csv`, which describes how a paper obtained a table or some of its rows. Cells are empty if
the paper does not state a value. Recipes name the rows that they reproduce under the key `published`, a list of
`PublishedRow`.
"""

import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

__all__ = [
    "Paper",
    "PublishedFigure",
    "PublishedProtocol",
    "PublishedRow",
    "PublishedTable",
    "list_papers",
    "published_figures",
    "published_protocol",
    "published_tables",
]

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Paper:
    """A paper whose tables are in the package; title and year are empty if our copy lacks them."""

    key: str
    title: str
    authors: str
    year: int | None
    venue: str
    note: str


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper; ``table`` is its printed number, and the caption is in our words.

    Its kind is `results` (each cell is a `PublishedFigure`), `properties` of losses, or `examples` of metrics.
    """

    paper: str
    table: str
    kind: str
    caption: str
    file: Path

    def rows(self) -> tuple[dict[str, str], ...]:
        """Return the rows of the CSV file as text."""
        return _rows(self.file)


@dataclass(frozen=True)
class PublishedFigure:
    """A number that a paper prints.

    Args:
        paper: Key of the paper, of `list_papers`.
        table: Number of the table as printed, such as `4.1` or `VI`.
        dataset: `cub`, `cars`, `sop`, `lfw`, `cfp-fp`, `agedb-30`, `calfw` or `cplfw`.
        method: Name of the method as printed, without references.
        loss: Name of the method's class in `proxemic.losses`, or empty.
        variant: Distinguishes the row from others of the method, such as `mean proxy regulariser` or `separated`.
        backbone: `BN-Inception`, `ResNet-50` or `ResNet-100`; empty where not stated.
        embedding_size: Dimension, where stated.
        image_size: Side of the crop in pixels, where stated.
        settings: Hyper-parameters of the row, as `key=value` separated by spaces: `proxies_per_class=10`.
        metric: Our key of the metric (`recall@1`, `map@r`, `nmi`), or `accuracy` (of verification), or
            `average_distance_to_proxy`, the only metric that is not a percentage.
        value: The printed number, a percentage: 100 times ours.
        printed: The printed digits.
        spread: The number after the ±, in the unit of the value.
        spread_kind: `std`, `95% ci`, or empty.
        quoted: Whether the paper quotes the number from another paper instead of running the method.
        note: Anything else; `garbled in our copy` if the transcription had to guess.
    """

    paper: str
    table: str
    dataset: str
    method: str
    loss: str
    variant: str
    backbone: str
    embedding_size: int | None
    image_size: int | None
    settings: str
    metric: str
    value: float
    printed: str
    spread: float | None
    spread_kind: str
    quoted: bool
    note: str


@dataclass(frozen=True)
class PublishedProtocol:
    """How a paper obtained a figure; empty or None if not stated. The other fields are as in `PublishedFigure`.

    Args:
        batch_size: Images per step.
        optimizer: Name, with arguments where stated.
        selected_on: Where hyper-parameters were tuned and the epoch was selected: `test`, `validation`, `last` or
            `unstated`.
        seeds: Number of runs that the figure averages.
        interval: `none`, `std` or `95% ci`.
        pretrained: `imagenet`, where stated.
        hyperparameters: Learning rates and hyper-parameters of the loss, in words.
        note: Anything else that a comparison should know.
    """

    backbone: str
    embedding_size: int | None
    image_size: int | None
    batch_size: int | None
    epochs: int | None
    optimizer: str
    selected_on: str
    seeds: int | None
    interval: str
    pretrained: str
    hyperparameters: str
    note: str


@dataclass(frozen=True)
class PublishedRow:
    """A row of a paper's table that a recipe reproduces; its figures are compared with those of the recipe's runs.

    Args:
        paper: Key of the paper, as in `list_papers`.
        table: Printed number of the table, such as `4.1` or `VI`.
        method: Name of the row, as in `PublishedFigure`.
        variant: Variant of the method, such as `with validation`; empty takes all.
        settings: Hyper-parameters of the row; empty takes all.
        backbone: `BN-Inception`, `ResNet-50` or `ResNet-100`; empty takes all.
        untrained: Whether the row describes the network before training, to compare with our untrained network.

    Raises:
        ValueError: If there is no such paper, table or row.

    >>> row = PublishedRow("realigned-softmax-warping", "III", "sqrt(t1) - sqrt(t2)")
    >>> {figure.metric: figure.printed for figure in row.figures("cub")}
    {'recall@1': '61.6', 'nmi': '68.1', 'average_distance_to_proxy': '6.48'}
    """

    paper: str
    table: str
    method: str
    variant: str = ""
    settings: str = ""
    backbone: str = ""
    untrained: bool = False

    def __post_init__(self) -> None:
        tables = [
            published_table.table
            for published_table in published_tables()
            if (published_table.paper, published_table.kind) == (self.paper, "results")
        ]
        if not tables:
            raise ValueError(
                f"published.paper is {self.paper!r} but must be one of {', '.join(one.key for one in list_papers())}"
            )
        if self.table not in tables:
            raise ValueError(
                f"published.table is {self.table!r} but the tables of results of {self.paper} are "
                f"{', '.join(map(repr, tables))}"
            )
        left = [figure for figure in published_figures(paper=self.paper) if figure.table == self.table]
        for key in ("method", "variant", "settings", "backbone"):
            given, known = getattr(self, key), dict.fromkeys(getattr(item, key) for item in left)
            left = [item for item in left if given in ("", getattr(item, key))]
            if not left or (key == "method" and not given):
                raise ValueError(
                    f"published.{key} is {given!r} but that of a row of table {self.table} of {self.paper} must be one "
                    f"of {', '.join(map(repr, known))}"
                )

    def figures(self, dataset: str) -> tuple[PublishedFigure, ...]:
        """Return the figures of a data set, and those of face verification, whose pairs do not depend on the data."""
        return tuple(
            figure
            for figure in published_figures(paper=self.paper)
            if (figure.table, figure.method) == (self.table, self.method)
            and all(getattr(self, key) in ("", getattr(figure, key)) for key in ("variant", "settings", "backbone"))
            and (figure.dataset == dataset or figure.metric == "accuracy")
        )


def list_papers() -> tuple[Paper, ...]:
    """Return the papers whose tables are in the package."""
    return tuple(_record(Paper, row) for row in _rows(FOLDER / "papers.csv"))


def published_tables() -> tuple[PublishedTable, ...]:
    """Return all tables of the papers."""
    return tuple(_record(PublishedTable, row) for row in _rows(FOLDER / "tables.csv"))


def published_figures(
    *, paper: str | None = None, dataset: str | None = None, loss: str | None = None
) -> tuple[PublishedFigure, ...]:
    """Return all figures in the papers' tables of results, optionally of one paper, data set or loss.

    Raises:
        ValueError: If there is no such paper.

    >>> [figure] = [row for row in published_figures(dataset="cub", loss="AllPairMultiProxyAnchorLoss")
    ...            if row.metric == "map@r"]
    >>> figure.printed, figure.settings, published_protocol(figure).seeds
    ('26.6', 'proxies_per_class=10', 3)
    """
    keys = [paper.key for paper in list_papers()]
    if paper is not None and paper not in keys:
        raise ValueError(f"paper is {paper!r} but must be one of {', '.join(keys)}")
    return tuple(
        figure
        for figure in _figures()
        if paper in (None, figure.paper) and dataset in (None, figure.dataset) and loss in (None, figure.loss)
    )


def published_protocol(figure: PublishedFigure) -> PublishedProtocol:
    """Return how the paper obtained a figure: the most specific applicable row of `protocols.csv`."""
    of = {key: getattr(figure, key) for key in ("paper", "table", "dataset", "method", "variant")}
    of["quoted"] = str(figure.quoted).lower()
    applying = [row for row in _rows(FOLDER / "protocols.csv") if all(row[key] in ("", of[key]) for key in of)]
    return _record(PublishedProtocol, max(applying, key=lambda row: sum(row[key] != "" for key in of)))


@cache
def _figures() -> tuple[PublishedFigure, ...]:
    rows = [row for table in published_tables() if table.kind == "results" for row in table.rows()]
    return tuple(_record(PublishedFigure, row | {"printed": row["value"]}) for row in rows)


@cache
def _rows(file: Path) -> tuple[dict[str, str], ...]:
    with file.open(encoding="utf-8", newline="") as text:
        return tuple(csv.DictReader(text))


_Record = TypeVar("_Record", Paper, PublishedTable, PublishedFigure, PublishedProtocol)


def _record(kind: type[_Record], row: Mapping[str, str]) -> _Record:
    return kind(**{field.name: _READ[field.type](row[field.name]) for field in fields(kind)})


_READ: dict[Any, Callable[[str], Any]] = {
    str: str,
    bool: {"true": True, "false": False}.__getitem__,
    float: float,
    int | None: lambda text: int(text) if text else None,
    float | None: lambda text: float(text) if text else None,
    Path: lambda text: FOLDER / text,
}
"""Functions that convert the text of a cell to the type of a field."""
