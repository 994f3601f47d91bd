"""Write figures atomically, with the same bytes for the same content."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from proxemic.extras import optional_dependency
from proxemic.files import write_atomically, write_csv

with optional_dependency("train"):
    from matplotlib import rc_context
    from matplotlib.figure import Figure


def save_figure(figure: Figure, path: Path, *, dpi: int = 120) -> None:
    """Write a figure as ``.png`` or ``.svg``, by the suffix of its path."""
    # A date, and random names of elements, would change the bytes of the file.
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with rc_context({"svg.hashsalt": "proxemic"}), write_atomically(path) as temporary:
        figure.savefig(temporary, dpi=dpi, format=path.suffix[1:], metadata=metadata)


def write_figure(figure: Figure, stem: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[Path]:
    """Write ``STEM.png``, ``STEM.svg`` and the plotted numbers as ``STEM.csv``, and return the paths."""
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg", "csv")]
    for path in paths[:2]:
        save_figure(figure, path, dpi=150)
    write_csv(paths[2], header, rows)
    return paths
