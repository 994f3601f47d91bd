"""Kill processes at random moments while they change a gallery, and check that it has the old or the new state.

    python benchmarks/kills.py                # 30 moments of each change
    python benchmarks/kills.py --moments 3    # seconds
    python benchmarks/kills.py --commands     # three moments of each command that embeds pictures, in minutes

Each time, a process changes a copy of the same gallery and is killed (SIGKILL). Then all rows and vectors are compared,
`verify` must find no problem, a search must return the right neighbours, and repeating the change must give the same
gallery as without a kill. Otherwise the script fails. A change that ends before it is killed is repeated.

With --commands, each command that embeds pictures is killed after it has kept some embeddings. Then the next command of
the list runs to its end, and `embed` after it. The script fails if a picture was embedded twice.
"""

import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from PIL import Image

from measure import command, print_header, print_row
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.retrieval import Gallery
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.galleries.stores.local import LocalStore
from proxemic.retrieval.galleries.stores.store import GalleryInfo
from proxemic.runs.kept import kept_embeddings
from proxemic.training import train

PRELOADED = [
    "faiss",
    "proxemic.cli",
    "proxemic.retrieval.curation.clustering",
    "proxemic.retrieval.galleries.folders",
    "proxemic.retrieval.searching.calibration",
    "proxemic.retrieval.vectors.bulk",
    "proxemic.studies.evaluate",
]
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


PICTURES, CLASSES = 6_000, 12
RECIPE = """
data: {class_path: proxemic.data.OwnImages, init_args: {root: PHOTOS, test_fraction: 0.34, validation_fraction: 0.34}}
images: {size: 32, resize: null}
batches: {size: 16}
model: {backbone: convnet, embedding_size: 16, width: 32}
loss: {class_path: proxemic.losses.ProxyAnchorLoss}
optim: {optimizer: torch.optim.AdamW, lr: 0.001, loss_lr: 0.01}
training: {epochs: 1, accelerator: cpu}
evaluation: {recall_at: [1], start: false, untrained: false}
"""
COMMANDS: dict[str, Callable[[Path], list[object]]] = {
    "search": lambda base: ["search", base / "photos", base / "query.png", "--model", base / "run"],
    "gallery create": lambda base: [
        "gallery",
        "create",
        base / "out" / "shop",
        base / "photos",
        "--model",
        base / "run",
    ],
    "gallery add": lambda base: ["gallery", "add", base / "out" / "empty", base / "photos"],
    "clean": lambda base: ["clean", base / "photos", "--model", base / "run"],
    "cluster": lambda base: ["cluster", base / "photos", "--model", base / "run", "--out", base / "out" / "groups.csv"],
    "calibrate": lambda base: ["calibrate", base / "run", "--data.root", base / "photos"],
    "evaluate": lambda base: ["evaluate", base / "run", "--split", "all"],
    "embed": lambda base: [
        "embed",
        base / "photos",
        "--model",
        base / "run",
        "--out",
        base / "out" / "vectors.parquet",
    ],
}


def work(name: str, folder: Path, connection: Connection) -> None:
    """Change a gallery, in its own process."""
    connection.send("begins")
    CHANGES[name](str(folder))
    connection.send("ended")


def start(
    name: str, folder: Path, target: Callable[[str, Path, Connection], None] = work
) -> tuple[multiprocessing.Process, Connection]:
    """Start a process, and return when it is about to change the gallery."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    # A process forked from this one could wait for threads of OpenMP that it does not have.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=target, args=(name, folder, sender))
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


def run_command(name: str, base: Path, connection: Connection) -> None:
    """Run a command of the list, in its own process."""
    from proxemic.cli import main as proxemic

    os.environ["PROXEMIC_CACHE"] = str(base / "out" / "cache")
    connection.send("begins")
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        code = proxemic([str(word) for word in COMMANDS[name](base)])
    raise SystemExit(code)


def make_run(base: Path) -> None:
    """Write pictures and train a network on some of them."""
    rng = np.random.default_rng(0)
    for number in range(PICTURES):
        folder = base / "photos" / f"class {number % CLASSES}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (32, 32, 3), np.uint8) // 2 + 10 * (number % CLASSES)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    shutil.copy(base / "photos" / "class 0" / "0.png", base / "query.png")
    (base / "recipe.yaml").write_text(RECIPE.replace("PHOTOS", str(base / "photos")), encoding="utf-8")
    train(base / "recipe.yaml", base / "run")


def embedded() -> int:
    """Count the embeddings that are kept."""
    return sum(rows for rows, _ in kept_embeddings().values())


def kill_command(name: str, following: str, base: Path, least: int) -> tuple[int, int, int]:
    """Kill a command once it has kept some embeddings; count these, those that the next adds, and all after `embed`."""
    out = base / "out"
    shutil.rmtree(out, ignore_errors=True)
    os.environ["PROXEMIC_CACHE"] = str(out / "cache")
    Gallery.create(out / "empty", base / "run").close()
    process, _ = start(name, base, run_command)
    while process.is_alive() and embedded() < least:
        time.sleep(0.002)
    process.kill()
    process.join()
    counts = [embedded()]
    shutil.rmtree(out / "shop", ignore_errors=True)
    for command_name in (following, "embed"):
        process, _ = start(command_name, base, run_command)
        process.join()
        if process.exitcode:
            raise SystemExit(f"{command_name} failed after {name} was killed")
        counts.append(embedded())
    return counts[0], counts[1] - counts[0], counts[2]


def kill_commands(moments: int) -> None:
    """Print a row for each kill of each command."""
    print_header("command", "kept at the kill", "next command", "embedded by it", "of all pictures", "twice")
    wrong, rng, names = 0, random.Random(0), [*COMMANDS]
    with TemporaryDirectory() as folder:
        make_run(Path(folder))
        for name, following in zip(names, [*names[1:], names[0]], strict=True):
            for _ in range(moments):
                kept, more, total = kill_command(name, following, Path(folder), rng.randrange(1, PICTURES // 2))
                print_row(name, kept, following, more, PICTURES, total - PICTURES)
                wrong += total != PICTURES
    if wrong:
        raise SystemExit(f"pictures were embedded twice after {wrong} kills")


def main(*, moments: int | None = None, commands: bool = False) -> None:
    """Print a row for each change, or for each kill of a command."""
    if commands:
        kill_commands(moments or 3)
        return
    moments = moments or 30
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
