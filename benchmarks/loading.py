"""Images a second that the data loader gives, from JPEG files and from the cache of decoded pictures.

    python benchmarks/loading.py                     # 1,000 files, some minutes on two cores
    python benchmarks/loading.py --size 1600 1200 --images 130 --reduce    # larger photographs, as own recipes do
    python benchmarks/loading.py --smoke             # a few files, seconds

The files are smooth noise of 500 × 375 pixels, with as many bytes as such a photograph has; --folder is on the disk to
be measured, --side the shorter side in the cache. A figure is of the median time of one pass, shuffled, in batches of
64; passes from files and from the cache take turns. Both lie in memory after the first pass, which does not count: a
cache that does not fit there is as fast as the disk.
"""

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.utils.data import DataLoader

from measure import command, medians, print_header, print_row, write_photographs
from proxemic.data import Augmentation, CacheConfig, EmbeddingDataset, FilePixels, ImageSet, Preprocessing, Splits


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
    print_header("transform", "workers", "files, images/s", "cache, images/s", "ratio")
    training = Augmentation(random_resized_crop=(0.2, 1.0), horizontal_flip=0.5).training(preprocessing)
    for name, transform in (("training", training), ("evaluation", preprocessing.evaluation())):
        for workers in (0, 2):
            calls: dict[str, Callable[[], object]] = {}
            for source, images in (("files", files), ("cache", cached)):
                data = EmbeddingDataset(images, transform, side=preprocessing.reduced_side)
                loader = DataLoader(data, 64, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
                calls[source] = partial(lambda loader: deque(loader, maxlen=0), loader)
            read, from_cache = (count / taken for taken in medians(calls, rounds).values())
            print_row(name, workers, f"{read:.0f}", f"{from_cache:.0f}", f"{from_cache / read:.2f}")


def main(
    *,
    images: int = 1_000,
    size: tuple[int, int] = (500, 375),
    side: int = 256,
    reduce: bool = False,
    rounds: int = 3,
    folder: Path | None = None,
    smoke: bool = False,
) -> None:
    """Make a temporary folder, and measure."""
    torch.set_num_threads(1)  # as a worker has
    images, size, side, rounds = (16, (120, 90), 64, 1) if smoke else (images, (size[0], size[1]), side, rounds)
    with TemporaryDirectory(dir=folder) as made:
        table(images, size, side, rounds, Path(made), reduce)


if __name__ == "__main__":
    command(main)
