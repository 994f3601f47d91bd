"""Let two processes change a gallery at the same time, and check the result of every round.

    python benchmarks/writers.py postgresql://me@host/database/race          # 200 rounds of each pair of changes
    python benchmarks/writers.py milvus://host:19530/race --rounds 10
    python benchmarks/writers.py race                                        # in a new folder

In each round, both processes begin within 20 ms. The rows must then be those of one change after the other, in either
order; at the end, all ids must differ and `verify` must find no problem. Otherwise the script fails. Milvus has no
transactions, so only additions are tried there. The script creates the gallery, and deletes it at the end.
"""

import csv
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from measure import command, print_header, print_row
from proxemic.errors import UserError
from proxemic.retrieval import Gallery
from proxemic.retrieval.curation import apply_decisions, list_decisions
from proxemic.retrieval.curation.decisions import decide
from proxemic.retrieval.improving.improved_gallery import relabel

ROWS, SHARED, DIM = 40, 20, 16
PAIRS = ("add beside add", "relabel beside remove", "apply beside relabel")


def paths(pair: str, number: int, rows: int = ROWS) -> list[str]:
    """Name the rows of a round."""
    return [f"/{pair}/{number}/{row}.jpg" for row in range(rows)]


def fill(gallery: Gallery, pair: str, number: int, which: slice, label: str | None) -> None:
    """Add rows of a round, whose vectors follow from their place."""
    named = paths(pair, number, 2 * ROWS)[which]
    vectors = np.random.default_rng(number).standard_normal((2 * ROWS, DIM), np.float32)[which]
    gallery.add_vectors(vectors, named, [label] * len(named))


def add(gallery: Gallery, pair: str, number: int, writer: int, table: Path) -> None:
    """Add rows, of which the other process adds some, too."""
    begin = writer * (ROWS - SHARED)
    fill(gallery, pair, number, slice(begin, begin + ROWS), f"writer {writer}")


def change_labels(gallery: Gallery, pair: str, number: int, writer: int, table: Path) -> None:
    """Relabel all rows by a table, which is refused if a row is not there."""
    try:
        relabel(gallery, table)
    except UserError as error:
        if "add it first" not in str(error):
            raise


def remove(gallery: Gallery, pair: str, number: int, writer: int, table: Path) -> None:
    """Remove the rows that still have the old label."""
    gallery.remove({"label": "old"})


def apply(gallery: Gallery, pair: str, number: int, writer: int, table: Path) -> None:
    """Apply the decisions about the rows."""
    apply_decisions(gallery)


CHANGES: dict[str, tuple[Callable[[Gallery, str, int, int, Path], None], ...]] = dict(
    zip(PAIRS, ((add, add), (change_labels, remove), (apply, change_labels)), strict=True)
)


def work(address: str, pair: str, rounds: int, writer: int, barrier: Barrier, table: Path) -> None:
    """Make one of the changes of a pair in every round, in its own process."""
    gallery = Gallery.open(address)
    for number in range(rounds):
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([("path", "label"), *((path, "new") for path in paths(pair, number))])
        barrier.wait()
        time.sleep(random.uniform(0, 0.02))  # so that each part of one change is met by each part of the other
        CHANGES[pair][writer](gallery, pair, number, writer, table)
        barrier.wait()
    gallery.close()


def outcome(gallery: Gallery, pair: str, number: int) -> str:
    """Say which order the rows of a round are those of."""
    named = paths(pair, number, 2 * ROWS)
    rows = gallery.store.items(gallery.store.next_ids(count=4 * ROWS, where={"path": named})).to_pylist()
    labels = Counter(row["label"] for row in rows)
    states = Counter(item.state for item in list_decisions(gallery) if item.path in named) if pair == PAIRS[2] else {}
    if pair == PAIRS[0]:
        first = sorted(row["label"] for row in rows if row["path"] in named[ROWS - SHARED : ROWS])
        is_whole = sorted(row["path"] for row in rows) == sorted(named[: 2 * ROWS - SHARED])
        return "first, second" if is_whole and first[0] == first[-1] else "neither"
    if pair == PAIRS[1]:
        return (
            {ROWS: "first, second", 0: "second, first"}.get(len(rows), "neither") if labels["old"] == 0 else "neither"
        )
    half = ROWS // 2
    orders = {
        "first, second": ({"taken": half}, {"applied": ROWS}),
        "second, first": ({"new": ROWS}, {"outdated": ROWS}),
    }
    return next((order for order, expected in orders.items() if expected == (labels, states)), "neither")


def measure(address: str, pair: str, rounds: int, folder: Path) -> Counter[str]:
    """Let both processes make their changes in each round, and count the outcomes."""
    gallery, found = Gallery.open(address), Counter[str]()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["proxemic.retrieval.curation"])
    barrier = context.Barrier(3)
    writers = [
        context.Process(target=work, args=(address, pair, rounds, writer, barrier, folder / f"{writer}.csv"))
        for writer in range(2)
    ]
    for process in writers:
        process.start()
    for number in range(rounds):
        if pair != PAIRS[0]:
            fill(gallery, pair, number, slice(ROWS), "old")
        if pair == PAIRS[2]:
            for row, path in enumerate(paths(pair, number)):
                action, label = ("remove", None) if row % 2 else ("relabel", "taken")
                decide(gallery.store, path, "a session", action, "old", label)
        barrier.wait()
        barrier.wait(60)
        found[outcome(gallery, pair, number)] += 1
    for process in writers:
        process.join()
    gallery.close()
    return found


def main(address: str = "postgresql:///postgres/race", *, rounds: int = 200) -> None:
    """Print a row for each pair of changes, and count the rows at the end."""
    Gallery.create(address, dim=DIM).close()
    wrong = 0
    try:
        print_header("changes", "rounds", "one after the other", "neither")
        for pair in PAIRS[:1] if address.startswith("milvus") else PAIRS:
            with TemporaryDirectory() as folder:
                found = measure(address, pair, rounds, Path(folder))
            print_row(pair, rounds, found["first, second"] + found["second, first"], found["neither"])
            wrong += found["neither"]
        gallery = Gallery.open(address)
        rows = [row for _, items in gallery.store.iterate() for row in items.to_pylist()]
        added = sum(row["path"].startswith(f"/{PAIRS[0]}/") for row in rows)
        ids = len({row["id"] for row in rows})
        problems = gallery.verify()
        gallery.close()
    finally:
        Gallery.delete(address)
    whole = rounds * (2 * ROWS - SHARED)
    print(
        f"\n{added:,} of {whole:,} added rows, {len(rows):,} rows in all with {ids:,} ids; {problems or 'it is sound'}"
    )
    if wrong or added != whole or ids != len(rows) or problems:
        raise SystemExit("the rows are not those of one change after the other")


if __name__ == "__main__":
    command(main)
