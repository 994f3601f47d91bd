"""Print notes to standard error, beside the output of a command."""

import sys
from collections.abc import Mapping

from proxemic.files import printable


def say(text: str) -> None:
    """Print a note at once; commands call this before imports that take seconds.

    Characters that would control a terminal are escaped.
    """
    print(printable(text), file=sys.stderr, flush=True)


def say_unreadable(unreadable: Mapping[str, str], one: str, many: str) -> None:
    """Name the first few files that could not be read."""
    if unreadable:
        named = "; ".join(f"{name} ({why})" for name, why in [*unreadable.items()][:3])
        more = "; ..." * (len(unreadable) > 3)
        say(f"{len(unreadable):,} {one if len(unreadable) == 1 else many} cannot be read: {named}{more}")
