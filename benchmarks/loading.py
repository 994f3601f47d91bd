"""Images a second that the data loader gives, from JPEG files and from the cache of decoded pictures.

Beside them, what as many bare processes reach together, each of which decodes, crops and flips its part of the same
files with Pillow and makes normalised tensors, but hands them to nobody.

    python benchmarks/loading.py                     # 1,000 files, some minutes on two cores
    python benchmarks/loading.py --size 1600 1200 --images 130 --reduce    # larger photographs, as own recipes do
    python benchmarks/loading.py --smoke             # a few files, seconds

The files are smooth noise of 500 × 375 pixels, with as many bytes as such a photograph has. A figure is of the median
time of one pass, shuffled, in batches of 64; passes from files and from the cache take turns. Both lie in memory after
the first pass, which does not count: a cache that does not fit there is as fast as the disk.
"""

import argparse
import math
import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.pool import Pool
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
PARTS, RATIO = (0.2, 1.0), math.log(4 / 3)
BILINEAR = Image.Resampling.BILINEAR


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


def bare(path: Path, preprocessing: Preprocessing, trains: bool) -> torch.Tensor:
    """The same work as that of the transforms, in as few lines as it takes."""
    with Image.open(path) as image:
        if (side := preprocessing.reduced_side) is not None:
            image.draft(None, (side, side))
        image.load()
        if side is not None and (shorter := min(image.size)) > side:
            image = image.resize((side * image.width // shorter, side * image.height // shorter), BILINEAR)
        width, height = image.size
        size = preprocessing.size
        if trains:
            area, ratio = width * height * random.uniform(*PARTS), math.exp(random.uniform(-RATIO, RATIO))
            across, down = min(width, round((area * ratio) ** 0.5)), min(height, round((area / ratio) ** 0.5))
            left, top = random.randint(0, width - across), random.randint(0, height - down)
            image = image.crop((left, top, left + across, top + down)).resize((size, size), BILINEAR)
            if random.random() < 0.5:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        else:
            resized = preprocessing.shorter_side or size
            shorter = min(width, height)
            image = image.resize((resized * width // shorter, resized * height // shorter), BILINEAR)
            left, top = (image.width - size) // 2, (image.height - size) // 2
            image = image.crop((left, top, left + size, top + size))
        mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (preprocessing.mean, preprocessing.std))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.to(torch.float32, memory_format=torch.contiguous_format).div_(255).sub_(mean).div_(std)


def bare_part(paths: Sequence[Path], preprocessing: Preprocessing, trains: bool) -> None:
    """What one process does."""
    for path in paths:
        bare(path, preprocessing, trains)


def bare_pass(paths: Sequence[Path], preprocessing: Preprocessing, trains: bool, pool: Pool | None) -> None:
    """All files, by this process or by those of a pool, which are there already."""
    if pool is None:
        bare_part(paths, preprocessing, trains)
        return
    pool.starmap(bare_part, [(paths[start :: WORKERS[1]], preprocessing, trains) for start in range(WORKERS[1])], 1)


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
    print("| transform | workers | bare, images/s | files, images/s | of bare | cache, images/s | cache / files |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    augmentation = Augmentation(random_resized_crop=PARTS, horizontal_flip=0.5)
    for name, transform in (
        ("training", augmentation.training(preprocessing)),
        ("evaluation", preprocessing.evaluation()),
    ):
        for workers in WORKERS:
            pool = multiprocessing.get_context("fork").Pool(workers) if workers else None
            calls: dict[str, Callable[[], object]] = {
                "bare": partial(bare_pass, paths, preprocessing, name == "training", pool)
            }
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
            alone, read, kept = (count / taken[of] for of in ("bare", "files", "cache"))
            row = f"{alone:.0f} | {read:.0f} | {read / alone:.2f} | {kept:.0f} | {kept / read:.2f}"
            print(f"| {name} | {workers} | {row} |", flush=True)
            if pool is not None:
                pool.terminate()


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
