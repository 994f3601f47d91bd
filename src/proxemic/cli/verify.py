"""``proxemic verify``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.data.faces import FacePairs
    from proxemic.training import EvaluationConfig

__all__ = ["add_parser", "run"]

SETS = "lfw,cfp_fp,agedb_30,calfw,cplfw"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "verify",
        help="judge a model of faces by pairs: LFW, CFP-FP, AgeDB-30, CALFW, CPLFW",
        description="Say of pairs of faces whether they show one person, each of ten folds by the threshold that is "
        "best on the other nine.",
        epilog="A run's table is kept in its verification.json, unless --out names another file.",
        allow_abbrev=False,
    )
    parser.add_argument("target", type=Path, metavar="RUN|FILE", help="a run directory or a model.safetensors")
    parser.add_argument("--sets", default=SETS, metavar="NAMES", help=f"which, with commas (default: {SETS})")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="the folder with NAME.bin of each set, or with lfw/ and pairs.txt (default: the run's data.root)",
    )
    parser.add_argument("--distance", choices=("cosine", "euclidean"), help="(default: the run's evaluation.distance)")
    parser.add_argument(
        "--no-flip", action="store_true", help="embed a picture alone, not summed with its mirror image's embedding"
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="processes that load images (default: the run's batches.workers, or 0)"
    )
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "markdown"), default="table", help="of what is printed"
    )
    parser.add_argument(
        "--against", choices=["paper"], help="also print what the paper prints (Table V), and what differs in protocol"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write this file instead: .json, .csv or .md")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Read the sets, embed, print."""
    from proxemic.cli.evaluate import check_places
    from proxemic.cli.evaluate.checks import check_names, check_target, is_run
    from proxemic.errors import UserError

    # What can be refused is refused before the work, and before imports that take seconds.
    check_names(arguments.out)
    check_target(arguments.target, ("a run directory", "a model.safetensors"))
    if arguments.against and not is_run(arguments.target):
        raise UserError(f"--against needs the recipe of a run, but {arguments.target} is none: give its run directory.")
    if arguments.against and arguments.format in ("json", "csv"):
        raise UserError(f"--against prints for people, but --format is {arguments.format}: leave out one of them.")

    from proxemic.cli.verification_report import Verification
    from proxemic.recipes.reader import own_backbone
    from proxemic.training.embed import load_embedder, pick_device

    config, folder, workers = _settings(arguments)
    check_places([arguments.out], [arguments.target, folder])
    pairs = _read_sets(arguments.sets, folder)
    model, preprocessing = load_embedder(arguments.target, own_backbone(arguments.target))
    found = Verification(
        str(arguments.target), str(folder), arguments.distance or config.distance, not arguments.no_flip
    )
    model.to(pick_device("auto"))
    for name, each in pairs.items():
        found.add(name, each, model, preprocessing, config.batch_size, workers)
    out = arguments.out
    if out is None and is_run(arguments.target):
        out = arguments.target / "verification.json"
    if out is not None:
        found.write(out)
    print(found.text(arguments.format))
    if arguments.against:
        from proxemic.protocols.runs.finished import Run
        from proxemic.protocols.runs.verification_against_paper import verification_against_paper

        accuracies = {name: each.accuracy.mean for name, each in found.sets.items()}
        print()
        print(verification_against_paper(str(arguments.target), Run(arguments.target).content, accuracies))


def _settings(arguments: argparse.Namespace) -> "tuple[EvaluationConfig, Path, int]":
    """How the model is judged, the folder of the sets, and how many processes load images."""
    from proxemic.cli.evaluate.checks import is_run
    from proxemic.data import FaceFolders, RecordFaces
    from proxemic.errors import UserError
    from proxemic.recipes.reader import read_evaluation
    from proxemic.training import EvaluationConfig, RunDirectory
    from proxemic.training.recipe import BatchConfig

    target, folder = arguments.target, arguments.data
    config, workers = EvaluationConfig(), 0
    if is_run(target):
        recipe = read_evaluation(RunDirectory(target).recipe)
        config, workers = recipe.evaluation, recipe.batches.workers
        data = RunDirectory(target).locate(recipe.data)
        if folder is None and isinstance(data, RecordFaces | FaceFolders):
            folder = data.root
    if arguments.workers is not None:
        workers = BatchConfig(workers=arguments.workers).workers  # which checks it
    if folder is None:
        raise UserError("--data is missing: give the folder of the sets, which holds lfw.bin, cfp_fp.bin and so on.")
    if not folder.is_dir():
        raise UserError(f"{folder} is no folder: give that of the sets, which holds lfw.bin and so on, with --data.")
    return config, folder, workers


def _read_sets(text: str, folder: Path) -> "dict[str, FacePairs]":
    import sys

    from proxemic.data.faces.verification_sets import read_verification_set
    from proxemic.errors import UserError

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise UserError(f"--sets is {text!r}, but must name at least one set, as {SETS} does.")
    found = {name: read_verification_set(name, folder) for name in names}
    for _, notes in found.values():
        for note in notes:
            print(note, file=sys.stderr)
    return {name: pairs for name, (pairs, _) in found.items()}
