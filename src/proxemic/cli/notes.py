"""Print notes to standard error, apart from the output of a command."""

import sys
from collections.abc import Mapping

from proxemic.addresses import without_password, without_passwords
from proxemic.files import printable


def shown(text: str) -> str:
    """Escape characters that would control a terminal, and hide the passwords of addresses."""
    return printable(without_passwords(text))


def say(text: str, *addresses: str) -> None:
    """Print a note at once, perhaps with addresses after it; commands call this before imports that take seconds."""
    print(shown(" ".join([text, *map(without_password, addresses)])), file=sys.stderr, flush=True)


def say_unreadable(unreadable: Mapping[str, str], one: str, many: str) -> None:
    """Name the first few files that could not be read."""
    if unreadable:
        named = "; ".join(f"{name} ({why})" for name, why in [*unreadable.items()][:3])
        more = "; ..." * (len(unreadable) > 3)
        say(f"{len(unreadable):,} {one if len(unreadable) == 1 else many} cannot be read: {named}{more}")
