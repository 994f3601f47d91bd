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

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from proxemic.data import Preprocessing
from proxemic.data.embeddings import LabelledEmbeddings, number_labels
from proxemic.data.tables import IMAGE_COLUMNS, read_table
from proxemic.metrics.open_set import leave_classes_out
from proxemic.models.timm_models import timm_backbone
from proxemic.retrieval import Embedder, Gallery, calibrate
from proxemic.retrieval.curation.clustering import cluster
from proxemic.runs.directory import RunDirectory
from proxemic.tables import Table, percent
from proxemic.training import train

RATE = 0.01


def write_vectors(photos: Path, file: Path) -> None:
    """Embed the photographs of a table."""
    rows = read_table(photos, IMAGE_COLUMNS)
    network = nn.Sequential(
        timm_backbone("tf_efficientnet_lite0", pretrained=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    half = (0.5, 0.5, 0.5)
    embedder = Embedder(network, Preprocessing(size=160, resize=None, reduce=True, mean=half, std=half))
    vectors = embedder.embed([photos.parent / name for name in rows.names])
    columns = {name: rows.texts(name) for name in ("label", "split")}
    pq.write_table(pa.table({"embedding": [*vectors.numpy()], **columns}), file)


def write_drawn_vectors(file: Path) -> None:
    """Draw vectors of 60 classes that come in families."""
    rng, labels = np.random.default_rng(0), np.arange(60).repeat(10)
    centres = rng.normal(size=(15, 32))[np.arange(60) % 15] + 0.5 * rng.normal(size=(60, 32))
    vectors = centres[labels] + 0.5 * rng.normal(size=(600, 32))
    split = ["train" if label < 30 else "test" for label in labels]
    columns = {"label": [f"{label:02d}" for label in labels], "split": split}
    pq.write_table(pa.table({"embedding": [*vectors.astype(np.float32)], **columns}), file)


def measure_unknown(
    embedder: Embedder, vectors: Tensor, labels: np.ndarray, run: Path, sizes: Sequence[int], draws: int
) -> Table:
    """Learn thresholds, and count how many unknown photographs pass."""
    classes = RunDirectory(run).read_classes()
    assert classes is not None
    assert classes.validation is not None
    tested = np.setdiff1d(labels, [*classes.train, *classes.validation])
    found: dict[str, list[list[float]]] = {}

    def some(names: np.ndarray) -> tuple[Tensor, list[str]]:
        rows = np.flatnonzero(np.isin(labels, names))
        return vectors[torch.from_numpy(rows)], labels[rows].tolist()

    for seed in range(draws):
        rng = np.random.default_rng(seed)
        order = rng.permutation(tested)
        known, names = some(order[: len(order) // 2])
        unknown, _ = some(order[len(order) // 2 :])
        with tempfile.TemporaryDirectory() as folder:
            gallery = Gallery.create(Path(folder) / "gallery", embedder)
            searched = embedder.embed(known)
            gallery.add_vectors(searched, [str(row) for row in range(len(names))], names)
            numbers = number_labels(names).labels
            assert numbers is not None
            left_out = leave_classes_out(searched, numbers, distance="cosine", false_alarm_rates=[RATE]).non_mated
            nearest = gallery.neighbours(embedder.embed(unknown), 1).distances[:, 0]
            options = {"rates": [RATE], "resamples": 0, "keep": False}
            learnt = {"the gallery": calibrate(embedder, gallery=gallery, **options)}
            for size in sizes:
                drawn, of = some(rng.permutation(classes.validation)[:size])
                content = LabelledEmbeddings(drawn, number_labels(of))
                learnt[f"{size} classes"] = calibrate(embedder, content, **options)
        for name, calibration in learnt.items():
            threshold = calibration.thresholds[0]
            passed = [float((left_out.distances <= threshold.threshold).double().mean())]
            passed.append(float((nearest <= threshold.threshold).mean()))
            found.setdefault(name, []).append([threshold.false_accepts, *passed])
    rows = [
        [
            name,
            *(percent(fmean(column)) for column in zip(*values, strict=True)),
            percent(max(each[2] for each in values)),
        ]
        for name, values in found.items()
    ]
    header = ["threshold learnt from", "false accepts there", "gallery, classes left out", "unknown classes", "at most"]
    title = f"Thresholds for a rate of {RATE:.0%}: false accepts in percent, means of {draws} draws"
    return Table(header, rows, title)


def measure_groups(embedder: Embedder, vectors: Tensor, labels: np.ndarray, run: Path, folder: Path) -> Table:
    """Group the test classes."""
    classes = RunDirectory(run).read_classes()
    assert classes is not None
    trained, held_out = np.isin(labels, classes.train), np.isin(labels, classes.validation or ())
    content = LabelledEmbeddings(vectors[torch.from_numpy(held_out)], number_labels(labels[held_out].tolist()))
    calibrate(embedder, content, rates=[0.1, RATE], resamples=0)
    rows = ~trained & ~held_out
    file, count = folder / "test.parquet", len({*labels[rows]})
    pq.write_table(pa.table({"embedding": [*vectors[torch.from_numpy(rows)].numpy()], "label": labels[rows]}), file)
    ways: dict[str, dict[str, object]] = {
        "`--method hdbscan`, the default without a calibration": {"method": "hdbscan"},
        "the default with a calibration": {},
        "`--rate 0.1`": {"rate": 0.1},
        f"`--groups {count}`, the right number": {"groups": count},
        f"`--groups {count // 2}`": {"groups": count // 2},
        f"`--groups {2 * count}`": {"groups": 2 * count},
    }
    found = {name: cluster(file, embedder, report=lambda _: None, **way) for name, way in ways.items()}  # pyright: ignore[reportArgumentType]
    cells = []
    for name, each in found.items():
        assert each.agreement is not None
        none = float((each.numbers < 0).double().mean())
        values = (none, each.agreement.f1, each.agreement.precision, each.agreement.recall)
        cells.append([name, len(each.medoids), *map(percent, values), f"{each.agreement.nmi:.2f}"])
    header = ["", "groups", "in none", "F1", "precision", "recall", "NMI"]
    return Table(header, cells, f"{int(rows.sum()):,} photographs of {count} classes; of pairs, in percent")


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="a table of photographs, to be embedded")
    parser.add_argument("--vectors", type=Path, help="where their vectors are kept (.parquet)")
    parser.add_argument("--smoke", action="store_true", help="drawn vectors, few epochs")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        file = args.vectors or Path(folder) / "vectors.parquet"
        if args.smoke:
            write_drawn_vectors(file)
        elif args.photos is not None:
            write_vectors(args.photos, file)
        settings = {"data.root": str(file), "training.accelerator": "cpu", "training.epochs": 2 if args.smoke else 30}
        run = train("own-vectors", Path(folder) / "run", overrides=settings, progress=False, report=lambda _: None).path
        content = pq.read_table(file)
        vectors = torch.from_numpy(np.stack(content["embedding"].to_numpy())).float()
        labels = np.array(content["label"].to_pylist())
        embedder = Embedder.load(run)
        sizes, draws = ((3, 7), 1) if args.smoke else ((7, 20), 10)
        print(measure_unknown(embedder, vectors, labels, run, sizes, draws).text("markdown"), "", sep="\n")
        print(measure_groups(embedder, vectors, labels, run, Path(folder)).text("markdown"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
