"""What exported files differ by from the model, backbone by backbone: embeddings, Recall@1, megabytes.

    python benchmarks/exporting.py photos                      # a folder with a folder of pictures for each class
    python benchmarks/exporting.py --smoke                     # the small network alone, on noise: does it run?

Each network is trained for an epoch on half of the classes, from random weights, so that its batch norms have
statistics and its activations are those of pictures. The other half of the classes is the test, on which
`proxemic export` compares: what it refuses ends the benchmark.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from loading import write_photographs
from proxemic import train
from proxemic.retrieval import export

NETWORKS = {"convnet": 64, "resnet50": 64, "bn_inception": 64, "iresnet18": 112, "vit_tiny_patch16_224": 64}
"""Each with the side of its images."""
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


def train_run(network: str, pictures: Path, run: Path) -> None:
    """A run of one epoch."""
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
            "training.epochs": 1,
            "training.accelerator": "cpu",
            "evaluation.select_on": "last",
            "evaluation.start": False,
            "evaluation.untrained": False,
            **model,
            **(CAFFE if network == "bn_inception" else {}),
        },
        progress=False,
    )


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
    parser.add_argument("pictures", type=Path, nargs="?", help="a folder with a folder for each class")
    parser.add_argument("--networks", nargs="+", default=[*NETWORKS], choices=[*NETWORKS])
    parser.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS])
    parser.add_argument("--smoke", action="store_true", help="does it run?")
    args = parser.parse_args(argv)
    if not (args.pictures or args.smoke):
        parser.error("a folder of pictures is missing")
    print("| backbone | file | MB | largest difference | Recall@1 of the model | of the file | images |")
    print("|---|---|---:|---:|---:|---:|---:|")
    with TemporaryDirectory() as made:
        folder = Path(made)
        pictures = write_noise(folder) if args.smoke else args.pictures
        for network in ["convnet"] if args.smoke else args.networks:
            train_run(network, pictures.absolute(), folder / network)
            for way in ["onnx int8"] if args.smoke else args.ways:
                found = export(folder / network, **WAYS[way])
                recalls = f"{100 * found.recall:.2f} | {100 * found.exported_recall:.2f}"
                cells = f"{found.bytes / 1e6:.1f} | {found.difference:.1e} | {recalls} | {found.images:,}"
                print(f"| {network} | {way} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
