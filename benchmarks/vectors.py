"""Training on vectors that do not fit into memory: seconds and memory of an epoch, or of some steps.

    python benchmarks/vectors.py                       # 1,000,000 × 512 float16 of 100,000 classes, an epoch
    python benchmarks/vectors.py --rows 10000000 --dim 1024 --classes 1000000 --steps 300 --no-test   # 20 GB on disk
    python benchmarks/vectors.py --smoke               # seconds

The recipe own-vectors with a linear head and a normalised softmax that samples classes. The file is written to --folder
and removed afterwards; a vector is a class's direction in 32 random dimensions, and noise in all. Validation and test
are one in a hundred of the classes each.
"""

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from proxemic.data import OwnVectors
from proxemic.recipes import load
from proxemic.training import train
from watched import SEEN, WatchedBatches, resident

CHUNK, HIDDEN = 50_000, 32


def write(folder: Path, rows: int, dim: int, classes: int) -> None:
    """Write vectors, chunk by chunk, and their labels."""
    rng = np.random.default_rng(0)
    codes = rng.standard_normal((classes, HIDDEN), np.float32)
    basis = rng.standard_normal((HIDDEN, dim), np.float32) / HIDDEN**0.5
    labels = rng.permutation(np.arange(rows) % classes)
    np.save(folder / "labels.npy", labels)
    vectors = np.lib.format.open_memmap(folder / "vectors.npy", "w+", np.float16, (rows, dim))
    for first in range(0, rows, CHUNK):
        part = codes[labels[first : first + CHUNK]] @ basis
        noise = np.frombuffer(rng.bytes(part.size), np.int8).reshape(part.shape)
        vectors[first : first + CHUNK] = part + noise * np.float32(1 / 16)
    vectors.flush()


def megabytes(count: int) -> str:
    """Bytes in words."""
    return f"{count / 2**20:,.0f} MB"


def measure(arguments: argparse.Namespace, folder: Path) -> None:
    """Train, and print what it took."""
    # In a process of its own, whose memory is not that of the training.
    writer = multiprocessing.get_context("spawn").Process(
        target=write, args=(folder, arguments.rows, arguments.dim, arguments.classes)
    )
    writer.start()
    writer.join()
    assert writer.exitcode == 0
    root, labels = folder / "vectors.npy", folder / "labels.npy"
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads: {arguments.rows:,} vectors × {arguments.dim} "
        f"float16 ({megabytes(root.stat().st_size)}) of {arguments.classes:,} classes, batches of {arguments.batch}"
    )
    held = 0.0 if arguments.no_test else 0.01 if arguments.classes > 1000 else 0.1
    source = partial(OwnVectors, root=root, test_fraction=held, validation_fraction=held, labels=labels)
    changes = {
        "data": source,
        "loss": {
            "class_path": "proxemic.losses.NormalizedSoftmaxLoss",
            "init_args": {"sample_rate": arguments.sample_rate},
        },
        "batches.size": arguments.batch,
        "batches.sampler": partial(WatchedBatches, steps=arguments.steps),
        "training.epochs": 1,
        "training.accelerator": "cpu",
        "evaluation.untrained": False,
        "evaluation.select_on": "last" if arguments.no_test else "validation",
    }
    start = time.perf_counter()
    result = train(load("own-vectors", **changes), folder / "run", progress=False)
    seconds = time.perf_counter() - start
    steps, took = SEEN[-1][0] - SEEN[0][0], SEEN[-1][1] - SEEN[0][1]
    speed = f"{1000 * took / steps:.1f} ms a step, {steps * arguments.batch / took:,.0f} vectors/s"
    print(f"before the first step {SEEN[0][1] - start:.1f} s, with labels, splits and the network")
    print(f"{steps:,} steps {took:.1f} s: {speed}")
    print("in memory at steps " + ", ".join(f"{step:,}: {megabytes(size)}" for step, _, size in SEEN[1::4]))
    for part in ("validation", "test"):
        if part in result.metrics:
            print(f"{part}: recall@1 {100 * result.metrics[part]['recall@1']:.1f}")
    print(f"in all {seconds:.1f} s, at most {megabytes(resident('VmHWM'))}")


def main(words: Sequence[str] | None = None) -> None:
    """Read the flags, measure, and remove the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name, value in (("rows", 1_000_000), ("dim", 512), ("classes", 100_000), ("batch", 256), ("steps", 0)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--sample-rate", type=float, default=0.05)
    parser.add_argument("--no-test", action="store_true", help="hold nothing out")
    parser.add_argument("--folder", type=Path, help="where the files are written (the system's for temporary files)")
    parser.add_argument("--smoke", action="store_true")
    arguments = parser.parse_args(words)
    if arguments.smoke:
        arguments.rows, arguments.dim, arguments.classes, arguments.batch = 4000, 16, 400, 64
    with TemporaryDirectory(dir=arguments.folder) as folder:
        measure(arguments, Path(folder))


if __name__ == "__main__":
    main()
