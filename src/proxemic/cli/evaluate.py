"""``proxemic evaluate``."""

import argparse
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path

from proxemic.errors import UserError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "evaluate",
        help="evaluate a trained model on images, or embeddings made elsewhere; compare two",
        description="Evaluate a run on its own test classes, or on another folder or table: on the test split that it "
        "gives, or on all images; or evaluate a file of embeddings. Given two, compare them on the same queries. A "
        "table has the columns path and label and perhaps those of Open Metric Learning: split, is_query, is_gallery, "
        "sequence (rows of one burst or video are no hits of each other), category, and a box x_1, y_1, x_2, y_2.",
        epilog="The run's data and evaluation settings are flags: --data.root DIR, --evaluation.recall_at [1,10,100], "
        "--evaluation.precision_at [10], --evaluation.map_at [10], --evaluation.map_divisors [min,hits], "
        "--evaluation.ndcg_at [10], --evaluation.map true, --evaluation.mrr true, --evaluation.nmi true, "
        "--evaluation.average classes, --evaluation.distance euclidean, --evaluation.precision bf16-mixed (float32 "
        "unless it is given), --batches.workers 4. Intervals come from a "
        "bootstrap over classes; with fewer than 20 there are none.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "targets",
        nargs="+",
        metavar="RUN|FILE",
        help="one or two of: a run directory, a folder of save_model, a model.safetensors, embeddings in .safetensors, "
        ".npy or .parquet",
    )
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test", "all"),
        help="which images; by default the test split of the run's own data, wherever it lies now, and of another "
        "folder or table the test split that it gives, or all images where it gives none",
    )
    parser.add_argument(
        "--by",
        choices=("category",),
        help="also the metrics of each category: the queries of one (a table's column category) search all images",
    )
    parser.add_argument(
        "--open-set",
        action="store_true",
        help="also leave half of the classes out of the gallery, and give the detection and identification rate of the "
        "others at false alarm rates of 0.1, 0.01 and 0.001",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="which classes --open-set leaves out, and which images are in the gallery"
    )
    parser.add_argument(
        "--query",
        type=Path,
        metavar="DIR|TABLE|FILE",
        help="images that search those of --gallery; for a model of vectors a file of these, also for --gallery",
    )
    parser.add_argument(
        "--gallery",
        type=Path,
        metavar="DIR|TABLE|FILE",
        help="images that are searched by those of --query, or embeddings that are searched by those given",
    )
    parser.add_argument(
        "--labels",
        type=Path,
        metavar="FILE",
        help="labels of embeddings, or of the vectors of --query: .csv, .parquet or .npy",
    )
    parser.add_argument(
        "--gallery-labels", type=Path, metavar="FILE", help="labels of the embeddings, or vectors, of --gallery"
    )
    parser.add_argument("--strict", action="store_true", help="an unreadable image is an error, not skipped")
    parser.add_argument(
        "--save-embeddings",
        type=Path,
        metavar="FILE",
        help="keep the embeddings, with labels and paths (.safetensors, .parquet) or without (.npy)",
    )
    parser.add_argument(
        "--format", choices=("table", "json", "csv", "markdown"), default="table", help="of what is printed"
    )
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write this file: .json, .csv or .md")
    parser.add_argument("--per-class", type=Path, metavar="FILE", help="write the metrics of each class, worst first")
    parser.add_argument("--per-query", type=Path, metavar="FILE", help="write the metrics of each query, worst first")
    parser.add_argument("--worst", type=int, default=0, metavar="N", help="show the N worst classes and queries")
    parser.add_argument(
        "--pictures",
        type=Path,
        metavar="FILE",
        help="draw the queries of --worst, or of --chosen, with their neighbours: a page, .html",
    )
    parser.add_argument(
        "--chosen",
        action="append",
        metavar="PATH",
        default=[],
        help="a query that --pictures draws, by its path or the end of it; may be given several times",
    )
    parser.add_argument("--level", type=float, default=0.95, help="of the confidence intervals (default: 0.95)")
    parser.add_argument(
        "--resamples", type=int, default=2000, help="of the bootstrap, up to 100,000 (default: 2000); 0: no intervals"
    )
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Evaluate, and print."""
    from proxemic.protocols.runs.evaluate import evaluate
    from proxemic.recipes.flags import read_flags

    # argparse leaves what comes after its own options to us: a second target, perhaps.
    words, flags = _more_words(flags)
    targets = [*arguments.targets, *words]
    if arguments.worst < 0:
        raise UserError(f"--worst is {arguments.worst}, but must be 0 or more.")
    if arguments.worst and len(targets) > 1:
        raise UserError("--worst is for one model: leave it out, or evaluate the two one by one.")
    if arguments.worst and arguments.pictures is None and arguments.format != "table":
        raise UserError("--worst is for the table: for programs, write --per-class FILE.csv or --per-query FILE.csv.")
    if arguments.pictures is not None and not arguments.worst and not arguments.chosen:
        raise UserError("--pictures draws queries: say which, by --worst N or --chosen PATH.")
    if arguments.chosen and arguments.pictures is None:
        raise UserError("--chosen says which queries --pictures draws: give --pictures FILE, too.")
    if arguments.pictures is not None and len(targets) > 1:
        raise UserError("--pictures is for one model: leave it out, or evaluate the two one by one.")
    if arguments.pictures is not None:
        from proxemic.pages.page import check_page

        check_page(arguments.pictures, "--pictures")
    print(f"Evaluating {' and '.join(targets)}", file=sys.stderr, flush=True)  # before what takes seconds to import
    overrides = read_flags(flags) if flags else None
    names = ("split", "by", "query", "gallery", "labels", "gallery_labels", "strict", "level", "resamples", "out")
    names += ("per_class", "per_query", "save_embeddings", "open_set", "seed")
    options = {name: getattr(arguments, name) for name in names}
    evaluation = evaluate(targets, **options, overrides=overrides, report=partial(print, file=sys.stderr))
    print(evaluation.text(arguments.format))
    for table in evaluation.worst(arguments.worst) if arguments.worst and arguments.format == "table" else ():
        print(table.text())
    if arguments.pictures is not None:
        from proxemic.report import draw_queries

        page = draw_queries(evaluation, arguments.pictures, worst=arguments.worst, chosen=arguments.chosen)
        print(f"Wrote {page}", file=sys.stderr)


def _more_words(flags: list[str]) -> tuple[list[str], list[str]]:
    """The words that are neither flags nor their values, and the others."""
    words: list[str] = []
    others: list[str] = []
    for before, word in pairwise(["", *flags]):
        is_value = before.startswith("--") and "=" not in before
        (others if word.startswith("-") or is_value else words).append(word)
    return words, others
