"""Images a second that the data loader gives, from JPEG files and from the cache of decoded pictures.

    python benchmarks/loading.py                     # 1,000 files, some minutes on two cores
    python benchmarks/loading.py --size 1600 1200 --images 130 --reduce    # larger photographs, as own recipes do
    python benchmarks/loading.py --smoke             # a few files, seconds

The files are smooth noise of 500 × 375 pixels, with as many bytes as such a photograph has. A figure is of the median
time of one pass, shuffled, in batches of 64; passes from files and from the cache take turns. Both lie in memory after
the first pass, which does not count: a cache that does not fit there is as fast as the disk.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from measure import medians
from proxemic.data import Augmentation, CacheConfig, EmbeddingDataset, FilePixels, ImageSet, Preprocessing, Splits

BATCH = 64
CELLS = (96, 24, 6, 1.5)  # pixels; each coarser pattern is stronger, as in photographs
WORKERS = (0, 2)
PARTS = (0.2, 1.0)


def write_photographs(folder: Path, count: int, size: tuple[int, int]) -> list[Path]:
    """Noise of several scales as JPEG files."""
    rng = np.random.default_rng(0)
    paths = [folder / f"{number}.jpg" for number in range(count)]
    for path in paths:
        picture = np.full((size[1], size[0], 3), 128.0)
        for cell in CELLS:
            coarse = rng.integers(0, 256, (int(size[1] / cell) + 1, int(size[0] / cell) + 1, 3), dtype=np.uint8)
            smooth = Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)
            picture += (np.asarray(smooth) / 255 - 0.5) * 20 * cell**0.5
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(path, quality=94)
    return paths


def one_pass(loader: DataLoader) -> None:
    """Fetch every batch."""
    for _ in loader:
        pass


def table(count: int, size: tuple[int, int], side: int, rounds: int, folder: Path, reduce: bool) -> None:
    """Print what building costs and what reading gains."""
    paths = write_photographs(folder, count, size)
    files = ImageSet.from_names(FilePixels(paths), ["noise"] * count)
    start = time.perf_counter()
    preprocessing = Preprocessing(size=side * 7 // 8, resize=side, reduce=reduce)
    kept = preprocessing.reduced_side or side
    cached = CacheConfig(kept, folder / "cache").apply(Splits(files, None, None), preprocessing.reduced_side).train
    seconds = time.perf_counter() - start
    sizes = [sum(path.stat().st_size for path in some) for some in (paths, (folder / "cache").iterdir())]
    print(f"torch {torch.__version__}, {count:,} JPEG files of {size[0]} × {size[1]}, cache of shorter side {kept}")
    print(f"files: {sizes[0] / count / 1e3:.0f} kB an image; cache: {sizes[1] / count / 1e3:.0f} kB an image")
    print(f"cache written in {seconds:.1f} s, {count / seconds:.0f} images/s\n")
    print("| transform | workers | files, images/s | cache, images/s | ratio |\n|---|---:|---:|---:|---:|")
    augmentation = Augmentation(random_resized_crop=PARTS, horizontal_flip=0.5)
    for name, transform in (
        ("training", augmentation.training(preprocessing)),
        ("evaluation", preprocessing.evaluation()),
    ):
        for workers in WORKERS:
            calls: dict[str, Callable[[], object]] = {}
            for of, images in (("files", files), ("cache", cached)):
                loader = DataLoader(
                    EmbeddingDataset(images, transform, side=preprocessing.reduced_side),
                    batch_size=BATCH,
                    shuffle=True,
                    num_workers=workers,
                    persistent_workers=workers > 0,
                )
                calls[of] = partial(one_pass, loader)
            taken = medians(calls, rounds)
            read, kept = (count / taken[of] for of in ("files", "cache"))
            print(f"| {name} | {workers} | {read:.0f} | {kept:.0f} | {kept / read:.2f} |", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="few files and rounds: does it run?")
    parser.add_argument("--images", type=int, default=1_000)
    parser.add_argument("--size", type=int, nargs=2, default=(500, 375), metavar=("WIDTH", "HEIGHT"))
    parser.add_argument("--side", type=int, default=256, help="shorter side in the cache")
    parser.add_argument("--reduce", action="store_true", help="as images.reduce: large files at a reduced scale")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to make a temporary folder, on the disk to be measured")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)  # as a worker has
    count, size, rounds = (16, (120, 90), 1) if args.smoke else (args.images, tuple(args.size), args.rounds)
    with TemporaryDirectory(dir=args.folder) as folder:
        table(count, size, 64 if args.smoke else args.side, rounds, Path(folder), args.reduce)


if __name__ == "__main__":
    main()
