"""Images a second of `proxemic embed`, from JPEG files to a file of vectors, beside bare loops over the same files.

    python benchmarks/embedding.py                                 # 10,000 images, some minutes a network on two cores
    python benchmarks/embedding.py --compiled --onnx               # also torch.compile, and ONNX Runtime
    python benchmarks/embedding.py --networks convnet --smoke      # seconds

The files are smooth noise, decoded and prepared alike by as many workers. A bare loop keeps its embeddings in memory,
and has all that is known to help: freed memory is kept, convolutions are channels_last, nothing is recorded for
gradients. Each run is a process of its own, and they take turns; a figure is the median of all images by all seconds,
without imports and the making of the network, but with the writing of the file, where there is one. Compiling is not
counted.
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.utils.data import DataLoader

from proxemic import keep_freed_memory
from proxemic.data import EmbeddingDataset, ImageSet, Preprocessing
from proxemic.models import ModelConfig, build_model, load_model, save_model
from proxemic.models.folding import folded
from proxemic.retrieval import embed_to_file, list_pictures
from training import NETWORKS, Setting, in_onnx_runtime, write_images


def embed(setting: Setting) -> float:
    """``proxemic embed``."""
    keep_freed_memory()  # as the command does
    setting.begin()
    written = embed_to_file(
        setting.folder / "model",
        setting.folder / "images",
        setting.folder / "vectors.parquet",
        batch_size=setting.batch,
        workers=setting.workers,
    )
    assert written is not None
    return written.rows / written.seconds


def loop(setting: Setting, kind: str) -> float:
    """A bare loop, eager, compiled, or in ONNX Runtime."""
    keep_freed_memory()
    setting.begin()
    model, preprocessing = load_model(setting.folder / "model")
    network: Any = model
    pixels = list_pictures(setting.folder / "images").pixels
    images = ImageSet(pixels, torch.zeros(len(pixels), dtype=torch.int64), ("all",))
    prepare = Preprocessing(**preprocessing)
    data = EmbeddingDataset(images, prepare.evaluation(), side=prepare.reduced_side)
    some = torch.rand(setting.batch, 3, setting.side, setting.side)
    with torch.inference_mode(), folded(model):
        if kind == "compiled":
            from torch._inductor import config

            config.freezing = True
            network = torch.compile(model)
            network(some)
        if kind == "onnx":
            network = in_onnx_runtime(model, setting)
        start = time.perf_counter()
        loader = DataLoader(data, setting.batch, num_workers=setting.workers)
        found = [network(batch) for batch, _ in loader]
        return len(found) * setting.batch / (time.perf_counter() - start)


def in_turns(runs: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """The median of what each gives, each time in a process of its own."""
    fork = multiprocessing.get_context("fork")
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, each in runs.items():
            ours, theirs = fork.Pipe()
            process = fork.Process(target=_send, args=(theirs, each))
            process.start()
            theirs.close()
            rates[name].append(ours.recv())
            process.join()
    return {name: statistics.median(each) for name, each in rates.items()}


def _send(connection: Connection, run: Callable[[], float]) -> None:
    connection.send(run())


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    networks = [name for name in NETWORKS if name != "resnet50"]
    parser.add_argument("--networks", nargs="+", default=networks, help="convnet, or any of timm")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--compiled", action="store_true", help="and torch.compile")
    parser.add_argument("--onnx", action="store_true", help="and ONNX Runtime; needs onnx, too")
    parser.add_argument("--side", type=int, default=128, help="of the images, in pixels")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--workers", type=int, default=2, help="processes that read, of each run")
    parser.add_argument("--smoke", action="store_true", help="few small images: does it run?")
    args = parser.parse_args(argv)
    count, side, batch, rounds = (32, 32, 8, 1) if args.smoke else (args.images, args.side, args.batch, args.rounds)
    ways = ["eager", *(name for name in ("compiled", "onnx") if getattr(args, name))]
    print(
        f"torch {torch.__version__}, {args.threads} threads, {args.workers} workers, {count:,} images of {side} pixels"
    )
    print(f"| images/s | embed | {' | '.join(ways)} | embed / best |\n|---|{'---:|' * (len(ways) + 2)}")
    for name in args.networks:
        with TemporaryDirectory() as folder:
            setting = Setting(name, Path(folder), side, batch, args.threads, args.workers)
            write_images(setting.folder, count // batch * batch, side)
            preprocessing = Preprocessing(size=side, resize=side * 9 // 8)
            model = build_model(ModelConfig(name, 128, image_size=side))
            save_model(setting.folder / "model", model, vars(preprocessing))
            rates = in_turns(
                {"": partial(embed, setting), **{way: partial(loop, setting, way) for way in ways}}, rounds
            )
        ours, *others = rates.values()
        cells = " | ".join(f"{rate:.3g}" for rate in (ours, *others))
        print(f"| {name} | {cells} | {ours / max(others):.2f} |", flush=True)


if __name__ == "__main__":
    main()
