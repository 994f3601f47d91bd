"""What the experiments share: which losses are searched and compared, and tables kept as CSV files."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from proxemic.files import write_text
from proxemic.protocols.tuning import TuningResult, tune
from proxemic.tables import Table

HERE = Path(__file__).parent
AROUND = "glyphs-small"
"""Its learning rates, 0.002 and 0.02, are the middle of the ranges of every loss on every data set."""
LEAN = {"training.loggers": [], "evaluation.untrained": False}
"""Without what no figure depends on."""


@dataclass(frozen=True)
class Search:
    """A loss as it is searched: the name of its recipe, its siblings, whose values are tried first, and its space."""

    recipe: str
    siblings: tuple[str, ...]
    space: str | None = None


_SOFTMAX = ("softmax", "cosface", "arcface", "sphereface", "proxy-nca")
_ANCHOR = ("proxy-anchor", "mpa", "mpa-dw", "mpa-ap", "soft-triple")
_EUCLIDEAN = ("euclidean-softmax", "warped-softmax-warp-off-first", "warped-softmax")
_PAIRS = ("multi-similarity", "contrastive")

SEARCHES: dict[str, Search] = {
    # First those about which the papers claim something.
    "softmax": Search("softmax", _SOFTMAX),
    "softmax-mean-proxy": Search("softmax-mean-proxy", _SOFTMAX),
    "proxy-anchor": Search("proxy-anchor", _ANCHOR),
    "mpa-ap": Search("mpa-ap", _ANCHOR),
    "soft-triple": Search("soft-triple", _ANCHOR),
    "mpa": Search("mpa", _ANCHOR),
    "mpa-dw": Search("mpa-dw", _ANCHOR),
    "euclidean-softmax": Search("euclidean-softmax", _EUCLIDEAN),
    "euclidean-softmax-two-phases": Search(
        "euclidean-softmax-two-phases", _EUCLIDEAN, "EuclideanSoftmaxLoss-two-phases"
    ),
    "warp-off-first-attracting": Search(
        "warped-softmax-warp-off-first", _EUCLIDEAN, str(HERE / "spaces" / "warp-off-first-attracting.yaml")
    ),
    "warp-attracting": Search("warped-softmax", _EUCLIDEAN, str(HERE / "spaces" / "warp-attracting.yaml")),
    "multi-similarity": Search("multi-similarity", _PAIRS),
    "arcface": Search("arcface", _SOFTMAX),
    "warp-off-first": Search("warped-softmax-warp-off-first", _EUCLIDEAN),
    "warp": Search("warped-softmax", _EUCLIDEAN, "WarpedSoftmaxLoss-two-phases"),
    "proxy-nca-plus-plus": Search("proxy-nca-plus-plus", ()),
    "magface": Search("magface", _SOFTMAX),
    "cosface": Search("cosface", _SOFTMAX),
    "sphereface": Search("sphereface", _SOFTMAX),
    "proxy-nca": Search("proxy-nca", _SOFTMAX),
    "contrastive": Search("contrastive", _PAIRS),
    "hist": Search("hist", ()),
}


def run_search(dataset: str, name: str, out: Path, root: Path | None, *, budget: float, seeds: int) -> TuningResult:
    """Search for a loss on a data set, or go on, or read the result of a finished search."""
    search = SEARCHES[name]
    # The values that eight trials found for the siblings; of the same loss on the other data set; and the defaults.
    first = [f"{dataset}/{each}" for each in search.siblings if each != search.recipe]
    if dataset != AROUND:
        first.append(f"{AROUND}/{search.recipe}")
    return tune(
        f"{dataset}/{search.recipe}",
        out=out / dataset / name,
        overrides=LEAN | ({} if root is None else {"data.root": str(root)}),
        space=search.space,
        around=AROUND,
        budget=budget,
        seeds=seeds,
        first=[*first, AROUND],
        pruner="halving",
        report=lambda line: print(line, flush=True),
    )


def commit() -> str:
    """The commit of this repository, with a + where files were changed."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--abbrev=8", "--exclude=*"],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def keep_table(table: Table, path: Path, command: str) -> None:
    """Write a table as CSV, and print the Markdown that a page of the documentation shows."""
    write_text(path, table.text("csv") + "\n")
    print(f"<!-- table: {path.name} -->\n`{command}`, at commit {commit()}:\n\n{table.text('markdown')}\n")
