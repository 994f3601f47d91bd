"""``proxemic compare``."""

import argparse
import re
from functools import partial
from pathlib import Path

from proxemic.cli.report import print_report
from proxemic.errors import UserError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "compare",
        help="compare recipes over seeds: tables with intervals, paired differences, plots",
        description="Train every recipe with every seed and compare them on each data set: mean with 95%% interval, "
        "differences paired by seed, plots. Finished runs are kept: the same command with the same --out goes on, and "
        "with more recipes or seeds it adds them.",
        epilog="Every value of a recipe is a flag, for all of them: --data.root DIR, --training.epochs 5, …",
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipes",
        nargs="*",
        metavar="RECIPE",
        help="names (proxemic recipes list), patterns over them as 'glyphs-small/*', or YAML files",
    )
    parser.add_argument("--seeds", metavar="N|LIST", help="how many, as 5 (the default) for 0 to 4, or which: 0,1,2")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the comparison's directory (runs/compare-DATE-TIME)")
    parser.add_argument("--resume", type=Path, metavar="DIR", help="go on with this comparison, as it was begun")
    add_workers(parser)
    parser.add_argument(
        "--baseline",
        metavar="RECIPE",
        help="what the others of its data set are compared with, by name or pattern (the first)",
    )
    parser.add_argument("--metrics", metavar="LIST", help="to be shown, the main one first (recall@1,map@r,ndcg@8)")
    parser.add_argument(
        "--against", choices=["paper"], help="also show what the papers print, and what differs in protocol"
    )
    parser.add_argument("--dry-run", action="store_true", help="train and write nothing; only say what is finished")
    parser.set_defaults(run=run, takes_flags=True)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Declare ``--workers``, which means the same to all commands that train several runs."""
    parser.add_argument(
        "--workers",
        type=int,
        default=1,
        metavar="N",
        help="runs at a time (1), of one CPU thread each unless the recipe gives training.threads: the figures are the "
        "same with any number",
    )


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Compare, and print."""
    from proxemic.protocols.comparison import against_paper, compare, markdown
    from proxemic.recipes.flags import read_flags

    if flags and not flags[0].startswith("-"):
        raise UserError(f"{flags[0]} stands apart from the other recipes: name all of them first, then the options.")
    if what := ", ".join(arguments.recipes) or arguments.resume:
        print(f"Comparing {what}", flush=True)  # before what takes seconds to import
    overrides = read_flags(flags) if flags else None
    comparison = compare(
        arguments.recipes,
        out=arguments.out,
        seeds=None if arguments.seeds is None else read_seeds(arguments.seeds),
        overrides=overrides,
        resume=arguments.resume,
        workers=arguments.workers,
        baseline=arguments.baseline,
        metrics=arguments.metrics.replace(" ", "").split(",") if arguments.metrics else (),
        against=arguments.against,
        dry_run=arguments.dry_run,
        report=partial(print, flush=True),  # hours pass between two lines
    )
    print(comparison.states() if arguments.dry_run else markdown(comparison))
    if arguments.against:
        print(against_paper(comparison))
    if arguments.dry_run:
        return
    print(f"Wrote {comparison.path}")
    from proxemic.report import write_comparison_report

    write = partial(write_comparison_report, comparison, out=comparison.path / "report.html")
    print_report(write, f"proxemic compare --resume {comparison.path}")
    failed = comparison.failed()
    if failed:
        raise UserError(
            f"{len(failed)} of {len(list(comparison.cells()))} runs failed, the first of them {failed[0]}: "
            f"{failed[0].failure} Those left are tried again by proxemic compare --resume {comparison.path}"
        )


def read_seeds(text: str) -> list[int]:
    """The seeds that a user asks for: how many, or a list.

    >>> read_seeds("3"), read_seeds("0,7"), read_seeds("7,")
    ([0, 1, 2], [0, 7], [7])
    """
    words = [word.strip() for word in text.removesuffix(",").split(",")]
    if not all(re.fullmatch(r"\d{1,9}", word) for word in words):
        raise UserError(f"--seeds is {text!r}, but must be how many, as 5, or the seeds with commas, as 0,1,2.")
    numbers = [int(word) for word in words]
    if "," in text:
        return numbers
    if numbers[0] < 1:
        raise UserError(f"--seeds is {text}, but must be at least 1: it is how many; seed {text} alone is {text},")
    return list(range(numbers[0]))
