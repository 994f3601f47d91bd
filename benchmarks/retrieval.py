"""Searching galleries in a folder, next to Faiss alone in the same process.

    python benchmarks/retrieval.py                                # 1,000,000 × 128: exact and hnsw
    python benchmarks/retrieval.py --rows 100000 --kinds hnsw ivfpq --processor-time
    python benchmarks/retrieval.py --rows 10000000 --kinds        # memory and a query beside the read of the file
    python benchmarks/retrieval.py --lancedb                      # and in LanceDB, if it is installed
    python benchmarks/retrieval.py --smoke                        # seconds

Vectors are of unit length: a class's direction in 32 random dimensions, and noise in all, 50 rows a class. Queries are
further draws, another one each time. Faiss's graph is that of the gallery's index, with the same `ef_search`, and its
lists likewise, of whose findings it does not compute the distances again. The gallery is made in --folder, and removed.
On a machine that has other work, --processor-time counts the processor's time, which has no waiting for the disk.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import cycle
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import faiss
import numpy as np

from measure import command, print_header, print_row
from proxemic.data.rows import Rows
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.galleries.stores import GalleryInfo, create_store, open_store
from proxemic.retrieval.galleries.stores.database import IndexEntry
from proxemic.retrieval.galleries.stores.index import EFFORT, load
from proxemic.retrieval.galleries.stores.local import LocalStore

CHUNK, HIDDEN, K, MANY, LARGE = 65_536, 32, 10, 100, 5_000_000
Search = Callable[[np.ndarray], Any]


clock = time.perf_counter


def seconds(call: Callable[[], object]) -> float:
    """Return what a call takes."""
    start = clock()
    call()
    return clock() - start


def alone(address: str, queries: np.ndarray, processor_time: bool) -> tuple[int, float, float]:
    """Search in a process of its own: its anonymous memory in bytes, and seconds of a query and of reading the file."""
    global clock
    clock = time.process_time if processor_time else clock
    store = open_store(address)
    assert isinstance(store, LocalStore)
    (file,) = store.folder.glob("vectors-*")
    buffer = memoryview(bytearray(2**23))

    def read() -> None:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass

    ours, reading = [], []
    for query in queries[:9, None]:
        ours.append(seconds(lambda query=query: store.search(query, K)))
        reading.append(seconds(read))
    status = Path("/proc/self/status").read_text(encoding="ascii")
    anonymous = 1024 * int(status.split("RssAnon:")[1].split()[0])
    return anonymous, statistics.median(ours[1:]), statistics.median(reading[1:])


def measure_lancedb(rows: int, dim: int, draw: Callable[[int], np.ndarray], folder: Path) -> None:
    """Print what LanceDB takes for the same: its own exact search, with as many threads as it likes."""
    import lancedb  # pyright: ignore[reportMissingImports] - no dependency
    import pyarrow as pa

    def table(first: int, count: int) -> pa.Table:
        vectors = pa.FixedSizeListArray.from_arrays(pa.array(draw(count).reshape(-1)), dim)
        return pa.table({"path": [f"/{number}.jpg" for number in range(first, first + count)], "vector": vectors})

    place = folder / "lancedb"
    made = lancedb.connect(place).create_table("gallery", table(0, min(CHUNK, rows)))
    for first in range(CHUNK, rows, CHUNK):
        made.add(table(first, min(CHUNK, rows - first)))
    opening = statistics.median(seconds(lambda: lancedb.connect(place).open_table("gallery")) for _ in range(9))

    def search(queries: np.ndarray) -> None:
        made.search(queries).distance_type("dot").limit(K).to_arrow()

    one = statistics.median([seconds(lambda query=query: search(query)) for query in draw(20)][2:])
    many = statistics.median(seconds(lambda: search(draw(MANY))) for _ in range(3))
    parts = [table(first, 10_000) for first in range(rows, rows + 50_000, 10_000)]
    adding = statistics.median(seconds(lambda part=part: made.add(part)) for part in parts)
    print(f"LanceDB: opening {opening * 1e3:.1f} ms, a query {one * 1e3:.0f} ms", end=", ")
    print(f"{MANY} queries {many * 1e3:.0f} ms, adding 10,000 {adding:.3f} s")


def compare(ours: Search, faiss_alone: Search, queries: np.ndarray, rounds: int) -> tuple[float, float]:
    """Median seconds of both, by turns, each with queries of its own: the second would find them in the cache."""
    times: tuple[list[float], list[float]] = [], []
    batches = cycle(np.split(queries, len(queries) // MANY) if len(queries) > MANY * 4 else queries[:, None])
    for _ in range(rounds + 2):
        for call, taken in zip((ours, faiss_alone), times, strict=True):
            taken.append(seconds(lambda call=call: call(next(batches))))
    return statistics.median(times[0][2:]), statistics.median(times[1][2:])  # the first two warm up


def measure(rows: int, dim: int, kinds: Sequence[Any], folder: Path, *, with_lancedb: bool) -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((max(rows // 50, 1), HIDDEN), np.float32)
    basis = rng.standard_normal((HIDDEN, dim), np.float32) / HIDDEN**0.5

    def draw(count: int) -> np.ndarray:
        noise = rng.standard_normal((count, dim), np.float32)
        vectors = codes[rng.integers(len(codes), size=count)] @ basis + noise / 2
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def fill(first: int, count: int) -> None:
        for start in range(first, first + count, CHUNK):
            numbers = range(start, min(start + CHUNK, first + count))
            store.add(draw(len(numbers)), make_items(Rows.of(path=[f"/{number}.jpg" for number in numbers])))

    store = create_store(str(folder / "gallery"), GalleryInfo(dim))
    taken = seconds(lambda: fill(0, rows))
    queries, many = draw(MANY), draw(6 * MANY)
    print(f"{rows:,} × {dim}, k = {K}, {faiss.omp_get_max_threads()} threads of Faiss")
    print(f"adding all, drawn meanwhile: {taken:.1f} s")
    opening = statistics.median(seconds(lambda: open_store(store.address)) for _ in range(9))
    store = open_store(store.address)
    first = seconds(lambda: store.search(queries[:1], K))
    print(f"opening: {opening * 1e3:.1f} ms, and the first query: {first * 1e3:.1f} ms")
    assert isinstance(store, LocalStore)
    vectors = store._now().arrays.vectors
    ours, bare = compare(lambda part: store.search(part, K), lambda part: vectors @ part[0], queries, 30)
    print(f"a query: {ours * 1e3:.1f} ms, a bare product: {bare * 1e3:.1f} ms, ratio {ours / bare:.2f}\n")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        held, ours, read = pool.submit(alone, store.address, queries, clock is time.process_time).result()
    print(f"a process that searches has {held / 1e6:.0f} MB of anonymous memory", end="; ")
    print(f"a query: {ours * 1e3:.1f} ms, reading the file: {read * 1e3:.1f} ms, ratio {ours / read:.2f}\n")
    if rows > LARGE:
        return
    flat = faiss.IndexFlatIP(dim)
    for some, _ in store.iterate(CHUNK):
        flat.add(some)
    right = flat.search(many, K)[1]
    print_header("search", "queries", "ms", "Faiss alone, ms", "ratio", "recall@10")

    def row(name: str, faiss_alone: Search, rounds: int) -> None:
        found = store.search(many, K).ids
        recall = np.mean([len({*one} & {*other}) / K for one, other in zip(found, right, strict=True)])
        for asked, count, times in ((queries, 1, rounds), (many, MANY, max(rounds // 20, 5))):
            ours, alone = compare(lambda part: store.search(part, K), faiss_alone, asked, times)
            print_row(name, count, f"{ours * 1e3:.3f}", f"{alone * 1e3:.3f}", f"{ours / alone:.2f}", f"{recall:.4f}")

    row("exact", lambda part: flat.search(part, K), 30)
    del flat
    notes = []
    for kind in kinds:
        taken = seconds(lambda kind=kind: store.build_index(kind))
        notes.append(f"{kind}: built in {taken:.1f} s, {store.index}")
        if kind == "hnsw":
            graph = faiss.IndexHNSWFlat(dim, store.index["m"])
            graph.hnsw.efConstruction = store.index["ef_construction"]
            bare = seconds(lambda graph=graph: graph.add(np.ascontiguousarray(vectors)))
            notes.append(f"{kind}: Faiss alone builds it in {bare:.1f} s, ratio {taken / bare:.2f}")
            del graph
        notes.append(f"{kind}: first search {seconds(lambda: store.search(queries[:1], K)):.2f} s")
        state = store._now().state
        assert state.faiss is not None
        entry = IndexEntry(**state.faiss)
        index, effort = load(entry).index, entry.settings[EFFORT[kind]]
        of_ivf, engine = kind == "ivfpq", cast("Any", faiss)  # whose stubs lack much
        made = engine.SearchParametersIVF(nprobe=effort) if of_ivf else engine.SearchParametersHNSW(efSearch=effort)
        row(kind, lambda part, index=index, made=made: index.search(part, K, params=made), 200)
    taken = []
    for first in range(rows, rows + 50_000, 10_000):
        part, paths = draw(10_000), [f"/{number}.jpg" for number in range(first, first + 10_000)]
        items = make_items(Rows.of(path=paths))
        taken.append(seconds(lambda part=part, items=items: store.add(part, items)))
    print("", *notes, f"adding 10,000 more: {statistics.median(taken):.3f} s, the median of {len(taken)}", sep="\n")
    if with_lancedb:
        measure_lancedb(rows, dim, draw, folder)


def main(
    *,
    rows: int = 1_000_000,
    dim: int = 128,
    kinds: Sequence[str] = ("hnsw",),
    folder: Path | None = None,
    processor_time: bool = False,
    lancedb: bool = False,
    smoke: bool = False,
) -> None:
    """Make a gallery, and measure."""
    global clock
    clock = time.process_time if processor_time else clock
    rows, dim, kinds = (4000, 16, ("hnsw", "ivfpq")) if smoke else (rows, dim, kinds)
    with TemporaryDirectory(dir=folder) as made:
        measure(rows, dim, kinds, Path(made), with_lancedb=lancedb)


if __name__ == "__main__":
    command(main)
