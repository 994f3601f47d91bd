"""Shared by all analyses: their result, the names of their files, and tables of means over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from safetensors.torch import load_file

from proxemic.analysis.toy import Scene
from proxemic.errors import UserError
from proxemic.studies.statistics import Estimate
from proxemic.tables import Table

PathLike = Path | str
Stem = Path | str
"""Prefix of the names of files; the command line tells it from other paths by its name."""
Folder = Path | str
Figures = TypeVar("Figures")
HOW_TO_KEEP = "--training.callbacks '[{class_path: proxemic.training.Snapshots}]'"


@dataclass(frozen=True, kw_only=True, eq=False)
class Analysis(Generic[Figures]):
    """The result of an analysis.

    Args:
        figures: What was measured; each function says of what type.
        summary: Sentences and tables for people, in their order; ``str(result)`` joins them.
        written: The files.
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
        raise UserError(f"--out is the folder {stem}, but is how the names of files begin: try {stem / 'figure'}.")
    return stem


def suffixed(stem: Path, name: str) -> Path:
    """Append a plot's name to the prefix of the file names, as in ``map-tsne``."""
    return stem.with_name(f"{stem.name}-{name}")


def format_mean(estimate: Estimate | None, form: str = ".4g", *, width: str = "", factor: float = 1) -> str:
    """Write a mean and half the width of its interval, if it has one; ``width`` is the format of the latter."""
    if estimate is None:
        return ""
    if math.isnan(estimate.mean):
        return "n/a"
    mean = f"{factor * estimate.mean:{form}}"
    return mean if estimate.half_width is None else f"{mean} ± {factor * estimate.half_width:{width or form}}"


def seed_table(
    title: str,
    columns: Mapping[str, Mapping[str, Estimate]],
    labels: Mapping[str, str] | None = None,
    form: str = ".4g",
    *,
    width: str = "",
    factor: float = 1,
) -> Table:
    """Lay out means over seeds: one column per group, one row per key of the first, perhaps by another label."""
    first = next(iter(columns.values()))
    rows = [
        [label, *(format_mean(column.get(key), form, width=width, factor=factor) for column in columns.values())]
        for key, label in (labels or {key: key for key in first}).items()
        if key in first
    ]
    return Table(["", *columns], rows, title)


def read_snapshots(run: Path) -> dict[int, Scene]:
    """Read the embeddings and proxies that a run kept during its training, by epoch; empty if it kept none."""
    paths = sorted((run / "snapshots").glob("epoch-*.safetensors"))
    contents = {int(path.stem.removeprefix("epoch-")): load_file(path) for path in paths}
    return {
        epoch: Scene(content["embeddings"], content["labels"], content.get("proxies"))
        for epoch, content in contents.items()
    }
