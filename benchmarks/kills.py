"""Kill processes at random moments while they change a gallery, and check that it has the old or the new state.

    python benchmarks/kills.py                # 30 moments of each change
    python benchmarks/kills.py --moments 3    # seconds

Each time, a process changes a copy of the same gallery and is killed (SIGKILL). Then all rows and vectors are compared,
`verify` must find no problem, a search must return the right neighbours, and repeating the change must give the same
gallery as without a kill. Otherwise the script fails. A change that ends before it is killed is repeated.
"""

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

from measure import command, print_header, print_row
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.galleries.stores.local import LocalStore
from proxemic.retrieval.galleries.stores.store import GalleryInfo

ROWS, MORE, DIM = 2000, 3000, 16
INFO = GalleryInfo(DIM, "euclidean")


def fill(store: LocalStore, rows: int) -> None:
    """Add rows whose content follows from their number."""
    numbers = range(len(store), len(store) + rows)
    vectors = np.random.default_rng(numbers.start).standard_normal((rows, DIM), np.float32)
    names, labels = [f"/{number}.jpg" for number in numbers], [f"class {number % 3}" for number in numbers]
    store.add(vectors, make_items(Rows.of(path=names, label=labels)))


CHANGES: dict[str, Callable[[str], object]] = {
    "create": lambda folder: LocalStore.create(folder, INFO),
    "add": lambda folder: fill(LocalStore.open(folder), MORE),  # appends to their files
    "remove": lambda folder: LocalStore.open(folder).remove(
        {"label": ["class 0", "class 1"]}
    ),  # and writes the files again
    "index": lambda folder: LocalStore.open(folder).build_index("hnsw", ef_search=64),
}


def work(name: str, folder: Path, connection: Connection) -> None:
    """Change a gallery, in its own process."""
    connection.send("begins")
    CHANGES[name](str(folder))
    connection.send("ended")


def start(name: str, folder: Path) -> tuple[multiprocessing.Process, Connection]:
    """Start a process, and return when it is about to change the gallery."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # A process forked from this one could wait for threads of OpenMP that it does not have.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["faiss", "proxemic.retrieval.galleries.stores.local"])
    process = context.Process(target=work, args=(name, folder, sender))
    process.start()
    sender.close()
    receiver.recv()
    return process, receiver  # pyright: ignore[reportReturnType] - of another context


def content(folder: Path) -> object:
    """Return the content of a gallery, or None if there is none."""
    try:
        store = LocalStore.open(str(folder))
    except UserError as error:
        if "holds no gallery" not in str(error) and folder.exists():
            raise
        return None
    problems = store.verify()
    assert not problems, problems
    parts = [*store.iterate()]
    rows = [row for _, table in parts for row in table.to_pylist()]
    vectors = np.concatenate([np.empty((0, DIM), np.float32), *(part for part, _ in parts)])
    if rows:
        nearest = store.search(vectors[:3] + np.float32(0.01), 1).ids[:, 0]
        assert nearest.tolist() == [row["id"] for row in rows[:3]], nearest
    return store.index["kind"], rows, vectors.tobytes()


def measure(name: str, moments: int, folder: Path) -> Counter[str]:
    """Kill a change at random moments, and count the states of the gallery."""
    gallery, base = folder / "gallery", folder / "base"
    fill(LocalStore.create(str(base), INFO), ROWS)

    def again() -> None:
        shutil.rmtree(gallery, ignore_errors=True)
        if name != "create":
            shutil.copytree(base, gallery)

    times = []
    before = after = None
    for _ in range(3):
        again()
        before = content(gallery)
        process, receiver = start(name, gallery)
        began = time.perf_counter()
        receiver.recv()
        times.append(time.perf_counter() - began)
        process.join()
        after = content(gallery)
    assert before != after
    longest = sorted(times)[1]
    found: Counter[str] = Counter(milliseconds=round(longest * 1e3))
    rng = random.Random(0)
    while found["killed"] < moments:
        again()
        process, _ = start(name, gallery)
        time.sleep(rng.uniform(0, longest))
        process.kill()
        process.join()
        if process.exitcode == 0:
            continue
        found["killed"] += 1
        now = content(gallery)
        found["old" if now == before else "new" if now == after else "between"] += 1
        if now == before:
            CHANGES[name](str(gallery))
            found["made again"] += content(gallery) == after
    return found


def main(*, moments: int = 30) -> None:
    """Print a row for each change."""
    print_header("change", "takes, ms", "killed", "the old gallery", "made again", "the new one", "between")
    wrong = 0
    for name in CHANGES:
        with TemporaryDirectory() as folder:
            found = measure(name, moments, Path(folder))
        print_row(name, *(found[key] for key in ("milliseconds", "killed", "old", "made again", "new", "between")))
        wrong += found["between"] + found["old"] - found["made again"]
    if wrong:
        raise SystemExit(f"{wrong} galleries were left between, or could not be changed again")


if __name__ == "__main__":
    command(main)
