"""How well `proxemic clean` finds labels that were changed and duplicates that were planted.

    python benchmarks/cleaning.py                               # Glyphs, three seeds: some minutes on one thread
    python benchmarks/cleaning.py --omniglot data/omniglot      # Omniglot's small training set
    python benchmarks/cleaning.py --smoke                       # few classes and epochs, seconds: does it run?

For each seed, 5 % of the labels are changed to other classes, and a model is trained on these labels. The average
precision is that of the suspects in their order, those not listed last. Then every third of other pictures, which are
all of Omniglot, or one typeface of each character of Glyphs (in several, a character is often the same drawing), gets a
near duplicate: resized by 0.7 to 1.5, brightened by 0.8 to 1.2 and compressed as JPEG of quality 60 to 95.
"""

import io
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from sklearn.metrics import average_precision_score

from measure import command, print_header, print_row
from proxemic.data import Glyphs, ImageSet, Omniglot
from proxemic.data.sources.glyphs import FACES
from proxemic.retrieval import Embedder
from proxemic.retrieval.curation import clean
from proxemic.training import train

FLIPPED = 0.05


def write_flipped(images: ImageSet, root: Path, rng: np.random.Generator) -> set[str]:
    """Write class folders, some pictures in a wrong one, and return the paths of these."""
    given, classes = images.labels.numpy().copy(), images.num_classes
    flipped = rng.choice(len(given), round(FLIPPED * len(given)), replace=False)
    given[flipped] = (given[flipped] + rng.integers(1, classes, len(flipped))) % classes
    paths = [root / f"{label:04d}" / f"{place:05d}.png" for place, label in enumerate(given)]
    for place, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        images.pictures[place].save(path)
    return {str(paths[place]) for place in flipped}


def write_duplicates(images: ImageSet, root: Path, rng: np.random.Generator) -> set[frozenset[str]]:
    """Write pictures, and altered copies of every third, and return the pairs of paths."""
    (root / "copies").mkdir(parents=True)
    planted = set()
    for place in range(len(images)):
        path, copy = root / f"{place:05d}.png", root / "copies" / f"{place:05d}.jpg"
        images.pictures[place].save(path)
        if place % 3 == 0:
            altered(images.pictures[place], rng).save(copy)
            planted.add(frozenset({str(path), str(copy)}))
    return planted


def altered(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Resize, brighten and compress a picture."""
    scale = rng.uniform(0.7, 1.5)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    content = io.BytesIO()
    brighter = ImageEnhance.Brightness(image).enhance(rng.uniform(0.8, 1.2))
    brighter.save(content, "JPEG", quality=int(rng.integers(60, 96)))
    return Image.open(content)


def measure(images: ImageSet, single: ImageSet, recipe: str, epochs: int | None, seed: int, root: Path) -> list[str]:
    """Train on changed labels, and return the cells of what is found."""
    rng = np.random.default_rng(seed)
    flipped = write_flipped(images, root / "flipped", rng)
    data = {"root": str(root / "flipped"), "test_fraction": 0.0, "validation_fraction": 0.0}
    settings: dict[str, Any] = {
        "data": {"class_path": "proxemic.data.OwnImages", "init_args": data},
        "evaluation.select_on": "last",
        "seed": seed,
        **({} if epochs is None else {"training.epochs": epochs}),
    }
    start = time.perf_counter()
    train(recipe, root / "run", overrides=settings, report=lambda _: None)
    trained = time.perf_counter() - start
    embedder = Embedder.load(root / "run")
    start = time.perf_counter()
    suspects = {suspect.path: suspect.score for suspect in clean(root / "flipped", embedder).labels}
    cleaned = time.perf_counter() - start
    paths = sorted(map(str, (root / "flipped").rglob("*.png")))
    truth = [path in flipped for path in paths]
    precision = average_precision_score(truth, [suspects.get(path, 0.0) for path in paths])
    planted = write_duplicates(single, root / "single", rng)
    found = {frozenset({pair.path, pair.of}) for pair in clean(root / "single", embedder).duplicates}
    right = len(found & planted)
    counts = [str(number) for number in (len(images), sum(truth), len(suspects), len(single), len(planted))]
    shares = [f"{share:.3f}" for share in (precision, right / len(planted), right / max(1, len(found)))]
    return [*counts, *shares, f"{trained:.0f}", f"{cleaned:.1f}"]


def main(
    *, omniglot: Path | None = None, seeds: Sequence[int] = (0, 1, 2), epochs: int | None = None, smoke: bool = False
) -> None:
    """Print a row for each seed."""
    torch.set_num_threads(1)
    if omniglot is not None:
        images = single = Omniglot(omniglot, validation_fraction=0.0).load().train
        name, recipe = "Omniglot", "omniglot/mpa-ap"
    else:
        images = Glyphs(train_classes=24 if smoke else 256, test_classes=2, validation_fraction=0.0).load().train
        single = images.select(torch.arange(0, len(images), len(FACES)))
        name, recipe = "Glyphs", "glyphs-small"
    counts = ("images", "flipped", "suspects", "pictures", "planted")
    print_header("data", "seed", *counts, "AP", "recall", "precision", "train s", "clean s")
    for seed in seeds[:1] if smoke else seeds:
        with tempfile.TemporaryDirectory() as folder:
            print_row(name, seed, *measure(images, single, recipe, 4 if smoke else epochs, seed, Path(folder)))


if __name__ == "__main__":
    command(main)
