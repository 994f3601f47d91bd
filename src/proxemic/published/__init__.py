"""The figures that the papers print, as data: they are shown beside ours, with the differences in protocol.

The folder of this file holds one CSV per table, `tables.csv`, which lists them, `papers.csv`, and `protocols.csv`,
which holds what a paper says of how it obtained a table or some of its rows. What is not stated is empty. Recipes name
the rows that they reproduce by their key `published`, a list of `PublishedRow`.
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
    """A paper whose tables are in the package; the title and the year are empty where our copy lacks them."""

    key: str
    title: str
    authors: str
    year: int | None
    venue: str
    note: str


@dataclass(frozen=True)
class PublishedTable:
    """One table of a paper; ``table`` is its number as printed, and the caption is in our words.

    Its kind is `results` (each cell is a `PublishedFigure`), `properties` of losses, or `examples` of metrics.
    """

    paper: str
    table: str
    kind: str
    caption: str
    file: Path

    def rows(self) -> tuple[dict[str, str], ...]:
        """Return the rows of the CSV, as text."""
        return _rows(self.file)


@dataclass(frozen=True)
class PublishedFigure:
    """One number that a paper prints.

    Args:
        paper: Key of the paper, of `list_papers`.
        table: Number of the table as printed, such as `4.1` or `VI`.
        dataset: `cub`, `cars`, `sop`, `lfw`, `cfp-fp`, `agedb-30`, `calfw` or `cplfw`.
        method: Name as printed, without references.
        loss: Name of the method's class in `proxemic.losses`, or empty.
        variant: Distinguishes the row from others of the method, such as `mean proxy regulariser` or `separated`.
        backbone: `BN-Inception`, `ResNet-50` or `ResNet-100`; empty where not stated.
        embedding_size: Dimension, where stated.
        image_size: Side of the crop in pixels, where stated.
        settings: Hyper-parameters of the row, as `key=value` separated by spaces: `proxies_per_class=10`.
        metric: Our key where it is one of ours (`recall@1`, `map@r`, `nmi`); else `accuracy` (of verification), or
            `average_distance_to_proxy`, the only one that is no percentage.
        value: The number as printed, a percentage: 100 times ours.
        printed: Its digits as printed.
        spread: The number after the ±, in the unit of the value.
        spread_kind: `std`, `95% ci`, or empty.
        quoted: Whether the paper takes the number from another paper, which it cites, without running it again.
        note: Anything else; `garbled in our copy` where the transcription had to guess.
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
    """How a paper obtained a figure; empty or None is not stated, and fields of `PublishedFigure` are as there.

    Args:
        batch_size: Images per step.
        optimizer: Name, with arguments where stated.
        selected_on: `test`, `validation`, `last` or `unstated`: where the hyper-parameters and the epoch were chosen.
        seeds: Number of runs that the figure is the mean of.
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
    """A row of a paper's table, which a recipe reproduces: its figures are shown beside those of the recipe's runs.

    Args:
        paper: Key of the paper, as in `list_papers`.
        table: Its number as printed, such as `4.1` or `VI`.
        method: Name of the row, as in `PublishedFigure`.
        variant: Distinguishes the row from others of the method, such as `with validation`; empty takes all.
        settings: The row's own hyper-parameters; empty takes all.
        backbone: `BN-Inception`, `ResNet-50` or `ResNet-100`; empty takes all.
        untrained: The row describes the network before its training, and is shown beside our untrained network.

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
        """Return the figures of a data set, and all of face verification, whose pairs do not depend on the data."""
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
    """Return every table of the papers, in their order."""
    return tuple(_record(PublishedTable, row) for row in _rows(FOLDER / "tables.csv"))


def published_figures(
    *, paper: str | None = None, dataset: str | None = None, loss: str | None = None
) -> tuple[PublishedFigure, ...]:
    """Return every number of the papers' tables of results, or those of a paper, dataset or loss.

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
    """Return how the paper obtained a figure: the most specific row of `protocols.csv` that applies."""
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
"""How the text of a cell becomes a field of each type."""
