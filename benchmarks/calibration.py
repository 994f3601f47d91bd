r"""Measure how many pictures of unknown classes pass the thresholds of `calibrate`, and what its range covers.

    proxemic embed cars.csv --out features.parquet                               # labelled pictures, embedded once
    python benchmarks/calibration.py --photos features.parquet                   # about an hour on one core
    python benchmarks/calibration.py --photos cars.csv                           # embeds the table or folder first
    python benchmarks/calibration.py --smoke                                     # drawn vectors, seconds: does it run?

A random half of the classes is a gallery, and the pictures of the other half search it. The vectors are the features
themselves, whitened, or those of `improve_gallery`. A row holds the share of the unknown pictures that the threshold
promises to let pass and the share that passes, in percent, the range that `calibrate` prints, and the factor between
the first two. *As they are* learns the threshold from the gallery's own vectors, although its head has seen all of its
classes.

The second table draws as many known and unknown classes, calibrates on the known ones, and counts how often the share
of unknown pictures that pass is within the printed range, below and above it. Its features are projected at random to
128 numbers, so that many draws can be whitened.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from measure import command, print_header, print_row
from proxemic.data.embeddings import read_embeddings
from proxemic.data.rows import Rows
from proxemic.retrieval import Gallery, embed_to_file, improve_gallery, whitened_head
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.searching.calibration import Strangers, find_strangers
from proxemic.retrieval.searching.held_out import read_gallery
from proxemic.retrieval.vectors.heads import create_with_head

RATES = (0.1, 0.01)
SAMPLE = 4096  # rows of which `gallery create` learns whitening


def drawn(classes: int, per_class: int, dim: int = 48) -> tuple[Tensor, Tensor]:
    """Draw features of classes that come in families."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(classes // 4, dim, generator=generator)[torch.arange(classes) % (classes // 4)]
    centres += 0.6 * torch.randn(classes, dim, generator=generator)
    labels = torch.arange(classes).repeat_interleave(per_class)
    return centres[labels] + 0.6 * torch.randn(len(labels), dim, generator=generator), labels


@dataclass(frozen=True)
class Halves:
    """Features of known classes with their labels, and of unknown classes."""

    known: Tensor
    labels: Tensor
    unknown: Tensor

    @classmethod
    def draw(cls, features: Tensor, labels: Tensor, classes: int, seed: int) -> "Halves":
        """Draw as many known as unknown classes."""
        order = torch.randperm(int(labels.max()) + 1, generator=torch.Generator().manual_seed(seed))
        known, unknown = (torch.isin(labels, part) for part in order[: 2 * classes].split(classes))
        return cls(features[known], labels[known], features[unknown])

    def names(self) -> tuple[list[str], list[str]]:
        """Return paths and labels of the known pictures."""
        return [f"{row}" for row in range(len(self.labels))], [f"{label:03d}" for label in self.labels.tolist()]

    def plain(self, folder: Path) -> Gallery:
        """Create a gallery of the features."""
        gallery = Gallery.create(folder, dim=self.known.shape[1])
        gallery.add_vectors(self.known, *self.names())
        return gallery

    def whitened(self, folder: Path, dim: int = 512) -> Gallery:
        """Create a gallery of whitened features, as `proxemic gallery create` does."""
        sample = torch.randperm(len(self.known), generator=torch.Generator().manual_seed(0))[:SAMPLE]
        head, (paths, labels) = whitened_head(self.known[sample], dim), self.names()
        with create_with_head(folder, head, "whitened", None, None) as store, torch.no_grad():
            vectors = normalize(head(self.known), dim=1).numpy()
            store.add(vectors, make_items(Rows.of(path=paths, label=labels)), self.known.numpy())
        return Gallery.open(folder)

    def passed(self, gallery: Gallery, threshold: float) -> float:
        """Return the share of the unknown pictures that pass a threshold."""
        is_plain = gallery.store.info.features is None
        vectors = self.unknown if is_plain else gallery.embedder.embed(self.unknown)
        return float((gallery.neighbours(vectors, 1).distances[:, 0] <= threshold).mean())


def strangers_of(gallery: Gallery, *, left_out: bool = True) -> Strangers:
    """Let each class of a gallery play the unknown one, with heads without it or by the gallery's own vectors."""
    held_out = read_gallery(gallery, None, batch_size=64, workers=0, report=lambda _: None)
    return find_strangers(held_out if left_out else replace(held_out, head=None), lambda _: None)


