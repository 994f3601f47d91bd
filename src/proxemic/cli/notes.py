"""Lines on standard error, beside what a command prints."""

import sys
from collections.abc import Mapping

from proxemic.files import printable


def say(text: str) -> None:
    """Print a note; names in it may have characters that a terminal would act on."""
    print(printable(text), file=sys.stderr, flush=True)


def say_unreadable(unreadable: Mapping[str, str], one: str, many: str) -> None:
    """Name the first few of what could not be read."""
    if unreadable:
        named = "; ".join(f"{name} ({why})" for name, why in [*unreadable.items()][:3])
        more = "; ..." * (len(unreadable) > 3)
        say(f"{len(unreadable):,} {one if len(unreadable) == 1 else many} cannot be read: {named}{more}")
