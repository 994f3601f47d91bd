"""``proxemic analyze`` as a user runs it."""

import pytest

from command_line import Here, assert_refused
from proxemic.cli import COMMANDS


def test_alone_it_says_what_there_is(here: Here) -> None:
    result = here("analyze")
    assert result.returncode == 0
    for action in COMMANDS["analyze"][1]:
        assert action in result.stdout


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["characteristic"], ["'characteristic' is not known here: did you mean characteristics?"]),
        (["characteristics", "--seed", "-1"], ["seed is -1"]),
        (["--numbers"], ["--numbers", "--help"]),
    ],
)
def test_bad_flags(flags: list[str], words: list[str], here: Here) -> None:
    assert_refused(here("analyze", *flags), words)