def measure_halves(features: Tensor, labels: Tensor, draws: int) -> None:
    """Print how many pictures of the unknown half pass."""
    classes = (int(labels.max()) + 1) // 2
    print_header("draw", "vectors", "threshold from", "promised", "range", "pass", "factor")
    for seed in range(draws):
        halves = Halves.draw(features, labels, classes, seed)
        with tempfile.TemporaryDirectory() as folder:
            galleries = {
                "features": halves.plain(Path(folder) / "plain"),
                "whitened": halves.whitened(Path(folder) / "whitened"),
            }
            better = improve_gallery(galleries["features"], Path(folder) / "improved")
            if better.address is not None:
                galleries[f"improved ({better.improvement.kept})"] = Gallery.open(better.address)
            for name, gallery in galleries.items():
                found = {"calibrate": strangers_of(gallery)}
                if gallery.store.info.head is not None:
                    found["as they are"] = strangers_of(gallery, left_out=False)
                for origin, strangers in found.items():
                    for rate in RATES:
                        low, high = strangers.span(rate)
                        share = halves.passed(gallery, strangers.threshold(rate))
                        shares = (f"{100 * low:.2f} to {100 * high:.2f}", f"{100 * share:.2f}", f"{share / rate:.2f}")
                        print_row(seed, name, origin, f"{100 * rate:g}", *shares)


def cover(
    features: Tensor, labels: Tensor, classes: int, draws: int
) -> Iterator[tuple[str, float, tuple[float, float], float]]:
    """Yield the vectors, the rate, the range and the share of the unknown pictures that pass."""
    generator = torch.Generator().manual_seed(0)
    features = normalize(features) @ torch.randn(features.shape[1], 128, generator=generator)
    for seed in range(draws):
        halves = Halves.draw(features, labels, classes, 1000 + seed)
        with tempfile.TemporaryDirectory() as folder:
            galleries = {
                "features": halves.plain(Path(folder) / "plain"),
                "whitened": halves.whitened(Path(folder) / "whitened", 64),
            }
            for name, gallery in galleries.items():
                strangers = strangers_of(gallery)
                for rate in RATES:
                    yield name, rate, strangers.span(rate), halves.passed(gallery, strangers.threshold(rate))


def measure_coverage(features: Tensor, labels: Tensor, classes: int, draws: int) -> None:
    """Print how often the printed range covers the share that passes."""
    cells: dict[tuple[str, float], list[tuple[float, float, float]]] = {}
    for name, rate, span, share in cover(features, labels, classes, draws):
        cells.setdefault((name, rate), []).append((*span, share))
    print(f"\n{draws} draws of {classes} known and {classes} unknown classes, in percent")
    print_header("vectors", "promised", "mean that pass", "mean range", "within", "below", "above")
    for (name, rate), found in cells.items():
        lows, highs, shares = np.array(found).T
        below, above = (shares < lows).mean(), (shares > highs).mean()
        span = f"{100 * lows.mean():.2f} to {100 * highs.mean():.2f}"
        kinds = (f"{100 * part:.1f}" for part in (1 - below - above, below, above))
        print_row(name, f"{100 * rate:g}", f"{100 * shares.mean():.2f}", span, *kinds)


def main(
    *, photos: Path | None = None, draws: int = 2, covered: int = 200, classes: int = 20, smoke: bool = False
) -> None:
    """Embed the pictures unless a file of vectors is given, and print both tables."""
    torch.set_num_threads(1)
    if smoke or photos is None:
        features, labels = drawn(80, 12)
        draws, covered = 1, 2
    else:
        file = photos
        with tempfile.TemporaryDirectory() as folder:
            if photos.is_dir() or photos.suffix == ".csv":
                file = Path(folder) / "features.parquet"
                embed_to_file([str(photos)], file)
            read = read_embeddings(file)
        assert read.embeddings is not None
        assert read.has("label"), f"{photos} has no labels"
        features, labels = read.embeddings, read.numbers("label")[0]
    measure_halves(features, labels, draws)
    measure_coverage(features, labels, classes, covered)


if __name__ == "__main__":
    command(main)
