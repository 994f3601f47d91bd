"""``proxemic datasets prepare``."""

from pathlib import Path

from proxemic.cli.datasets.catalogue import GLYPHS, find_benchmark
from proxemic.data import Glyphs
from proxemic.data.benchmarks import prepare
from proxemic.errors import Interrupted

__all__ = ["prepare_named"]


def prepare_named(name: str, root: Path | None, url: str | None) -> None:
    """Prepare a data set and say what comes next."""
    if name == GLYPHS:
        print(" ".join(Glyphs(cache_dir=root).load().notes))
        print("Nothing to fetch: train with proxemic train --recipe glyphs.")
        return
    source = find_benchmark(name, root, "proxemic datasets prepare")
    try:
        official = prepare(source, url)
    except KeyboardInterrupt:
        raise Interrupted("Stopped: what has arrived is kept, and the same command goes on from there.") from None
    for count, number in official.counts.items():
        print(f"{count:15} {number:>9,}")
    print(f"{source.facts.title} is whole, in {root}. Find a recipe for it with proxemic recipes list, and train with")
    print(f"  proxemic train --recipe NAME --data.root {root}")
