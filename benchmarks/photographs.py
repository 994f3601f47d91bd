"""How many photographs of unknown classes a threshold lets pass, and how well photographs are grouped without labels.

    nice python benchmarks/photographs.py --photos cars.csv --vectors cars.parquet   # some minutes to embed 8,000
    nice python benchmarks/photographs.py --vectors cars.parquet                     # again, seconds
    python benchmarks/photographs.py --smoke                                         # drawn vectors: does it run?

The table has the columns path, label and split. Its photographs are embedded once by an EfficientNet-Lite0 with
ImageNet's weights (of the extra pretrained), and a head is trained on the classes of the split train (recipe
own-vectors).

Unknown: thresholds for a false accept rate of 1 % are learnt from some of the validation classes, or from the gallery,
which has a random half of the test classes. Photographs of the other half are unknown: each searches the gallery.
Means of ten draws. Groups: the test classes are grouped by `cluster`, and compared with their labels.
"""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from measure import command
from proxemic.arrays import number_texts
from proxemic.data import Preprocessing
from proxemic.data.formats.tables import IMAGE_COLUMNS, read_table
from proxemic.data.rows import Rows
from proxemic.metrics.open_set import nearest_other_classes
from proxemic.models.backbones.timm_models import timm_backbone
from proxemic.retrieval import Embedder, Gallery, calibrate
from proxemic.retrieval.curation.clustering import cluster
from proxemic.runs.directory import RunDirectory
from proxemic.tables import Table, percent
from proxemic.training import train

RATE = 0.01


