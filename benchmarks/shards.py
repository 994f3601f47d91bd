"""Training on tar shards of WebDataset: the index, memory, and a run that is killed and goes on at the same sample.

    python benchmarks/shards.py                  # 1,000,000 thumbnails, some minutes on two cores, 2.6 GB
    python benchmarks/shards.py --images 100000
    python benchmarks/shards.py --smoke          # a few thousand, none killed

The thumbnails are 1,000 different JPEG files of 32 × 32 pixels, which come again under other names and labels: 100 per
class, in shards of 10,000. Two commands train a small ConvNet on them for two epochs of some class-balanced batches;
the second is killed (SIGKILL) in its second epoch, and resumed. Both must end with the same weights to the bit, which
they only do if every step saw the same images. Memory is what the training process alone holds, without what the
operating system caches of files, at the beginning and at the end of the training.
"""

import argparse
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import yaml
from PIL import Image

from proxemic.data import WebDatasetShards

BLOCK, SIDE, DIFFERENT, EACH, PER_SHARD = 512, 32, 1_000, 100, 10_000


def write_shards(folder: Path, count: int) -> None:
    """Tars of samples that all have the same length, so that NumPy writes the headers of a shard at once."""
    rng = np.random.default_rng(0)
    encoded = []
    for _ in range(DIFFERENT):
        picture, content = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8), io.BytesIO()
        Image.fromarray(picture).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(content, "JPEG", quality=85)
        encoded.append(content.getvalue())
    length = -(-max(map(len, encoded)) // BLOCK) * BLOCK
    # What follows the end of a JPEG is ignored.
    jpegs = np.stack([np.frombuffer(each.ljust(length, b"\0"), np.uint8) for each in encoded])
    order = rng.permutation(count)
    for shard, first in enumerate(range(0, count, PER_SHARD)):
        numbers = order[first : first + PER_SHARD]
        names = np.arange(first, first + len(numbers))
        labels = texts([f"{number // EACH:08}" for number in numbers.tolist()], BLOCK)
        parts = [headers(names, "jpg", length), jpegs[numbers % DIFFERENT], headers(names, "cls", 8), labels]
        with (folder / f"{shard:05}.tar").open("wb") as file:
            file.write(np.concatenate(parts, axis=1).tobytes() + bytes(2 * BLOCK))


def headers(names: np.ndarray, ending: str, length: int) -> np.ndarray:
    """The headers of files of one length."""
    made = np.zeros((len(names), BLOCK), np.uint8)
    made[:, :100] = texts([f"{name:09}.{ending}" for name in names.tolist()], 100)
    for place, text in ((100, "0000644\0"), (124, f"{length:011o}\0"), (156, "0"), (257, "ustar\00000")):
        made[:, place : place + len(text)] = np.frombuffer(text.encode(), np.uint8)
    made[:, 148:156] = ord(" ")
    made[:, 148:156] = texts([f"{total:06o}\0 " for total in made.sum(axis=1, dtype=np.int64).tolist()], 8)
    return made


def texts(values: Sequence[str], width: int) -> np.ndarray:
    """Texts of ASCII as rows of bytes, filled up with zeros."""
    return np.array([value.encode() for value in values], f"S{width}").view(np.uint8).reshape(len(values), width)


def write_recipe(path: Path, shards: Path, classes: int, steps: int, held_out: int) -> None:
    """A recipe of two epochs of so many steps, which holds so many classes out, twice."""
    few = held_out / classes
    data = {"root": str(shards), "test_fraction": few, "validation_fraction": few}
    batches = {"classes_per_batch": 32, "images_per_class": 4, "batches_per_epoch": steps}
    recipe = {
        "data": {"class_path": "proxemic.data.WebDatasetShards", "init_args": data},
        "images": {"size": SIDE, "resize": None, "channels": 3},
        "batches": {"size": 128, "sampler": {"class_path": "proxemic.data.ClassBalancedBatches", "init_args": batches}},
        "model": {"backbone": "convnet", "width": 8, "embedding_size": 32},
        "loss": {"class_path": "proxemic.losses.ProxyAnchorLoss"},
        "optim": {"optimizer": "torch.optim.AdamW", "lr": 0.001, "loss_lr": 0.02},
        "training": {"epochs": 2, "checkpoint_minutes": 0, "threads": 1, "accelerator": "cpu"},
        "evaluation": {"untrained": False},
    }
    path.write_text(yaml.safe_dump(recipe))


def train(arguments: Sequence[str], run: Path, killed: bool = False) -> list[float]:
    """Run proxemic train; give the MB that it holds by itself, several times a second, while it trains."""
    held: list[float] = []
    command = [sys.executable, "-m", "proxemic", "train", *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            time.sleep(0.1)
            if (run / "checkpoints" / "last.ckpt").exists():  # training has begun
                held += memory(process.pid)
            if killed and in_second_epoch(run):
                os.kill(process.pid, signal.SIGKILL)
        assert process.stderr is not None
        error = process.stderr.read()
    if process.returncode != (-signal.SIGKILL if killed else 0):
        raise SystemExit(error)
    return held


def in_second_epoch(run: Path) -> bool:
    """Whether a checkpoint was written after the first epoch was over; every step writes one."""
    history, checkpoint = run / "history.csv", run / "checkpoints" / "last.ckpt"
    return history.exists() and checkpoint.stat().st_mtime_ns > history.stat().st_mtime_ns


def memory(process: int) -> list[float]:
    """MB that a process alone holds; nothing once it has ended, or where the system does not say."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return []
    return [int(line.split()[1]) / 1e3 for line in lines if line.startswith("RssAnon")]


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="few images and steps: does it run?")
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=100, help="of each of the two epochs")
    parser.add_argument("--folder", type=Path, help="where to make a temporary folder")
    args = parser.parse_args(argv)
    count, steps, held_out = (20_000, 4, 4) if args.smoke else (args.images, args.steps, 20)
    with TemporaryDirectory(dir=args.folder) as name:
        folder, shards = Path(name), Path(name) / "shards"
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # where indices are kept
        shards.mkdir()
        start = time.perf_counter()
        write_shards(shards, count)
        seconds, size = time.perf_counter() - start, sum(path.stat().st_size for path in shards.iterdir())
        print(f"{count:,} images of {count // EACH:,} classes: {size / 1e9:.2f} GB, made in {seconds:.1f} s")
        for index in ("made", "read"):
            start = time.perf_counter()
            WebDatasetShards(shards).class_names()
            print(f"index {index}: {time.perf_counter() - start:.2f} s", flush=True)
        recipe = folder / "recipe.yaml"
        write_recipe(recipe, shards, count // EACH, steps, held_out)
        whole, killed = folder / "whole", folder / "killed"
        start = time.perf_counter()
        held = train(["--recipe", str(recipe), "--out", str(whole)], whole)
        print(f"{2 * steps} steps of 128 images: {time.perf_counter() - start:.1f} s with everything")
        if held:
            tenth = len(held) // 10 + 1
            first, last = (np.median(part) for part in (held[:tenth], held[-tenth:]))
            print(f"memory: {first:.0f} MB at the beginning, {last:.0f} MB at the end")
        if args.smoke:
            return
        train(["--recipe", str(recipe), "--out", str(killed)], killed, killed=True)
        train(["--resume", str(killed)], killed)
        same = (whole / "model.safetensors").read_bytes() == (killed / "model.safetensors").read_bytes()
        print(f"killed in the second epoch and resumed: the weights are {'the same' if same else 'OTHERS'}")


if __name__ == "__main__":
    main()
