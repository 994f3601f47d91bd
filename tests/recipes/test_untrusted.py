"""Reading recipes from elsewhere runs no code and makes no unexpected objects."""

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import Here, assert_refused
from hostile import TRAP_MODULE, hostile_recipes, write_trap_module
from proxemic.errors import UserError
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_evaluation, read_recipe
from proxemic.studies.finished import Run

CASES = list(hostile_recipes(Path()))


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A path that exists only if the module in the current directory, which is on the path, or a command was run."""
    path = write_trap_module(tmp_path)
    package = tmp_path / f"{TRAP_MODULE}s"
    package.mkdir()
    (package / "inner.py").write_text((tmp_path / f"{TRAP_MODULE}.py").read_text())
    (tmp_path / "other.yaml").write_text("size: 4")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m` does
    monkeypatch.delenv("PYTHONPATH", raising=False)
    yield path
    for name in [name for name in sys.modules if name.startswith(TRAP_MODULE)]:
        del sys.modules[name]


def write(text: str) -> Path:
    path = Path("recipe.yaml")
    path.write_text(f"extends: glyphs-small\n{text}\n")
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_that_names_what_does_not_stand_there_is_refused_and_runs_nothing(case: str, left: Path) -> None:
    path = write(hostile_recipes(left)[case])
    with pytest.raises(UserError) as refused:
        read_recipe(path)
    assert "recipe.yaml" in str(refused.value)
    assert len(str(refused.value)) < 400
    if "beside" not in case:  # these are trusted in training
        with pytest.raises(UserError):
            read_recipe(path, own_code=True)
    assert not left.exists()


@pytest.mark.parametrize("flag", ["--loss=os.system", "--optim.schedule={class_path: os.abort}", "--data=pdb.Pdb"])
def test_so_is_a_flag(flag: str, left: Path) -> None:
    with pytest.raises(UserError, match="cannot be used there"):
        read_recipe(find_recipe("glyphs-small"), [flag], own_code=True)


def test_commands_that_read_run_nothing_of_the_current_directory(left: Path, here: Here) -> None:
    path = write(hostile_recipes(left)["loss of a module beside"])
    words = [TRAP_MODULE, "current directory", "PYTHONPATH=."]
    assert_refused(here("recipes", "show", path), words)
    assert_refused(here("compare", path, "--dry-run"), words)
    run = Path("run")
    run.mkdir()
    (run / "recipe.yaml").write_text(path.read_text() + "second_phase: null\n")
    with pytest.raises(UserError, match="current directory"):
        _ = Run(run).content
    (run / "recipe.yaml").write_text(f"data: {TRAP_MODULE}.Loss\n")
    with pytest.raises(UserError, match="current directory"):
        read_evaluation(run / "recipe.yaml")
    assert not left.exists()


def test_training_imports_from_the_current_directory_and_so_does_who_says_so(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(hostile_recipes(left)["loss of a module beside"])
    monkeypatch.setattr(sys, "path", [item for item in sys.path if item != str(left.parent)])  # as the script has it
    loss = read_recipe(path, own_code=True).recipe.loss(5, 6)
    assert type(loss).__module__ == TRAP_MODULE
    assert left.exists()
    left.unlink()
    del sys.modules[TRAP_MODULE]
    monkeypatch.setenv("PYTHONPATH", ".")
    read_recipe(path)
    assert left.exists()


def test_a_recipe_that_names_nothing_of_the_current_directory_puts_it_on_no_path(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [item for item in sys.path if item != str(left.parent)]
    monkeypatch.setattr(sys, "path", [*before])
    read_recipe(find_recipe("glyphs-small"), own_code=True)
    assert sys.path == before


def test_reading_makes_nothing(left: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import proxemic.data
    import proxemic.training

    made = []
    kinds: list[Any] = [proxemic.training.CSVLog, proxemic.data.Glyphs]
    for kind in kinds:
        spied = functools.wraps(kind.__init__)(lambda self, **_: made.append(self))
        monkeypatch.setattr(kind, "__init__", spied)
    path = write("training: {loggers: [{class_path: proxemic.training.CSVLog}]}")
    read = read_recipe(path)
    assert made == []
    assert "CSVLog" in read.yaml
