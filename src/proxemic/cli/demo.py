"""``proxemic demo``."""

import argparse
import time
from pathlib import Path

__all__ = ["add_parser", "run"]

NEXT = """
Look at {run}/gallery.png: each row is a character that was never trained on, and its nearest neighbours.
What to try next:
  proxemic evaluate {run}
      judges it again, on other metrics too (--help)
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
    from proxemic.cli.show import print_metrics
    from proxemic.cli.train import default_out
    from proxemic.recipes import find_recipe
    from proxemic.recipes.reader import read_recipe
    from proxemic.training import train

    read = read_recipe(find_recipe("glyphs"), flags, own_code=True)
    out = arguments.out or default_out("demo")
    print_metrics(train(read.recipe, read.yaml, out, began=began))
    print(NEXT.format(run=out))
