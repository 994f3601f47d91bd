"""The actions of ``proxemic datasets``."""

from json import dumps
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from proxemic.errors import Interrupted, UserError

if TYPE_CHECKING:
    from proxemic.data.benchmarks import Benchmark
    from proxemic.data.sources import DatasetReport

_NOTE = """\
Sizes are images of classes. A download is checked against its MD5. In-Shop publishes none: its archive's own checksums
and the counts are checked. To read about each data set, and to get what must be fetched by hand:
"""


def list(*, root: Path | None = None) -> None:
    """List the data sets, with their sizes and how to get them.

    Args:
        root (DIR): Also show which data sets are in DIR, or in DIR/NAME.
    """
    from proxemic.data.benchmarks import list_benchmarks
    from proxemic.tables import Table

    benchmarks = list_benchmarks(root)
    rows = []
    for benchmark in benchmarks:
        facts, counts = benchmark.facts, benchmark.facts.counts
        train, test = (f"{counts[f'{part} images']:,} of {counts[f'{part} classes']:,}" for part in ("train", "test"))
        origin = "by hand" if facts.by_hand else "download"
        rows.append([facts.key, facts.title, train, test, origin, benchmark.state])
    rows.append(["glyphs", "Glyphs", "half of the characters", "the others", "rendered here", None])
    rows.append(["glyph-letters", "GlyphLetters", "half of the letters", "the others", "rendered here", None])
    columns = ["name", "data set", "train", "test", "origin", *([] if root is None else [f"in {root}"])]
    print(Table(columns, [row[: len(columns)] for row in rows], align="llllll"[: len(columns)]).text())
    print(_NOTE, end="")
    for benchmark in benchmarks:
        print(f"  {benchmark.facts.key}: {benchmark.facts.page}")


def prepare(name: str, /, *, root: Path | None = None, url: str | None = None) -> None:
    """Download a data set, check, unpack and count it; an interrupted download continues.

    Args:
        name: The data set, as proxemic datasets list names it.
        root (DIR): The folder for the data set, which may hold its archives already.
        url: Fetch it from this mirror: a folder with the original files, or the only file.
    """
    from proxemic.data import GlyphLetters, Glyphs
    from proxemic.data.benchmarks import prepare

    if rendered := {"glyphs": Glyphs, "glyph-letters": GlyphLetters}.get(name):
        print(" ".join(rendered(cache_dir=root).load().notes))
        print(f"Nothing to fetch: find a recipe with proxemic recipes list, whose names begin with {name}.")
        return
    source = _benchmark(name, root, "prepare")
    try:
        official = prepare(source, url)
    except KeyboardInterrupt:
        raise Interrupted("Stopped: what was downloaded is kept, and the same command continues.") from None
    for count, number in official.counts.items():
        print(f"{count:15} {number:>9,}")
    print(f"{source.facts.title} is whole, in {root}. Find a recipe for it with proxemic recipes list, and train with")
    print(f"  proxemic train --recipe NAME --data.root {root}")


def check(path: str, /, *, root: Path | None = None, decode: bool = False, json: bool = False) -> None:
    """Count images and classes; find missing or unreadable files, lone images and exact duplicates.

    The exit code is 1 if images of a folder or a table cannot be read; the report names them.

    Args:
        path (PATH|NAME): A folder of class folders, a CSV or Parquet table, or a data set's name.
        root (DIR): The folder of the data set NAME.
        decode: Also open every image of the data set NAME.
        json: Print JSON.
    """
    from proxemic.data.benchmarks import BENCHMARKS
    from proxemic.data.sources import check

    if root is not None or (path in BENCHMARKS and not Path(path).exists()):
        _check_benchmark(path, root, decode, json)
        return
    report = check(Path(path))
    print(dumps(report.as_dict(), indent=2) if json else "\n".join([*report.lines(), *_split_lines(report)]))
    if report.unreadable:
        raise SystemExit(1)


_HELD_OUT = 0.25  # fraction for the test, and of the rest for validation, in the recipes own, own-*


def _split_lines(report: "DatasetReport") -> tuple[str, ...]:
    """Describe how training will split the classes, and warn if there are too few for intervals."""
    from proxemic.cli.show import emphasized
    from proxemic.metrics import FEWEST_CLASSES
    from proxemic.tables import counted

    given = {name: classes for name, (_, classes) in report.splits.items()}
    test = given.get("test", ceil(_HELD_OUT * report.classes - 0.5))
    validation = given.get("validation", ceil(_HELD_OUT * given.get("train", report.classes - test) - 0.5))
    split = (
        f"training will test on {counted(test, 'class', 'classes')} and select the epoch on "
        f"{counted(validation, 'validation class', 'validation classes')} (--data.test_fraction, "
        "--data.validation_fraction)"
    )
    warning = (
        f"WARNING: with fewer than {FEWEST_CLASSES} test classes, results have no intervals and depend on which "
        "classes they are: add classes, or raise --data.test_fraction"
    )
    return (split, emphasized(warning)) if test < FEWEST_CLASSES else (split,)


def _check_benchmark(name: str, root: Path | None, decode: bool, as_json: bool) -> None:
    from proxemic.data.benchmarks import check_benchmark
    from proxemic.tables import Table

    source = _benchmark(name, root, "check")
    report = check_benchmark(source, decode=decode)
    if as_json:
        print(dumps({"name": name, "root": str(root), **report.as_dict()}, indent=2))
    else:
        counts = [
            [count, f"{report.expected.get(count, number):,}", f"{number:,}"] for count, number in report.found.items()
        ]
        print(Table([source.facts.title, "expected", "found"], counts).text())
    if report.problem is not None:
        raise UserError(report.problem)
    if not as_json:
        print("Every image is there" + (" and can be read." if decode else "; --decode would open each."))


def _benchmark(name: str, root: Path | None, action: str) -> "Benchmark":
    from proxemic.data.benchmarks import BENCHMARKS

    if name not in BENCHMARKS:
        known = ", ".join([*BENCHMARKS, "glyphs", "glyph-letters"])
        raise UserError(f"{name} is not a known data set: give one of {known}.")
    if root is None:
        command = f"proxemic datasets {action} {name} --root data/{name}"
        raise UserError(f"--root is missing: give the folder of {name}, as {command}.")
    return BENCHMARKS[name](root)
