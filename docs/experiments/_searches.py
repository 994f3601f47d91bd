"""What the experiments share: which losses are searched and compared, and tables kept as CSV files."""

import json
import subprocess
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from _kept import METRICS, TAR, Kept

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.recipes import list_recipes
from proxemic.recipes.yaml_files import read_yaml
from proxemic.studies.comparison import compare
from proxemic.studies.comparison.statistics import metric_values
from proxemic.studies.tuning import tune
from proxemic.tables import Table
from proxemic.training import RunDirectory

HERE = Path(__file__).parent
AROUND = "glyphs-small"
"""Its learning rates, 0.002 and 0.02, are the middle of the ranges of every loss on it and on Omniglot."""
FEATURES, PHOTOGRAPHS = "cars-features", "cars-pretrained"
"""Recipes that are not tuned: the ranges lie around their own rates, which those of a head, or of a network, share."""
WITH_NORM, WITHOUT_NORM = "-with-norm", "-without-norm"
LEAN = {"training.loggers": [], "evaluation.untrained": False}
"""Without what no figure depends on."""


@dataclass(frozen=True)
class Size:
    """Of the experiments on a data set: complete trials of a search, seeds of a trial, and of what is compared."""

    budget: float = 24
    trial_seeds: int = 2
    seeds: int = 5


DATA_SETS = {
    "glyphs-small": Size(budget=12),
    "omniglot": Size(budget=12),
    FEATURES: Size(seeds=10),
    PHOTOGRAPHS: Size(budget=6, trial_seeds=1, seeds=3),
}


@dataclass(frozen=True)
class Search:
    """A loss as it is searched: the name of its recipe, its siblings, whose values are tried first, and its space."""

    recipe: str
    siblings: tuple[str, ...]
    space: str | None = None
    layer_norm: bool | None = None
    """Whether the pooled features are normalised before the last layer; `None`: as the recipe says."""

    @property
    def suffix(self) -> str:
        """The end of the name of a search that changes the norm of its recipe."""
        return {None: "", True: WITH_NORM, False: WITHOUT_NORM}[self.layer_norm]


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
    "arcface-sub-centers": Search("arcface-sub-centers", _SOFTMAX, str(HERE / "spaces" / "arcface-sub-centers.yaml")),
    "adaface": Search("adaface", _SOFTMAX),
    "curricularface": Search("curricularface", _SOFTMAX),
    "elasticface": Search("elasticface", _SOFTMAX),
}

_TRAINED_WITHOUT = (
    *("softmax", "softmax-mean-proxy", "proxy-nca-plus-plus", "arcface", "proxy-anchor", "soft-triple"),
    *("mpa", "mpa-dw", "mpa-ap", "multi-similarity"),
)
_TRAINED_WITH = ("euclidean-softmax", "euclidean-softmax-two-phases", "warp", "warp-off-first")
OTHER_NORM: dict[str, Search] = {
    name + search.suffix: search
    for names, layer_norm in ((_TRAINED_WITHOUT, True), (_TRAINED_WITH, False))
    for name in names
    for search in [replace(SEARCHES[name], layer_norm=layer_norm)]
}
"""Searches on characters that turn the layer norm of a loss's recipe on or off, by the name of the search."""


def searched(dataset: str) -> list[str]:
    """The searches of a data set, for whose losses it has recipes."""
    recipes = {*list_recipes()}
    return [name for name, search in SEARCHES.items() if f"{dataset}/{search.recipe}" in recipes]


def kept(dataset: str, folder: Path = HERE / "kept") -> Kept:
    """What is known of a data set."""
    return Kept(folder / dataset)


def run_search(dataset: str, name: str, out: Path, root: Path | None, known: Kept) -> None:
    """Search for a loss on a data set, or go on; a search that is kept is not made again."""
    if known.recipe(name).exists():
        return
    search, size, folder = (SEARCHES | OTHER_NORM)[name], DATA_SETS[dataset], out / dataset / name
    overrides = LEAN | place_of(root)
    if search.layer_norm is not None:
        overrides |= {"model.layer_norm": search.layer_norm}
    if (folder / "tuning.json").exists():
        tune(resume=folder, report=_print)
    else:
        tune(
            f"{dataset}/{search.recipe}",
            out=folder,
            overrides=overrides,
            space=search.space,
            around=None if dataset in (FEATURES, PHOTOGRAPHS) else AROUND,
            budget=size.budget,
            seeds=size.trial_seeds,
            first=_first(dataset, name, out, root, known),
            pruner="halving",
            report=_print,
        )
    known.keep_search(name, folder)


