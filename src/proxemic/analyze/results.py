"""The result of an analysis, the names of its files, and tables of means over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from safetensors.torch import load_file

from proxemic.analysis.toy import Scene
from proxemic.errors import UserError
from proxemic.outputs import check_output, is_picture
from proxemic.studies.statistics import Estimate, format_estimate
from proxemic.tables import Table

PathLike = Path | str
Stem = Path | str
"""Prefix of file names; the command line recognises this type by its name."""
Folder = Path | str
Figures = TypeVar("Figures")
HOW_TO_KEEP = "--training.callbacks '[{class_path: proxemic.training.Snapshots}]'"


@dataclass(frozen=True, kw_only=True, eq=False)
class Analysis(Generic[Figures]):
    """The result of an analysis.

    Args:
        figures: Measured values; their type depends on the function.
        summary: Sentences and tables for people; ``str(result)`` joins them.
        written: Written files.
    """

    figures: Figures
    summary: Sequence[Table | str]
    written: Sequence[Path]

    def __str__(self) -> str:
        return "\n".join(part if isinstance(part, str) else part.text() for part in self.summary)


def file_stem(out: PathLike | None, runs: Sequence[PathLike], name: str) -> Path:
    """Return the prefix of the file names: ``out``, or ``name`` in the first run's directory."""
    stem = Path(out) if out is not None else Path(*runs[:1]) / name
    if not stem.name or stem.is_dir():
        raise UserError(f"--out is the folder {stem}, but must be a prefix of file names: try {stem / 'figure'}.")
    check_output(stem.with_name(f"{stem.name}.png"), is_picture)
    return stem


def suffixed(stem: Path, name: str) -> Path:
    """Append the name of a plot to the prefix of file names, as in ``map-tsne``."""
    return stem.with_name(f"{stem.name}-{name}")


def seed_table(
    title: str,
    columns: Mapping[str, Mapping[str, Estimate]],
    labels: Mapping[str, str] | None = None,
    form: str = ".4g",
    *,
    width: str | None = None,
    factor: float = 1,
) -> Table:
    """Make a table of means over seeds, with a column per group and a row per key; ``labels`` rename the keys."""
    first = next(iter(columns.values()))
    rows = [
        [label, *(format_estimate(column.get(key), factor, form, width) for column in columns.values())]
        for key, label in (labels or {key: key for key in first}).items()
        if key in first
    ]
    return Table(["", *columns], rows, title)


def read_snapshots(run: Path) -> dict[int, Scene]:
    """Read the snapshots of embeddings and proxies of a run, by epoch; empty if it kept none."""
    paths = sorted((run / "snapshots").glob("epoch-*.safetensors"))
    contents = {int(path.stem.removeprefix("epoch-")): load_file(path) for path in paths}
    return {
        epoch: Scene(content["embeddings"], content["labels"], content.get("proxies"))
        for epoch, content in contents.items()
    }
