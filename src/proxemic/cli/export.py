"""``proxemic export``."""

import argparse
import sys
from functools import partial

from proxemic.cli.pictures import add_reading, check_reading, data_root


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "export",
        help="write a model as an ONNX file, or a program of torch, with a model card",
        description="Write a trained model for other programs, with how pictures are prepared (NAME.json) and a model "
        "card (NAME.md) beside it. The file is compared with the model on images first: unless embeddings differ by at "
        "most 1e-4 and Recall@1 is the same, nothing is written. What --half and --int8 cost in Recall@1 is printed.",
        epilog="--data.root SOURCE compares on other labelled pictures, a folder or a table, than the run's test "
        "images.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="a run directory, or a model.safetensors")
    parser.add_argument(
        "--to", choices=("onnx", "torch"), default="onnx", help="ONNX, or torch.export's .pt2 (default: onnx)"
    )
    parser.add_argument("--out", metavar="FILE", help="(default: export/model.onnx and the like beside the model)")
    precision = parser.add_mutually_exclusive_group()
    precision.add_argument("--half", action="store_true", help="the backbone in float16: half the size, for GPUs")
    precision.add_argument(
        "--int8", action="store_true", help="8 bits, for processors, calibrated on the run's training images"
    )
    parser.add_argument(
        "--images", type=int, metavar="N", help="compare on about N images, of whole classes (default: on all)"
    )
    parser.add_argument("--license", metavar="NAME", help="for the model card, as hubs name it: mit, cc-by-nc-4.0")
    parser.add_argument("--unfinished", action="store_true", help="also export what a run has that is not finished")
    add_reading(parser)
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Export, and print."""
    check_reading(arguments)
    print(f"Exporting {arguments.model}", file=sys.stderr, flush=True)  # before what takes seconds to import
    from proxemic.retrieval import export

    exported = export(
        arguments.model,
        arguments.to,
        arguments.out,
        source=data_root(flags),
        most_images=arguments.images,
        half=arguments.half,
        int8=arguments.int8,
        licence=arguments.license,
        unfinished=arguments.unfinished,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        report=partial(print, file=sys.stderr),
    )
    print(exported.text())