def parser_of(doc: str | None, datasets: Iterable[str], out: str, **choices: Iterable[str]) -> ArgumentParser:
    """Make the parser of a script: a data set, further words with their choices, losses, and where things lie."""
    parser = ArgumentParser(description=doc, formatter_class=RawDescriptionHelpFormatter)
    for name, values in {"dataset": datasets, **choices}.items():
        parser.add_argument(name, choices=values)
    parser.add_argument("losses", nargs="*", metavar="LOSS", help="some of the losses (all)")
    parser.add_argument(
        "--root", type=Path, metavar="PATH", help="Omniglot's images, or the features that cars.py wrote"
    )
    parser.add_argument("--out", type=Path, default=Path(out), metavar="DIR", help="for searches and runs")
    parser.add_argument("--kept", type=Path, default=HERE / "kept", metavar="DIR", help="where finished ones are kept")
    parser.add_argument("--table", type=Path, metavar="DIR", help="train nothing; write the tables of what is kept")
    return parser


def run_script(main: Callable[[], None]) -> None:
    """Run a script; what is the matter with its arguments or files ends it by a sentence."""
    try:
        main()
    except UserError as error:
        raise SystemExit(str(error)) from None


def check_losses(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names, or all that are known where none is given; ends the command if there is no such loss."""
    for name in names:
        if name not in known:
            raise SystemExit(f"There is no loss {name} here: take some of {', '.join(known)}, or name none for all.")
    return [*(names or known)]


def read_features(file: Path, columns: Sequence[str] | None = None) -> Any:
    """Columns of the file that cars.py writes, or all, as an Arrow table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(file, columns=columns and [*columns])
    except (OSError, pa.ArrowInvalid) as error:
        said = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"{file} is no file of features ({said}): python docs/experiments/cars.py makes it.") from None


def place_of(root: Path | None) -> dict[str, object]:
    """The values of a recipe that say where its data is."""
    return {} if root is None else {"data.root": str(root)}


def _first(dataset: str, name: str, out: Path, root: Path | None, known: Kept) -> list[str | Path]:
    """The recipes whose values the first trials take, after the recipe's own."""
    search = (SEARCHES | OTHER_NORM)[name]
    if dataset == PHOTOGRAPHS:
        # What the same loss came to on the features; the rates of a head are not those of a whole network.
        found = kept(FEATURES, known.folder.parent).recipe(name)
        if not found.exists():
            raise SystemExit(f"{found} is not there: python docs/experiments/search.py {FEATURES} {name} comes first.")
        best = read_yaml(found)
        phase = best["second_phase"] or {}
        values = {"extends": f"{dataset}/{search.recipe}", "loss": best["loss"]}
        values |= {"second_phase": {"loss": phase["loss"]}} if "loss" in phase else {}
        file = out / dataset / "first" / f"{name}.yaml"
        write_text(file, json.dumps(values))  # which is YAML, too
        return [file]
    # The best values of the family's first loss, whose search is made before, or finished together with others.
    head = [each for each in search.siblings[:1] if each + search.suffix != name]
    for each in head:
        run_search(dataset, each + search.suffix, out, root, known)
    first: list[str | Path] = [known.recipe(each + search.suffix) for each in head]
    if dataset == FEATURES:
        return [*first, *_tuned(search.recipe)]
    # The values that eight trials found for the other siblings; of the same loss on the other data set; the defaults.
    siblings = [f"{dataset}/{each}" for each in search.siblings if each not in (*head, search.recipe)]
    return [*first, *siblings, *(_tuned(search.recipe) if dataset != AROUND else ()), AROUND]


def _tuned(recipe: str) -> list[str]:
    """The values that a search has found on glyphs-small, if it has the loss."""
    return [name for name in (f"{AROUND}/{recipe}",) if name in list_recipes()]


def _print(line: str) -> None:
    print(line, flush=True)


def make_runs(
    known: Kept,
    loss: str,
    seeds: Sequence[int],
    out: Path,
    root: Path | None,
    condition: str = "",
    overrides: Mapping[str, object] = MappingProxyType({}),
) -> None:
    """Train the best recipe of a loss with each seed, or go on, and keep the test metrics.

    Raises:
        UserError: If a run failed, once the others are kept.
    """
    changed = LEAN | place_of(root) | {**overrides}
    folder = out / f"{loss} {condition}".rstrip().replace(" ", "-").replace("%", "")
    compared = compare([known.recipe(loss)], out=folder, seeds=seeds, overrides=changed, report=_print)
    (results,) = compared.results().values()
    known.keep_runs(loss, {metric: metric_values(results, metric) for metric in (*METRICS, TAR)}, condition)
    for cell in compared.cells():  # gigabytes that no table needs
        RunDirectory(cell.path).drop_weights(model=known.folder.name in (FEATURES, PHOTOGRAPHS))
    compared.check_finished()


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
