"""Measure searches of a plain folder by the command, as a user runs it: the first, and later ones.

    python benchmarks/searches.py photos                  # the first 1,424 pictures of a folder, by name
    python benchmarks/searches.py photos --many 100000    # and second searches among so many small ones
    python benchmarks/searches.py --smoke                 # seconds

The first search embeds all pictures, with an empty cache; a known query is among the folder's pictures, or was asked
before; a new one must be embedded. Seconds are those of all cores in user and system mode, the median of three. The
functions and files of proxemic that a second search enters are counted by `sys.setprofile`, without class bodies and
comprehensions. Vectors of `--many` pictures are random, put into the cache by the program's own store.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from measure import command, print_header, print_row, write_photographs
from proxemic.data.pixels import FilePixels
from proxemic.retrieval import Embedder
from proxemic.runs.kept import PictureKeys
from proxemic.runs.pretrained import DEFAULT_MODEL

ROUNDS, PICTURES, AT_ONCE = 3, 1424, 8192
COUNTED = """
import sys

entered = set()

def note(frame, event, _):
    code = frame.f_code
    if event == "call" and "/proxemic/" in code.co_filename and code.co_flags & 1 and code.co_name[0] != "<":
        entered.add((code.co_filename, code.co_qualname))

from proxemic.cli import main

sys.setprofile(note)
main(sys.argv[1:])
sys.setprofile(None)
print(len(entered), len({file for file, _ in entered}), len(sys.modules), file=sys.stderr)
"""


def searched(folder: Path, query: Path, code: str = "from proxemic.cli import main; main()") -> tuple[float, str]:
    """Search by the command in a process of its own; return its CPU seconds and its last line."""
    words = [sys.executable, "-c", code, "search", str(folder), str(query), "--model", DEFAULT_MODEL]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = os.times()
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=True)
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return seconds, done.stderr.splitlines()[-1]


def median_of(folder: Path, queries: Sequence[Path], *, emptied: Path | None = None) -> float:
    """Return the median seconds of searches for several queries; the cache is emptied before each, if it is given."""
    seconds = []
    for query in queries:
        for name in ("vectors", "networks", "heads") if emptied else ():
            shutil.rmtree(Path(emptied or "") / name, ignore_errors=True)
        seconds.append(searched(folder, query)[0])
    return statistics.median(seconds)


def write_many(folder: Path, count: int) -> None:
    """Write small pictures as links to a few files, a thousand in each folder."""
    for number in range(count):
        path = folder / f"{number // 1000:04d}" / f"{number:06d}.png"
        if number % 1000 == 0:
            path.parent.mkdir(parents=True)
            pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(path)
        else:
            path.hardlink_to(path.parent / f"{number // 1000 * 1000:06d}.png")


def keep_vectors(folder: Path) -> None:
    """Put random vectors of all pictures into the cache."""
    pictures = FilePixels(sorted(folder.rglob("*.png")))
    embedder, keys, rng = Embedder.load(DEFAULT_MODEL), PictureKeys.of(pictures), np.random.default_rng(0)
    assert embedder.kept is not None
    for first in range(0, len(pictures), AT_ONCE):
        places = range(first, min(first + AT_ONCE, len(pictures)))
        embedder.kept.add(keys, places, rng.standard_normal((len(places), embedder.dim), np.float32), "random")


def main(photos: Path | None = None, *, pictures: int = PICTURES, many: int = 0, smoke: bool = False) -> None:
    """Measure searches of a folder, or of synthetic pictures without one, and print a table."""
    rounds = 1 if smoke else ROUNDS
    with tempfile.TemporaryDirectory() as temporary:
        folder, others, cache = (Path(temporary) / name for name in ("photos", "queries", "cache"))
        for path in (folder, others):
            path.mkdir()
        os.environ |= {"PROXEMIC_CACHE": str(cache), "PROXEMIC_CACHE_GB": "10"}
        if photos is None:
            given = write_photographs(folder, 40 if smoke else pictures, (300, 225))
            queries = write_photographs(others, 2 * rounds + 1, (299, 225))
        else:
            found = sorted(path for path in photos.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
            given = [Path(shutil.copy(path, folder / f"{number:06d}{path.suffix}"))
                     for number, path in enumerate(found[:pictures])]  # fmt: skip
            queries = [Path(shutil.copy(path, others)) for path in found[pictures : pictures + 2 * rounds + 1]]
        searched(folder, queries[-1])  # writes the pretrained network, and compiles
        print_header("search", "pictures", "CPU seconds")
        print_row("first", len(given), f"{median_of(folder, [given[0]] * rounds, emptied=cache):.2f}")
        print_row("second, known query", len(given), f"{median_of(folder, given[1 : 1 + rounds]):.2f}")
        print_row("second, new query", len(given), f"{median_of(folder, queries[:rounds]):.2f}")
        _, said = searched(folder, queries[rounds], COUNTED)
        functions, files, modules = map(int, said.split())
        if many:
            heap = Path(temporary) / "many"
            write_many(heap, many)
            keep_vectors(heap)
            searched(heap, queries[0])  # learns the head
            print_row("second, known query", many, f"{median_of(heap, queries[:rounds]):.2f}")
            print_row("second, new query", many, f"{median_of(heap, queries[rounds + 1 :][:rounds]):.2f}")
        print(f"\nA second search with a new query enters {functions} functions in {files} files; {modules} modules.")


if __name__ == "__main__":
    command(main)
