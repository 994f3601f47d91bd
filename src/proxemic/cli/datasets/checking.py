"""``proxemic datasets check``."""

import json
from pathlib import Path

from proxemic.cli.datasets.catalogue import find_benchmark
from proxemic.cli.show import format_table
from proxemic.data import FilePixels, check
from proxemic.data.benchmarks import Official
from proxemic.data.sources.listing import unreadable
from proxemic.data.sources.tables import Row
from proxemic.files import readable

__all__ = ["check_named", "check_own"]


def check_own(path: Path, as_json: bool) -> None:
    """Report what is in a folder or a table.

    Raises:
        SystemExit: of code 1, after the report, where an image cannot be read.
    """
    report = check(path)
    print(json.dumps(report.as_dict(), indent=2) if as_json else "\n".join(report.lines()))
    if report.unreadable:
        raise SystemExit(1)


def check_named(name: str, root: Path | None, decode: bool, as_json: bool) -> None:
    """Print the counts of a data set beside those it should have.

    Raises:
        ValueError: they differ, or an image is missing or, where each is decoded, unreadable.
    """
    source = find_benchmark(name, root, "proxemic datasets check")
    official = source.read()
    failures = _unreadable(official) if decode else {}
    expected, found = source.facts.counts, official.counts
    if as_json:
        told = {"expected": dict(expected), "found": found, "flaws": official.flaws, "unreadable": failures}
        print(json.dumps({"name": name, "root": str(root), **told}, indent=2))
    else:
        rows = [[count, f"{expected.get(count, number):,}", f"{number:,}"] for count, number in found.items()]
        print(format_table([source.facts.title, "expected", "found"], rows))
    source.judge(official)
    if failures:
        path, reason = next(iter(failures.items()))
        raise ValueError(
            f"{root} has {len(failures):,} images that cannot be read, such as {path} ({reason}): delete what is "
            f"damaged and run {source.command}."
        )
    if not as_json:
        print("Every image is there" + (" and can be read." if decode else "; --decode would open each."))


def _unreadable(official: Official) -> dict[str, str]:
    paths = [path for part in (official.train, official.test) for path in _paths(part.pixels)]
    return {readable(path): reason for path, reason in unreadable([Row(path, "") for path in paths]).items()}


def _paths(pixels: object) -> tuple[Path, ...]:
    return pixels.paths if isinstance(pixels, FilePixels) else ()  # others were decoded as they were read
