"""``proxemic calibrate``."""

import argparse
import sys
from functools import partial

from proxemic.cli.pictures import add_reading, check_reading, data_root
from proxemic.errors import UserError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "calibrate",
        help="learn from held-out classes how near a picture must be to be recognised",
        description="Learn thresholds on the distance for false accept rates, from classes that a model was not "
        "trained on: a run's validation classes, or others. Each picture searches those of all other classes: a false "
        "accept is one whose nearest picture there is within the threshold. They are kept in calibration.json beside "
        "the model, where proxemic recognize finds them.",
        epilog="--data.root SOURCE takes other labelled images, a folder or a table, or a file of labelled vectors; "
        "classes that the run was trained on are left out, and those of its test if there are others. With --gallery, "
        "SOURCE has pictures of unknown classes, with or without labels. Intervals come from a bootstrap over classes; "
        "with fewer than 20 there are none.",
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="a run directory, a model.safetensors, or an .onnx file")
    parser.add_argument(
        "--gallery",
        metavar="GALLERY",
        help="learn thresholds for this gallery, at its size: each of its classes in turn is the unknown one, or those "
        "of --data.root are",
    )
    parser.add_argument(
        "--split",
        choices=("validation", "test"),
        help="which classes of the run (default: validation); what is measured on its test classes afterwards is too "
        "good",
    )
    parser.add_argument(
        "--rates", default="0.1,0.01,0.001", metavar="RATES", help="false accept rates (default: 0.1,0.01,0.001)"
    )
    parser.add_argument("--level", type=float, default=0.95, help="of the confidence intervals (default: 0.95)")
    parser.add_argument(
        "--resamples", type=int, default=2000, help="of the bootstrap, up to 100,000 (default: 2000); 0: no intervals"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap (default: 0)")
    add_reading(parser)
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "markdown"), default="table", help="of what is printed"
    )
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Calibrate, and print."""
    check_reading(arguments)
    print(f"Calibrating {arguments.model}", file=sys.stderr, flush=True)  # before what takes seconds to import
    from proxemic.retrieval import calibrate
    from proxemic.retrieval.thresholds import calibration_file

    if arguments.resamples < 0:
        raise UserError(f"--resamples is {arguments.resamples}, but must be 0 or more.")
    calibration = calibrate(
        arguments.model,
        data_root(flags),
        gallery=arguments.gallery,
        split=arguments.split,
        rates=_rates(arguments.rates),
        level=arguments.level,
        resamples=arguments.resamples,
        seed=arguments.seed,
        batch_size=arguments.batch_size,
        workers=arguments.workers,
        report=partial(print, file=sys.stderr),
    )
    print(calibration.text(arguments.format))
    if arguments.format == "table":
        print(f"Kept in {calibration_file(arguments.model)}")


def _rates(text: str) -> list[float]:
    try:
        rates = [float(word) for word in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < 1 for rate in rates):
        raise UserError(f"--rates is {text}, but must be rates above 0 and below 1 with commas, as 0.1,0.01 is.")
    return rates
