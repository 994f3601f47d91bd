"""Classes are added to a gallery, and nothing is trained: Recall@1 as they become more.

    nice python benchmarks/incremental.py                # trains glyphs-small, then adds 100 to 1,000 classes
    nice python benchmarks/incremental.py --run runs/g   # of a run that was trained on Glyphs before
    python benchmarks/incremental.py --smoke             # seconds

The classes are characters of Glyphs that no training has seen, in an order that --seed decides; six typefaces of each,
always the same for all, are added to the gallery, and the six others are the queries. The gallery is a folder that each
row of the table adds to, searched exactly. Besides all queries, those of the classes that were there first are counted:
what they lose is the price of the classes that came.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from proxemic.data import Glyphs, Preprocessing
from proxemic.data.sources.glyphs import FACES
from proxemic.retrieval import Embedder, Gallery
from proxemic.runs.embed import embed_images
from proxemic.training import train

STEPS = (100, 200, 300, 400, 500, 600, 700, 800, 900, 1000)


def measure(run: Path, folder: Path, steps: Sequence[int], classes: int | None, seed: int) -> None:
    """Add the classes, and print Recall@1."""
    embedder = Embedder.load(run)
    test = Glyphs(test_classes=classes).load().test_images
    labels, names, typefaces = test.labels, test.class_names, torch.arange(len(test)) % len(FACES)
    assert isinstance(embedder.transform, Preprocessing)
    vectors = embed_images(embedder.model, test, embedder.transform, batch_size=256)
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order))  # when a class is added
    chosen = torch.randperm(int(typefaces.max()) + 1, generator=torch.Generator().manual_seed(seed))
    in_gallery = torch.isin(typefaces, chosen[: len(chosen) // 2])
    gallery = Gallery.create(folder / "gallery", embedder)
    before = 0
    print(f"Recall@1 in %, {embedder.dim} numbers each; {len(names):,} unseen classes in all")
    header = f"{'classes':>7} {'rows':>7} {'all':>7} {f'first {steps[0]:,}':>10} {'chance':>7}"
    print(f"{header} {'added in':>9} {'searched in':>12}")
    for step in steps:
        new = (in_gallery & (place[labels] >= before) & (place[labels] < step)).nonzero().squeeze(1)
        began = time.perf_counter()
        gallery.add_vectors(
            vectors[new], [f"glyph {row}" for row in new.tolist()], [names[label] for label in labels[new].tolist()]
        )
        added = time.perf_counter() - began
        asked = (~in_gallery & (place[labels] < step)).nonzero().squeeze(1)
        began = time.perf_counter()
        hits = gallery.search_vectors(vectors[asked], k=1)
        searched = time.perf_counter() - began
        right = np.array(
            [hit.label == names[label] for (hit,), label in zip(hits, labels[asked].tolist(), strict=True)]
        )
        first = right[(place[labels[asked]] < steps[0]).numpy()]
        print(
            f"{step:7,} {len(gallery):7,} {100 * right.mean():7.2f} {100 * first.mean():10.2f} {100 / step:7.2f} "
            f"{added:7.2f} s {searched:10.2f} s",
            flush=True,
        )
        before = step


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="a training of one epoch and few classes: does it run?")
    parser.add_argument("--run", type=Path, help="a run that was trained on Glyphs; by default glyphs-small is trained")
    parser.add_argument("--seed", type=int, default=0, help="the order of the classes, and which typefaces are added")
    args = parser.parse_args(argv)
    with TemporaryDirectory() as temporary:
        folder, run = Path(temporary), args.run
        if run is None:
            run = folder / "run"
            quick = {"data.train_classes": 16, "data.test_classes": 8, "training.epochs": 1} if args.smoke else {}
            train("glyphs-small", run, overrides=quick, threads=1, progress=False, test=False)
        measure(run, folder, (10, 20, 30) if args.smoke else STEPS, 30 if args.smoke else None, args.seed)


if __name__ == "__main__":
    main()
