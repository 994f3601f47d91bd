"""How well `proxemic clean` finds labels that were changed and duplicates that were planted.

    python benchmarks/cleaning.py                               # Glyphs, three seeds: some minutes on one thread
    python benchmarks/cleaning.py --omniglot data/omniglot      # Omniglot's small training set
    python benchmarks/cleaning.py --smoke                       # few classes and epochs, seconds: does it run?

Of each seed, 5 % of the labels are changed to other classes, and a model is trained on these labels. The average
precision is that of the suspects in their order, those not listed last. Then every third of other pictures, which are
all of Omniglot, or of Glyphs one typeface of each character (in several, a character is often the same drawing), gets a
near duplicate: resized by 0.7 to 1.5, brightened by 0.8 to 1.2 and compressed as JPEG of quality 60 to 95.
"""

import argparse
import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from sklearn.metrics import average_precision_score

from proxemic.data import Glyphs, ImageSet, Omniglot
from proxemic.data.pixels import Pixels
from proxemic.data.sources.glyphs import FACES
from proxemic.retrieval import Embedder
from proxemic.retrieval.curation import clean
from proxemic.training import train

FLIPPED = 0.05


def write_flipped(images: ImageSet, root: Path, rng: np.random.Generator) -> set[str]:
    """Write class folders, some pictures in a wrong one, and give the paths of these."""
    true, classes = images.labels.numpy(), images.num_classes
    flipped = rng.choice(len(true), round(FLIPPED * len(true)), replace=False)
    given = true.copy()
    given[flipped] = (true[flipped] + rng.integers(1, classes, len(flipped))) % classes
    for place, label in enumerate(given):
        path = root / f"{label:04d}" / f"{place:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        _picture(images, place).save(path)
    return {str(root / f"{given[place]:04d}" / f"{place:05d}.png") for place in flipped}


def write_duplicates(images: ImageSet, root: Path, rng: np.random.Generator) -> set[frozenset[str]]:
    """Write pictures, and altered copies of every third; the pairs of them."""
    root.mkdir()
    planted = set()
    for place in range(len(images)):
        path = root / f"{place:05d}.png"
        _picture(images, place).save(path)
        if place % 3 == 0:
            (root / "copies").mkdir(exist_ok=True)
            copy = root / "copies" / f"{place:05d}.jpg"
            altered(_picture(images, place), rng).save(copy)
            planted.add(frozenset({str(path), str(copy)}))
    return planted


def _picture(images: ImageSet, place: int) -> Image.Image:
    assert isinstance(images.pixels, Pixels)
    return images.pixels[place]


def altered(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Resized, brightened and compressed."""
    scale = rng.uniform(0.7, 1.5)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    content = io.BytesIO()
    brighter = ImageEnhance.Brightness(image).enhance(rng.uniform(0.8, 1.2))
    brighter.save(content, "JPEG", quality=int(rng.integers(60, 96)))
    return Image.open(content)


def measure(name: str, images: ImageSet, single: ImageSet, recipe: str, epochs: int | None, seed: int) -> None:
    """One seed: train on changed labels, and print what is found."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        flipped = write_flipped(images, root / "flipped", rng)
        data = {"root": str(root / "flipped"), "test_fraction": 0.0, "validation_fraction": 0.0}
        settings: dict[str, object] = {
            "data": {"class_path": "proxemic.data.OwnImages", "init_args": data},
            "evaluation.select_on": "last",
            "seed": seed,
        }
        if epochs is not None:
            settings["training.epochs"] = epochs
        start = time.perf_counter()
        train(recipe, root / "run", overrides=settings, report=lambda _: None)
        trained = time.perf_counter() - start
        embedder = Embedder.load(root / "run")
        start = time.perf_counter()
        suspects = {each.path: each.score for each in clean(root / "flipped", embedder).labels}
        cleaned = time.perf_counter() - start
        paths = sorted(map(str, (root / "flipped").rglob("*.png")))
        truth = [path in flipped for path in paths]
        precision = average_precision_score(truth, [suspects.get(path, 0.0) for path in paths])
        planted = write_duplicates(single, root / "single", rng)
        found = {frozenset({each.path, each.of}) for each in clean(root / "single", embedder).duplicates}
        right = len(found & planted)
        print(
            f"{name:9} {seed:4} {len(images):7} {sum(truth):7} {precision:8.3f} {len(suspects):8}"
            f" {len(single):8} {len(planted):7} {right / len(planted):6.3f} {right / max(1, len(found)):9.3f}"
            f" {trained:7.0f} {cleaned:7.1f}",
            flush=True,
        )


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="few classes and epochs: does it run?")
    parser.add_argument("--omniglot", type=Path, metavar="DIR", help="the folder of Omniglot's archives")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, help="(default: those of the recipe, 20)")
    args = parser.parse_args(argv)
    print(
        f"{'data':9} {'seed':>4} {'images':>7} {'flipped':>7} {'AP':>8} {'suspects':>8} {'pictures':>8} {'planted':>7}"
        f" {'recall':>6} {'precision':>9} {'train s':>7} {'clean s':>7}"
    )
    if args.omniglot is not None:
        images = Omniglot(args.omniglot, validation_fraction=0.0).load().train
        name, recipe, of_one = "Omniglot", "omniglot/mpa-ap", images
    else:
        images = Glyphs(train_classes=24 if args.smoke else 256, test_classes=2, validation_fraction=0.0).load().train
        name, recipe = "Glyphs", "glyphs-small"
        of_one = images.select(torch.arange(0, len(images), len(FACES)))
    epochs = 4 if args.smoke else args.epochs
    for seed in args.seeds[:1] if args.smoke else args.seeds:
        measure(name, images, of_one, recipe, epochs, seed)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
