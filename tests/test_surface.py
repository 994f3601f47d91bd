"""The public surface stays: after an intended change, run ``python tests/surface.py`` and name it in the changelog."""

from pathlib import Path

import surface


def test_public_names_stay() -> None:
    assert surface.public_names() == surface.read()["names"]


def test_commands_and_their_flags_stay() -> None:
    assert surface.commands() == surface.read()["commands"]


def test_the_values_of_all_recipes_stay() -> None:
    assert surface.recipes() == surface.read()["recipes"]


def test_the_files_of_a_run_stay(run: Path) -> None:
    assert surface.run_files(run) == surface.read()["run"]["files"]
