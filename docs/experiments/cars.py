"""Prepare Cars196 for the experiments: the photographs with their splits, and features of an ImageNet network.

    python docs/experiments/cars.py --data.root cars196.tar --out runs/cars

--data.root is a folder, or a tar, with a table cars.csv (path,label,split) of the photographs: split is train for the
classes 1 to 98 and test for 99 to 196. In --out it leaves

- photographs.csv, the table of recipes cars-pretrained/*: the last 24 training classes by name validate, most of
  which belong to makers that the classes before them do not have;
- features.parquet, the file of recipes cars-features/*: the pooled features of an untouched EfficientNet-Lite0 of whole
  photographs squeezed to 224 pixels, with the same splits;
- all-training.csv, for the reality check (--data.labels), which makes folds of all training classes.

It takes about four minutes on one core. The same command continues after a stop.
"""

import argparse
import csv
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import proxemic
from proxemic.data import Preprocessing
from proxemic.files import write_atomically, write_csv
from proxemic.models import ModelConfig, build_model, save_model
from proxemic.retrieval import embed_to_file


def write_tables(data: Path, out: Path) -> list[str]:
    """Write both tables; return the split of each photograph."""
    if not (data / "cars.csv").is_file():
        raise SystemExit(f"{data} holds no cars.csv: give the archive or folder of docs/experiments/cars.md.")
    with (data / "cars.csv").open(encoding="utf-8", newline="") as file:
        rows = [(str((data / row["path"]).resolve()), row["label"], row["split"]) for row in csv.DictReader(file)]
    validation = sorted({label for _, label, split in rows if split == "train"})[-24:]
    splits = ["validation" if label in validation else split for _, label, split in rows]
    columns = ("path", "label", "split")
    write_csv(out / "all-training.csv", columns, rows)
    write_csv(out / "photographs.csv", columns, [(*row[:2], split) for row, split in zip(rows, splits, strict=True)])
    return splits


def write_features(splits: list[str], out: Path) -> None:
    """Embed all photographs by the pretrained network."""
    network = ModelConfig(
        "tf_efficientnet_lite0", pretrained=True, head="none", embedding_size=1280, normalize=False, image_size=224
    )
    preprocessing = Preprocessing(size=224, resize=None, reduce=True, mean=(0.5,) * 3, std=(0.5,) * 3)
    save_model(out / "network", build_model(network), preprocessing.as_dict())
    embedded = embed_to_file(out / "photographs.csv", out / "embedded.parquet", out / "network", workers=0, strict=True)
    assert embedded is not None
    table = pq.read_table(out / "embedded.parquet").append_column("split", pa.array(splits))
    with write_atomically(out / "features.parquet") as temporary:
        pq.write_table(table, temporary)
    (out / "embedded.parquet").unlink()
    print(f"{embedded.rows:,} photographs, {embedded.dim:,} features each, in {embedded.seconds:.0f} s: {out}")


def main() -> None:
    """Unpack the photographs, split and embed them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data.root", dest="data", type=Path, required=True, metavar="TAR|FOLDER")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    arguments = parser.parse_args()
    proxemic.keep_freed_memory()
    data, out = arguments.data, arguments.out
    if data.is_file():
        try:
            with tarfile.open(data) as archive:
                archive.extractall(out / "data", filter="data")
        except tarfile.TarError as error:
            reason = str(error).splitlines()[0].rstrip(":")
            raise SystemExit(f"{data} is no whole tar archive ({reason}): fetch it again.") from None
        data = out / "data"
    splits = write_tables(data, out)
    if not (out / "features.parquet").exists():
        write_features(splits, out)


if __name__ == "__main__":
    main()
