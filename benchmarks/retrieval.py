"""Searching galleries in a folder, next to Faiss alone in the same process.

    python benchmarks/retrieval.py                                # 1,000,000 × 128: exact and hnsw
    python benchmarks/retrieval.py --rows 100000 --kinds hnsw ivfpq
    python benchmarks/retrieval.py --smoke                        # seconds

Vectors are of unit length: a class's direction in 32 random dimensions, and noise in all, 50 rows a class. Queries are
further draws, another one each time. Faiss's graph is that of the gallery's index, with the same `ef_search`, and its
lists likewise, of whose findings it does not compute the distances again.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import faiss
import numpy as np

from proxemic.data.rows import Rows
from proxemic.retrieval.items import make_items
from proxemic.retrieval.stores import GalleryInfo, Store, create_store, open_store
from proxemic.retrieval.stores.local.directory import LocalStore
from proxemic.retrieval.stores.local.index import EFFORT, load

CHUNK, HIDDEN, K, MANY = 65_536, 32, 10, 256


def draw(rng: np.random.Generator, codes: np.ndarray, basis: np.ndarray, rows: int) -> np.ndarray:
    """Rows of random classes."""
    noise = rng.standard_normal((rows, basis.shape[1]), np.float32)
    vectors = codes[rng.integers(len(codes), size=rows)] @ basis + noise / 2
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def seconds(call: Callable[[], object]) -> float:
    """What a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def compare(
    ours: Callable[[np.ndarray], object], faiss_alone: Callable[[np.ndarray], object], queries: np.ndarray, rounds: int
) -> tuple[float, float]:
    """Median seconds of both, by turns, each with queries of its own: the second would find them in the cache."""
    times: tuple[list[float], list[float]] = [], []
    batches = cycle(np.split(queries, len(queries) // MANY) if len(queries) > MANY * 4 else queries[:, None])
    for number in range(-2, rounds):
        for call, found in zip((ours, faiss_alone), times, strict=True):
            taken = seconds(lambda call=call: call(next(batches)))
            if number >= 0:
                found.append(taken)
    return statistics.median(times[0]), statistics.median(times[1])


def recall(found: np.ndarray, right: np.ndarray) -> float:
    """The share of the right ids that were found."""
    return float(np.mean([len({*one} & {*other}) / len(other) for one, other in zip(found, right, strict=True)]))


def fill(store: Store, rows: int, vectors: Callable[[int], np.ndarray], first: int = 0) -> None:
    """Add rows, as `Gallery.add_vectors` does."""
    for start in range(first, first + rows, CHUNK):
        count = min(CHUNK, first + rows - start)
        store.add(
            vectors(count), make_items(Rows.of(path=[f"/{number}.jpg" for number in range(start, start + count)]))
        )


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Print the table."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((max(arguments.rows // 50, 1), HIDDEN), np.float32)
    basis = rng.standard_normal((HIDDEN, arguments.dim), np.float32) / HIDDEN**0.5
    store = create_store(str(folder / "gallery"), GalleryInfo(arguments.dim))
    taken = seconds(lambda: fill(store, arguments.rows, lambda count: draw(rng, codes, basis, count)))
    queries, many = (draw(rng, codes, basis, count) for count in (MANY, 6 * MANY))
    print(f"{arguments.rows:,} × {arguments.dim}, k = {K}, {faiss.omp_get_max_threads()} threads of Faiss")
    print(f"adding all, drawn meanwhile: {taken:.1f} s")
    opened: list[Any] = []
    print(f"opening: {seconds(lambda: opened.append(open_store(store.address))) * 1e3:.1f} ms")
    (store,) = opened
    assert isinstance(store, LocalStore)
    flat = faiss.IndexFlatIP(arguments.dim)
    for vectors, _ in store.iterate(CHUNK):
        flat.add(vectors)
    right = flat.search(many, K)[1]
    print("\n| search | queries | ms | Faiss alone, ms | ratio | recall@10 |\n|---|---|---|---|---|---|")

    def row(name: str, faiss_alone: Callable[[np.ndarray], object], rounds: int) -> None:
        share = recall(store.search(many, K).ids, right)
        for asked, count, times in ((queries, 1, rounds), (many, MANY, max(rounds // 20, 5))):
            ours, alone = compare(lambda part: store.search(part, K), faiss_alone, asked, times)
            cells = (name, str(count), f"{ours * 1e3:.3f}", f"{alone * 1e3:.3f}", f"{ours / alone:.2f}", f"{share:.4f}")
            print("| " + " | ".join(cells) + " |", flush=True)

    row("exact", lambda part: flat.search(part, K), 10 if arguments.smoke else 30)
    del flat
    notes = []
    for kind in arguments.kinds:
        taken = seconds(lambda kind=kind: store.build_index(kind))
        notes.append(f"{kind}: built in {taken:.1f} s, {store.index}")
        notes.append(f"{kind}: first search {seconds(lambda: store.search(queries[:1], K)):.2f} s")
        entry = store._snapshot.state.index
        assert entry is not None
        index, effort = load(store._snapshot, entry).index, entry.settings[EFFORT[kind]]
        of_ivf, engine = kind == "ivfpq", cast("Any", faiss)  # whose stubs lack much
        made = engine.SearchParametersIVF(nprobe=effort) if of_ivf else engine.SearchParametersHNSW(efSearch=effort)
        row(kind, lambda part, index=index, made=made: index.search(part, K, params=made), 200)
    before = {path.name: path.stat().st_size for path in store.folder.iterdir()}
    taken = seconds(lambda: fill(store, 10_000, lambda count: draw(rng, codes, basis, count), arguments.rows))
    written = sum(path.stat().st_size for path in store.folder.iterdir() if path.name not in before)
    print("", *notes, f"adding 10,000 more: {taken:.2f} s, {written / 2**20:.1f} MB of new files", sep="\n")


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--kinds", nargs="*", default=["hnsw"], choices=["hnsw", "ivfpq"])
    parser.add_argument("--folder", type=Path, help="where the gallery is made, and removed")
    parser.add_argument("--smoke", action="store_true", help="few rows, only to see that it runs")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.rows, arguments.dim, arguments.kinds = 4000, 16, ["hnsw", "ivfpq"]
    with TemporaryDirectory(dir=arguments.folder) as folder:
        measure(arguments, Path(folder))


if __name__ == "__main__":
    main()
