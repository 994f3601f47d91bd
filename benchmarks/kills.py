"""Killing processes that change a gallery in a folder, at random moments: it is as before or as it was to be.

    python benchmarks/kills.py                # 30 moments of each change
    python benchmarks/kills.py --moments 3    # seconds

Each time a process changes a copy of the same gallery and is killed (SIGKILL). The rows are then compared one by one,
with their vectors, `verify` must find nothing, a search must give the right neighbours, and the change, made again,
must give what it gives undisturbed. Otherwise the script fails. A change that ends before its moment is made again.
"""

import argparse
import multiprocessing
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.retrieval.items import make_items
from proxemic.retrieval.stores.local import LocalStore
from proxemic.retrieval.stores.store import GalleryInfo

ROWS, MORE, DIM = 2000, 3000, 16
INFO = GalleryInfo(DIM, "euclidean")


def fill(store: LocalStore, rows: int) -> None:
    """Add rows that follow from their number."""
    first = len(store)
    names = [f"/{number}.jpg" for number in range(first, first + rows)]
    vectors = np.random.default_rng(first).standard_normal((rows, DIM), np.float32)
    store.add(
        vectors, make_items(Rows.of(path=names, label=[f"class {number % 3}" for number in range(first, first + rows)]))
    )


def create(folder: Path) -> None:
    """Make a gallery where there is none."""
    LocalStore.create(str(folder), INFO)


def add(folder: Path) -> None:
    """Add rows, with which those before are written again, as they are few."""
    fill(LocalStore.open(str(folder)), MORE)


def remove(folder: Path) -> None:
    """Remove two thirds, so that the others are written again."""
    LocalStore.open(str(folder)).remove({"label": ["class 0", "class 1"]})


def index(folder: Path) -> None:
    """Build a graph."""
    LocalStore.open(str(folder)).build_index("hnsw", ef_search=64)


CHANGES: dict[str, Callable[[Path], None]] = {"create": create, "add": add, "remove": remove, "index": index}


def work(name: str, folder: Path, connection: Connection) -> None:
    """In a process of its own."""
    connection.send("begins")
    CHANGES[name](folder)
    connection.send("ended")


def start(name: str, folder: Path) -> tuple[multiprocessing.Process, Connection]:
    """A process that is about to begin."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(  # which need not import
        target=work, args=(name, folder, sender)
    )
    process.start()
    sender.close()
    receiver.recv()
    return process, receiver  # pyright: ignore[reportReturnType] - of another context


def content(folder: Path) -> object:
    """All that a gallery holds, or None where there is none."""
    try:
        store = LocalStore.open(str(folder))
    except UserError as error:
        if "holds no gallery" not in str(error):
            raise
        return None
    problems = store.verify()
    assert not problems, problems
    rows, vectors = [], [np.empty((0, DIM), np.float32)]
    for part, table in store.iterate():
        rows += table.to_pylist()
        vectors.append(part)
    every = np.concatenate(vectors)
    if rows:
        nearest = store.search(every[:3] + np.float32(0.01), 1).ids[:, 0]
        assert nearest.tolist() == [row["id"] for row in rows[:3]], nearest
    return store.index["kind"], rows, every.tobytes()


def measure(name: str, moments: int, folder: Path) -> Counter[str]:
    """Kill at that many moments, and count what is found."""
    work_here, base = folder / "gallery", folder / "base"
    if not base.exists():
        fill(LocalStore.create(str(base), INFO), ROWS)

    def again() -> None:
        shutil.rmtree(work_here, ignore_errors=True)
        if name != "create":
            shutil.copytree(base, work_here)

    times = []
    before = after = None
    for _ in range(3):
        again()
        before = content(work_here)
        process, receiver = start(name, work_here)
        began = time.perf_counter()
        receiver.recv()
        times.append(time.perf_counter() - began)
        process.join()
        after = content(work_here)
    assert before != after
    longest = sorted(times)[1]
    found: Counter[str] = Counter(milliseconds=round(longest * 1e3))
    rng = random.Random(0)
    while found["killed"] < moments:
        again()
        process, receiver = start(name, work_here)
        time.sleep(rng.uniform(0, longest))
        process.kill()
        process.join()
        if process.exitcode == 0:
            continue
        found["killed"] += 1
        now = content(work_here)
        found["old" if now == before else "new" if now == after else "between"] += 1
        if now == before:
            CHANGES[name](work_here)
            found["made again"] += content(work_here) == after
    return found


def main() -> None:
    """Read the options, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=30, help="of each change")
    arguments = parser.parse_args()
    print("| change | takes, ms | killed | the old gallery | made again | the new one | between |")
    print("|---|---|---|---|---|---|---|")
    wrong = 0
    for name in CHANGES:
        with TemporaryDirectory() as folder:
            found = measure(name, arguments.moments, Path(folder))
        names = ("milliseconds", "killed", "old", "made again", "new", "between")
        print(f"| {name} | " + " | ".join(str(found[each]) for each in names) + " |", flush=True)
        wrong += found["between"] + found["old"] - found["made again"]
    if wrong:
        raise SystemExit(f"{wrong} galleries were left between, or could not be changed again")


if __name__ == "__main__":
    main()
