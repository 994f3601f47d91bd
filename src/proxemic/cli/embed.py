"""``proxemic embed``."""

import argparse
import sys
from functools import partial

from proxemic.errors import UserError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "embed",
        help="embed pictures, with or without labels, into a file of vectors",
        description="Embed pictures by a trained model, and write the vectors with paths and, where there are any, "
        "labels. Stopped or killed, the same command goes on from the folder FILE.parts beside the output, and writes "
        "the same bytes. Under torchrun, several processes share the work: torchrun --nproc-per-node 8 -m proxemic "
        "embed ...",
        allow_abbrev=False,
    )
    parser.add_argument(
        "model", metavar="MODEL", help="a run, a model.safetensors, or an .onnx file with a .json beside it"
    )
    parser.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="folders, .csv or .parquet tables with the column path, pictures, patterns such as 'photos/**/*.jpg', or "
        ".txt files with a path on each line; for a head alone one file of vectors",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FILE",
        help="vectors.parquet or vectors.safetensors, with paths and labels; or vectors.npy, with these in "
        "vectors.paths.csv; may be an address, as sources may: s3://bucket/vectors.parquet",
    )
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="pictures at once (default: 64)")
    parser.add_argument("--workers", type=int, metavar="N", help="processes that read pictures (default: one per core)")
    parser.add_argument(
        "--precision",
        choices=("32-true", "bf16-mixed"),
        default="32-true",
        help="of the network; bf16-mixed may be faster, and is noted in the file (default: 32-true)",
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps (default: auto)")
    parser.add_argument(
        "--strict",
        action="store_true",
        help="pictures that cannot be read are an error; by default they are left out, and listed in "
        "FILE.unreadable.csv either way",
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="ray shares the work among the nodes of a cluster, which see the model and the pictures by the same names",
    )
    parser.add_argument("--ray-address", metavar="ADDRESS", help="auto, or ray://head:10001 (default: this machine)")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Embed, and print."""
    from proxemic.data.remote import path_or_address
    from proxemic.retrieval.bulk import embed_to_file, working_folder
    from proxemic.runs.evaluate import computed_in

    names = ("batch_size", "workers", "precision", "device", "strict", "engine", "ray_address")
    options = {name: getattr(arguments, name) for name in names}
    try:
        written = embed_to_file(
            arguments.model, arguments.sources, arguments.out, **options, report=partial(print, file=sys.stderr)
        )
    except KeyboardInterrupt:
        raise UserError(
            f"Stopped: what was embedded is kept in {working_folder(path_or_address(arguments.out))}, and the same "
            "command goes on there."
        ) from None
    if written is None:
        return
    rate = f", {written.embedded / written.seconds:,.0f} images/s" if written.embedded else ""
    print(f"{written.rows:,} x {written.dim} in {written.path}{computed_in(written.precision)}{rate}")
