"""Directories of many runs."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from leftovers import killed_at
from proxemic.errors import Interrupted, UserError
from proxemic.locks import exclusive_lock
from proxemic.studies.directories import StudyDirectory


@dataclass(frozen=True)
class Settings:
    trials: int
    flags: tuple[str, ...] = ()


def directory(path: Path) -> StudyDirectory[Settings]:
    return StudyDirectory(path, "work.json", "work", "labour", Settings)


def test_new_begun_and_other_directories(tmp_path: Path) -> None:
    def begun(name: str) -> bool:
        return directory(tmp_path / name).is_begun(["recipes"])

    assert not begun("new")
    for left in ("made/recipes", "made/.lock", "made/.work.json.12.tmp"):
        (tmp_path / left).mkdir(parents=True)
    assert not begun("made")
    (tmp_path / "made" / "work.json").touch()
    (tmp_path / "made" / "more").touch()
    assert begun("made")
    with pytest.raises(UserError, match="is a file, but --out needs a folder"):
        begun("made/more")
    (tmp_path / "made" / "work.json").unlink()
    with pytest.raises(UserError, match="made holds other files than those of a work"):
        begun("made")


def test_settings_are_those_that_it_was_begun_with(tmp_path: Path) -> None:
    made = directory(tmp_path)
    with pytest.raises(UserError, match=r"does not hold a work \(it has no work\.json\): .* proxemic labour made"):
        made.read()
    recipe = tmp_path / "base.yaml"
    made.begin(Settings(5, ("--optim.lr", "0.1")), {recipe: "{seed: 1, published: null}"})
    made.begin(Settings(5, ("--optim.lr=0.1",)), {recipe: "{seed: 1, published: []}"})
    differences = "a work with another trials, flags, recipe than base.yaml: "
    with pytest.raises(UserError, match=rf"{differences}.* proxemic labour --resume {tmp_path}"):
        made.begin(Settings(6, ("--optim.lr=0.2",)), {recipe: "seed: 2"})


def test_errors_name_the_command_that_continues_all_runs(tmp_path: Path) -> None:
    made = directory(tmp_path)
    for error in (Interrupted("Stopped: proxemic train --resume made/one."), KeyboardInterrupt()):
        with pytest.raises(Interrupted, match=f"continue with {made.resume}"), made.at_work(alone=False):
            raise error
    with pytest.raises(UserError, match=rf"^The disk is full: {made.resume}\.$"), made.at_work(alone=True):
        raise UserError("The disk is full: proxemic train --resume made/one.")
    with exclusive_lock(tmp_path), pytest.raises(UserError, match="Another process works in"), made.at_work(alone=True):
        pass


@pytest.mark.parametrize("alone", [False, True])
def test_what_a_killed_process_left_is_removed(alone: bool, tmp_path: Path) -> None:
    left = killed_at(tmp_path / "table.md")
    with directory(tmp_path).at_work(alone=alone):
        assert not left.exists()
