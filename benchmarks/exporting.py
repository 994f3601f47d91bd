"""What exported files differ by from the model, backbone by backbone: embeddings, Recall@1, megabytes.

    python benchmarks/exporting.py                             # on 60 characters in 12 typefaces
    python benchmarks/exporting.py photos                      # a folder with a folder of pictures for each class
    python benchmarks/exporting.py --epochs 1                  # with batch norms that have a tenth of where they begin
    python benchmarks/exporting.py --smoke                     # the small network alone, on noise: does it run?

Each network is trained for some epochs on half of the classes, from random weights, so that its activations are those
of pictures. The other half of the classes is the test, on which `proxemic export` compares: what it refuses ends the
benchmark.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loading import write_photographs
from proxemic import train
from proxemic.data import ArrayPixels, Glyphs
from proxemic.retrieval import export

NETWORKS = {"convnet": 64, "resnet50": 64, "bn_inception": 64, "iresnet18": 112, "vit_tiny_patch16_224": 64}
"""Each with the side of its images."""
CHARACTERS = 60
EPOCHS = 3
"""Of 22 steps each, after which running statistics have 0.9^66, or 0.1 %, of where they began, at 0 and 1. After nine
steps they have 39 %, which leaves a deep network without shortcuts next to nothing to tell pictures apart by."""
CAFFE: dict[str, Any] = {
    "images.channel_order": "bgr",
    "images.white": 255,
    "images.mean": [104, 117, 128],
    "images.std": [1, 1, 1],
}
WAYS: dict[str, dict[str, Any]] = {
    "onnx": {},
    "onnx half": {"half": True},
    "onnx int8": {"int8": True},
    "torch": {"to": "torch"},
}


def train_run(network: str, pictures: Path, run: Path, epochs: int) -> None:
    """A run of some epochs."""
    model = {"model.head": "none", "model.embedding_size": 512} if network.startswith("iresnet") else {}
    train(
        "own",
        run,
        overrides={
            "data.root": str(pictures),
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
            **model,
            **(CAFFE if network == "bn_inception" else {}),
        },
        progress=False,
    )


def write_characters(folder: Path) -> Path:
    """A folder with a picture for each typeface, for each of some characters."""
    images = Glyphs(test_classes=CHARACTERS).load().test
    assert images is not None
    assert isinstance(images.pixels, ArrayPixels)
    for place, label in enumerate(images.labels.tolist()):
        file = folder / "pictures" / images.class_names[label].split()[0] / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        images.pixels.load(place).save(file)
    return folder / "pictures"


def write_noise(folder: Path) -> Path:
    """Eight classes of three pictures."""
    (folder / "noise").mkdir()
    for number, picture in enumerate(write_photographs(folder / "noise", 24, (96, 72))):
        place = folder / "pictures" / f"class {number % 8}"
        place.mkdir(parents=True, exist_ok=True)
        picture.rename(place / picture.name)
    return folder / "pictures"


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "pictures", type=Path, nargs="?", help="a folder with a folder for each class (default: characters)"
    )
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS], choices=[*NETWORKS])
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS])
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="that each network is trained for")
    parser.add_argument("--smoke", action="store_true", help="does it run?")
    args = parser.parse_args(argv)
    print("| backbone | file | MB | largest difference | Recall@1 of the model | of the file | images |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with TemporaryDirectory() as made:
        folder = Path(made)
        pictures = write_noise(folder) if args.smoke else args.pictures or write_characters(folder)
        for network in ["convnet"] if args.smoke else args.networks:
            train_run(network, pictures.absolute(), folder / network, 1 if args.smoke else args.epochs)
            for way in ["onnx int8"] if args.smoke else args.ways:
                found = export(folder / network, **WAYS[way])
                recalls = f"{100 * found.recall:.2f} | {100 * found.exported_recall:.2f}"
                cells = f"{found.bytes / 1e6:.1f} | {found.difference:.1e} | {recalls} | {found.images:,}"
                print(f"| {network} | {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
