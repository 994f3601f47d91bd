"""``proxemic evaluate``."""

import argparse
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

__all__ = ["add_parser", "check_places", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "evaluate",
        help="judge a trained model on images, or embeddings made elsewhere; compare two",
        description="Judge a run on its own test classes, or on another folder or table: on the test split that it "
        "gives, or on all images; or judge a file of embeddings. Given two, compare them on the same queries. A table "
        "has the columns path and label and perhaps those of Open Metric Learning: split, is_query, is_gallery, "
        "sequence (rows of one burst or video are no hits of each other), category, and a box x_1, y_1, x_2, y_2.",
        epilog="The run's data and evaluation settings are flags: --data.root DIR, --evaluation.recall_at [1,10,100], "
        "--evaluation.precision_at [10], --evaluation.map_at [10], --evaluation.map_divisors [min,hits], "
        "--evaluation.ndcg_at [10], --evaluation.map true, --evaluation.mrr true, --evaluation.nmi true, "
        "--evaluation.average classes, --evaluation.distance euclidean, --batches.workers 4. Intervals are of a "
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
    parser.add_argument("--query", type=Path, metavar="DIR|TABLE", help="images that search those of --gallery")
    parser.add_argument(
        "--gallery",
        type=Path,
        metavar="DIR|TABLE|FILE",
        help="images that are searched by those of --query, or embeddings that are searched by those given",
    )
    parser.add_argument("--labels", type=Path, metavar="FILE", help="labels of embeddings: .csv, .parquet or .npy")
    parser.add_argument("--gallery-labels", type=Path, metavar="FILE", help="labels of the embeddings of --gallery")
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
    parser.add_argument("--level", type=float, default=0.95, help="of the confidence intervals (default: 0.95)")
    parser.add_argument(
        "--resamples", type=int, default=2000, help="of the bootstrap, up to 100,000 (default: 2000); 0: no intervals"
    )
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Embed, search, print."""
    from proxemic.cli.evaluate.checks import check_names, check_target
    from proxemic.errors import UserError

    # argparse leaves what comes after its own options to us: a second target, perhaps.
    words, flags = _more_words(flags)
    targets = [Path(word) for word in (*arguments.targets, *words)]
    if len(targets) > 2:
        raise UserError(f"{len(targets)} runs or files are given, {targets[2]} the third: judge one, or compare two.")
    # What can be refused is refused before the work, and before imports that take seconds.
    for path in targets:
        check_target(path, ("a run directory", "a model.safetensors", "embeddings"))
    if not 0 < arguments.level < 1:
        raise UserError(f"--level is {arguments.level}, but must be between 0 and 1, as 0.95 is.")
    for name in ("resamples", "worst"):
        if getattr(arguments, name) < 0:
            raise UserError(f"--{name} is {getattr(arguments, name)}, but must be 0 or more.")
    for name in ("per_class", "per_query", "worst", "save_embeddings"):
        if len(targets) > 1 and getattr(arguments, name):
            raise UserError(f"--{name.replace('_', '-')} is for one model: leave it out, or judge the two one by one.")
    if arguments.worst and arguments.format != "table":
        raise UserError("--worst is for the table: for programs, write --per-class FILE.csv or --per-query FILE.csv.")
    tables = (arguments.per_class, arguments.per_query)
    check_names(arguments.out, *tables)

    from proxemic.cli.evaluate import report
    from proxemic.cli.evaluate.targets import judge
    from proxemic.data.embeddings import check_embedding_name
    from proxemic.metrics import MOST_RESAMPLES

    if arguments.resamples > MOST_RESAMPLES:
        raise UserError(
            f"--resamples is {arguments.resamples:,}, but must be {MOST_RESAMPLES:,} at most: more would move no digit."
        )
    if arguments.save_embeddings is not None:
        check_embedding_name(arguments.save_embeddings)
    sources = (arguments.labels, arguments.gallery_labels, arguments.query, arguments.gallery)
    check_places([arguments.out, *tables, arguments.save_embeddings], [*targets, *sources])

    judged = judge(targets, arguments, flags)
    found = report.Report(judged, arguments.level, arguments.resamples)
    if arguments.out is not None:
        found.write(arguments.out)
    if arguments.per_class is not None:
        report.write_table(arguments.per_class, report.class_rows(judged[0]))
    if arguments.per_query is not None:
        report.write_table(arguments.per_query, report.query_rows(judged[0]))
    print(found.text(arguments.format))
    if arguments.worst:
        report.print_worst(judged[0], arguments.worst)


def _more_words(flags: list[str]) -> tuple[list[str], list[str]]:
    """The words that are neither flags nor their values, and the others."""
    words: list[str] = []
    others: list[str] = []
    for before, word in pairwise(["", *flags]):
        is_value = before.startswith("--") and "=" not in before
        (others if word.startswith("-") or is_value else words).append(word)
    return words, others


def check_places(written: Sequence[Path | None], read: Sequence[Path | None]) -> None:
    """Raise `UserError` where a file would be written over another one of this command, or over one of a run."""
    from proxemic.errors import UserError
    from proxemic.training import RunDirectory

    taken = {path.resolve() for path in read if path is not None}
    for path in read:
        if path is not None and path.is_dir():
            taken |= {file.resolve() for file in RunDirectory(path).files()}
    for path in written:
        if path is not None and path.resolve() in taken:
            raise UserError(f"{path} is read by this command, or written by it twice: choose another name.")
        if path is not None:
            taken.add(path.resolve())