def write_vectors(photos: Path, file: Path) -> None:
    """Embed the photographs of a table."""
    rows = read_table(photos, IMAGE_COLUMNS)
    backbone = timm_backbone("tf_efficientnet_lite0", pretrained=True)
    network = nn.Sequential(backbone, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    half = (0.5, 0.5, 0.5)
    embedder = Embedder(network, Preprocessing(size=160, resize=None, reduce=True, mean=half, std=half))
    vectors = embedder.embed([photos.parent / name for name in rows.names]).numpy()
    write_table(file, vectors, **{name: rows.texts(name) for name in ("label", "split")})


def write_drawn_vectors(file: Path) -> None:
    """Draw vectors of 60 classes that come in families."""
    rng, labels = np.random.default_rng(0), np.arange(60).repeat(10)
    centres = rng.normal(size=(15, 32))[np.arange(60) % 15] + 0.5 * rng.normal(size=(60, 32))
    vectors = (centres[labels] + 0.5 * rng.normal(size=(600, 32))).astype(np.float32)
    split = ["train" if label < 30 else "test" for label in labels]
    write_table(file, vectors, label=[f"{label:02d}" for label in labels], split=split)


def write_table(file: Path, vectors: np.ndarray, **columns: Any) -> None:
    """Write vectors and other columns."""
    pq.write_table(pa.table({"embedding": [*vectors], **columns}), file)


@dataclass(frozen=True)
class Photographs:
    """Vectors and their labels, and the run of a head on some of the classes."""

    vectors: Tensor
    labels: np.ndarray
    run: Path

    @cached_property
    def embedder(self) -> Embedder:
        """The head."""
        return Embedder.load(self.run)

    @cached_property
    def classes(self) -> tuple[np.ndarray, np.ndarray]:
        """Names of the classes that validated, and of those of the test."""
        classes = RunDirectory(self.run).read_classes()
        assert classes is not None
        assert classes.validation is not None
        return np.array(classes.validation), np.setdiff1d(self.labels, [*classes.train, *classes.validation])

    def of(self, names: np.ndarray) -> tuple[Tensor, list[str]]:
        """Take the photographs of some classes."""
        rows = np.flatnonzero(np.isin(self.labels, names))
        return self.vectors[torch.from_numpy(rows)], self.labels[rows].tolist()

    def labelled(self, names: np.ndarray) -> Rows:
        """Take the same with numbers as labels."""
        vectors, labels = self.of(names)
        return Rows.of(vectors, label=labels)


def measure_unknown(photographs: Photographs, sizes: Sequence[int], draws: int) -> Table:
    """Learn thresholds, and count how many unknown photographs pass."""
    embedder, (validation, tested) = photographs.embedder, photographs.classes
    passed = defaultdict[str, list[tuple[float, ...]]](list)
    options: dict[str, Any] = {"rate": RATE, "keep": False}
    for seed in range(draws):
        rng = np.random.default_rng(seed)
        order = rng.permutation(tested)
        known, names = photographs.of(order[: len(order) // 2])
        unknown, _ = photographs.of(order[len(order) // 2 :])
        with tempfile.TemporaryDirectory() as folder:
            gallery = Gallery.create(Path(folder) / "gallery", embedder)
            searched = embedder.embed(known)
            gallery.add_vectors(searched, [str(row) for row in range(len(names))], names)
            numbers, _ = number_texts(names)
            left_out, _ = nearest_other_classes(searched, numbers, searched, numbers, distance="cosine", k=1)
            nearest = gallery.neighbours(embedder.embed(unknown), 1).distances[:, 0]
            learnt = {"the gallery": calibrate(embedder, gallery=gallery, **options)}
            for size in sizes:
                content = photographs.labelled(rng.permutation(validation)[:size])
                learnt[f"{size} classes"] = calibrate(embedder, content, **options)
        for name, calibration in learnt.items():
            shares = [float(np.mean(np.asarray(item) <= calibration.threshold)) for item in (left_out, nearest)]
            passed[name].append((calibration.false_accepts, *shares))
    means = {name: [fmean(column) for column in zip(*values, strict=True)] for name, values in passed.items()}
    rows = [[name, *map(percent, [*means[name], max(shares[-1] for shares in passed[name])])] for name in passed]
    header = ["threshold learnt from", "false accepts there", "gallery, classes left out", "unknown classes", "at most"]
    title = f"Thresholds for a rate of {RATE:.0%}: false accepts in percent, means of {draws} draws"
    return Table(header, rows, title)


def measure_groups(photographs: Photographs) -> Table:
    """Group the test classes."""
    validation, tested = photographs.classes
    calibrate(photographs.embedder, photographs.labelled(validation), rate=0.1)
    file, count = photographs.run.with_name("test.parquet"), len(tested)
    vectors, labels = photographs.of(tested)
    write_table(file, vectors.numpy(), label=labels)
    ways: dict[str, dict[str, Any]] = {
        "`--method hdbscan`, the default without a calibration": {"method": "hdbscan"},
        "the default with a calibration": {},
        "`--rate 0.1`": {"rate": 0.1},
        f"`--groups {count}`, the right number": {"groups": count},
        f"`--groups {count // 2}`": {"groups": count // 2},
        f"`--groups {2 * count}`": {"groups": 2 * count},
    }
    cells = []
    for name, way in ways.items():
        found = cluster(file, photographs.embedder, report=lambda _: None, **way)
        agreement = found.agreement
        assert agreement is not None
        none = float((found.numbers < 0).double().mean())
        values = map(percent, (none, agreement.f1, agreement.precision, agreement.recall))
        cells.append([name, len(found.medoids), *values, f"{agreement.nmi:.2f}"])
    header = ["", "groups", "in none", "F1", "precision", "recall", "NMI"]
    metrics = RunDirectory(photographs.run).read_metrics()
    assert "test" in metrics
    recall = percent(metrics["test"]["recall@1"])
    title = f"{len(labels):,} photographs of {count} classes, with a Recall@1 of {recall}%; of pairs, in percent"
    return Table(header, cells, title)


def main(*, photos: Path | None = None, vectors: Path | None = None, smoke: bool = False) -> None:
    """Embed the table of photographs, if there is one, train a head on the vectors, and measure."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        file = vectors or Path(folder) / "vectors.parquet"
        if smoke:
            write_drawn_vectors(file)
        elif photos is not None:
            write_vectors(photos, file)
        settings = {"data.root": str(file), "training.accelerator": "cpu", "training.epochs": 2 if smoke else 30}
        run = train("own-vectors", Path(folder) / "run", overrides=settings, progress=False, report=lambda _: None).path
        content = pq.read_table(file)
        embeddings = torch.from_numpy(np.stack(content["embedding"].to_numpy())).float()
        photographs = Photographs(embeddings, np.array(content["label"].to_pylist()), run)
        print(measure_unknown(photographs, *(((3, 7), 1) if smoke else ((7, 20), 10))).text("markdown"))
        print(f"\n{measure_groups(photographs).text('markdown')}")


if __name__ == "__main__":
    command(main)
