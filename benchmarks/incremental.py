"""Classes are added to a gallery, and nothing is trained: Recall@1 as they become more.

    nice python benchmarks/incremental.py                # trains glyphs-small, then adds 100 to 1,000 classes
    nice python benchmarks/incremental.py --run runs/g   # takes a run that was trained on Glyphs before
    python benchmarks/incremental.py --smoke             # seconds

The classes are characters of Glyphs that no training has seen, in an order that --seed decides; six typefaces of each,
always the same for all, are added to the gallery, and the six others are the queries. The gallery is a folder that each
row of the table adds to, searched exactly. Besides all queries, those of the classes that were there first are counted:
what they lose is the price of the classes that came.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from measure import command, print_header, print_row
from proxemic.data import Glyphs, Preprocessing
from proxemic.data.sources.glyphs import FACES
from proxemic.retrieval import Embedder, Gallery
from proxemic.runs.embed import embed_images
from proxemic.training import train

STEPS = tuple(range(100, 1001, 100))


def measure(run: Path, folder: Path, steps: Sequence[int], classes: int | None, seed: int) -> None:
    """Add the classes, and print Recall@1."""
    embedder = Embedder.load(run)
    assert isinstance(embedder.transform, Preprocessing)
    test = Glyphs(test_classes=classes).load().test_images
    vectors = embed_images(embedder.model, test, embedder.transform, batch_size=256)
    names = np.array(test.class_names)[test.labels]
    orders = (
        torch.randperm(count, generator=torch.Generator().manual_seed(seed)) for count in (test.num_classes, len(FACES))
    )
    classes_in_order, faces = (order.numpy() for order in orders)
    added_at = np.argsort(classes_in_order)[test.labels]
    in_gallery = np.isin(np.arange(len(test)) % len(FACES), faces[: len(FACES) // 2])
    gallery = Gallery.create(folder / "gallery", embedder)
    print(f"Recall@1 in %, {embedder.dim} numbers each; {test.num_classes:,} unseen classes in all")
    print_header("classes", "rows", "all", f"first {steps[0]:,}", "chance", "added in", "searched in")
    for before, step in zip((0, *steps), steps, strict=False):
        new = np.flatnonzero(in_gallery & (added_at >= before) & (added_at < step))
        asked = np.flatnonzero(~in_gallery & (added_at < step))
        moments = [time.perf_counter()]
        gallery.add_vectors(vectors[new], [f"glyph {row}" for row in new], names[new].tolist())
        moments.append(time.perf_counter())
        hits = gallery.search_vectors(vectors[asked], k=1)
        moments.append(time.perf_counter())
        right = np.array([hit.label for (hit,) in hits]) == names[asked]
        shares = (right.mean(), right[added_at[asked] < steps[0]].mean(), 1 / step)
        cells = (f"{100 * share:.2f}" for share in shares)
        print_row(step, len(gallery), *cells, *(f"{seconds:.2f} s" for seconds in np.diff(moments)))


def main(*, run: Path | None = None, seed: int = 0, smoke: bool = False) -> None:
    """Train unless there is a run, and measure."""
    with TemporaryDirectory() as folder:
        quick = {"data.train_classes": 16, "data.test_classes": 8, "training.epochs": 1} if smoke else {}
        if run is None:
            run = Path(folder, "run")
            train("glyphs-small", run, overrides=quick, threads=1, progress=False, test=False)
        measure(run, Path(folder), (10, 20, 30) if smoke else STEPS, 30 if smoke else None, seed)


if __name__ == "__main__":
    command(main)
