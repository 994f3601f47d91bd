"""``proxemic demo``."""

import argparse
import time
from pathlib import Path

NEXT = """
Open {run}/report.html: it shows characters that were never trained on beside their nearest neighbours.
What to try next:
  proxemic evaluate {run}
      evaluates it again, on other metrics too (--help)
  proxemic train --recipe glyphs --loss ProxyAnchorLoss
      another loss on the same images
  proxemic train --recipe own --data.root FOLDER
      your own images: a folder of class folders
  proxemic recipes list
      everything else that is ready to run
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "demo",
        help="a few minutes from nothing to a trained embedding, without a download",
        description="Train the glyphs recipe, print its results on unseen characters, and say what to try next.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the run directory (runs/demo-DATE-TIME)")
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Train ``glyphs``, print the table, say what comes next."""
    began = time.monotonic()
    from proxemic.cli.report import report_at_the_end
    from proxemic.cli.train import train_and_print
    from proxemic.files import new_directory

    result = train_and_print("glyphs", arguments.out or new_directory("demo"), flags, began=began)
    report_at_the_end(result)
    print(NEXT.format(run=result.path))
