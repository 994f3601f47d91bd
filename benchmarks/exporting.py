"""What exported files differ by from the model, backbone by backbone: embeddings, Recall@1, megabytes.

    python benchmarks/exporting.py                             # on 60 characters in 12 typefaces
    python benchmarks/exporting.py photos                      # a folder with a folder of pictures for each class
    python benchmarks/exporting.py --epochs 1                  # with batch norms that have a tenth of where they begin
    python benchmarks/exporting.py --smoke                     # the small network alone, on noise: does it run?

Each network is trained for some epochs on half of the classes, from random weights, so that its activations are those
of pictures. The other half of the classes is the test, on which `proxemic export` compares: what it refuses ends the
benchmark.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measure import command, print_header, print_row, write_photographs
from proxemic import train
from proxemic.data import Glyphs
from proxemic.retrieval import export

NETWORKS = {"convnet": 64, "resnet50": 64, "bn_inception": 64, "iresnet18": 112, "vit_tiny_patch16_224": 64}
"""Each with the side of its images."""
EPOCHS = 3
"""Of 22 steps each, after which running statistics have 0.9^66, or 0.1 %, of where they began, at 0 and 1. After nine
steps they have 39 %, which leaves a deep network without shortcuts next to nothing to tell pictures apart by."""
OWN_VALUES: dict[str, dict[str, Any]] = {
    "bn_inception": {
        "images.channel_order": "bgr",
        "images.white": 255,
        "images.mean": [104, 117, 128],
        "images.std": [1, 1, 1],
    },
    "iresnet18": {"model.head": "none", "model.embedding_size": 512},
}
WAYS: dict[str, dict[str, Any]] = {
    "onnx": {},
    "onnx half": {"half": True},
    "onnx int8": {"int8": True},
    "torch": {"to": "torch"},
}


def train_run(network: str, pictures: Path, out: Path, epochs: int) -> None:
    """Train a network for some epochs."""
    overrides = {
        "data.root": str(pictures.absolute()),
        "data.test_fraction": 0.5,
        "data.validation_fraction": 0,
        "model.backbone": network,
        "images.size": NETWORKS[network],
        "batches.size": 16,
        "training.epochs": epochs,
        "training.accelerator": "cpu",
        "evaluation.select_on": "last",
        "evaluation.start": False,
        "evaluation.untrained": False,
        **OWN_VALUES.get(network, {}),
    }
    train("own", out, overrides=overrides, progress=False)


def write_characters(folder: Path) -> Path:
    """Write a folder with a picture for each typeface, for each of 60 characters."""
    images = Glyphs(test_classes=60).load().test_images
    for place, label in enumerate(images.labels.tolist()):
        file = folder / "pictures" / images.class_names[label].split()[0] / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        images.pictures[place].save(file)
    return folder / "pictures"


def write_noise(folder: Path) -> Path:
    """Write eight classes of three pictures."""
    (folder / "noise").mkdir()
    for number, picture in enumerate(write_photographs(folder / "noise", 24, (96, 72))):
        place = folder / "pictures" / f"class {number % 8}"
        place.mkdir(parents=True, exist_ok=True)
        picture.rename(place / picture.name)
    return folder / "pictures"


def main(
    pictures: Path | None = None,
    *,
    networks: Sequence[str] = tuple(NETWORKS),
    epochs: int = EPOCHS,
    smoke: bool = False,
) -> None:
    """Print a row for each network and kind of file."""
    print_header("backbone", "file", "MB", "largest difference", "Recall@1 of the model", "of the file", "images")
    with TemporaryDirectory() as made:
        folder = Path(made)
        pictures = write_noise(folder) if smoke else pictures or write_characters(folder)
        for network in ["convnet"] if smoke else networks:
            train_run(network, pictures, folder / network, 1 if smoke else epochs)
            for way in ["onnx int8"] if smoke else WAYS:
                found = export(folder / network, **WAYS[way])
                recalls = (f"{100 * recall:.2f}" for recall in (found.recall, found.exported_recall))
                cells = (f"{found.bytes / 1e6:.1f}", f"{found.difference:.1e}", *recalls, f"{found.images:,}")
                print_row(network, way, *cells)


if __name__ == "__main__":
    command(main)
