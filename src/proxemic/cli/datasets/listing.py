"""``proxemic datasets list``."""

from pathlib import Path

from proxemic.cli.datasets.catalogue import CATALOGUE, GLYPHS
from proxemic.data.benchmarks import AbsentError, Benchmark, Facts
from proxemic.extras import optional_dependency

__all__ = ["print_list"]

NOTE = """\
Sizes are images of classes. A download is checked against its MD5; In-Shop publishes none, so that there its archive's
own checksums and the counts are all that is checked. Where to read about each, and to get what is fetched by hand:
"""


def print_list(root: Path | None) -> None:
    """Print the names, sizes and origins, and what of it is in `root`."""
    with optional_dependency("train"):
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.table import Column, Table

    table = Table(Column("name", no_wrap=True), "data set", "train", "test", "origin", box=SIMPLE_HEAD, show_edge=False)
    if root is not None:
        table.add_column(f"in {root}")
    for name, benchmark in CATALOGUE.items():
        facts = benchmark.facts
        cells = [name, facts.title, _size(facts, "train"), _size(facts, "test"), _origin(facts)]
        table.add_row(*cells, *([] if root is None else [_state(name, benchmark, root)]))
    table.add_row(
        GLYPHS, "Glyphs", "half of the characters", "the others", "rendered here", *([] if root is None else ["-"])
    )
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(table)
    console.print(NOTE, end="", soft_wrap=True)
    for name, benchmark in CATALOGUE.items():
        console.print(f"  {name}: {benchmark.facts.page}", soft_wrap=True)


def _size(facts: Facts, part: str) -> str:
    return f"{facts.counts[f'{part} images']:,} of {facts.counts[f'{part} classes']:,}"


def _origin(facts: Facts) -> str:
    return "by hand" if facts.by_hand else "download"


def _state(name: str, benchmark: type[Benchmark], root: Path) -> str:
    for folder in (root, root / name):
        source = benchmark(folder)
        try:
            source.judge(source.read())
        except AbsentError:
            if any(source.locate(file) for file in source.files):
                return "files, not prepared"
        except ValueError:
            return "not whole: see datasets check"
        else:
            return "whole"
    return "-"
