"""Files of the current directory that are called as modules are: no process that a command starts may run them."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
import torch

import warm
from command_line import TERMINAL, proxemic
from images import write_recipe
from proxemic.safe_path import safe_path

SOURCE = Path(__file__).parents[1] / "src" / "proxemic"


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[Path]:
    """A folder with a trap for each module of the standard library, and for each that this package imports."""
    folder, sprung = tmp_path / "here", tmp_path / "sprung"
    folder.mkdir()
    sources = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    imported = {*re.findall(r"^ *(?:from|import) (\w+)", sources, re.MULTILINE)} - {"proxemic"}
    for name in {*sys.stdlib_module_names, *imported}:
        (folder / f"{name}.py").write_text(f"print({name!r}, file=open({str(sprung)!r}, 'a'))\n")
    yield folder
    assert not sprung.exists(), sprung.read_text()


ENDS_AT_TORCH = """
import os, sys
from importlib.machinery import PathFinder

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print(PathFinder.find_spec(name).origin, file=open("FOUND", "a"))
            os._exit(1)

sys.meta_path.insert(0, Finder())
"""
"""Modules that worker processes import first; they end at torch, which takes seconds, and print its path."""


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "RECIPE", "--seeds", "1"],
        ["tune", "--recipe", "RECIPE", "--trials", "1", "--workers", "2"],
    ],
    ids=["compare", "tune"],
)
def test_workers_import_nothing_from_the_current_directory(
    words: list[str], trapped: Path, folder: Path, tmp_path: Path
) -> None:
    found, recipe = tmp_path / "found", write_recipe(tmp_path / "recipe.yaml", folder)
    (tmp_path / "sitecustomize.py").write_text(ENDS_AT_TORCH.replace("FOUND", str(found)))
    given = [str(recipe) if word == "RECIPE" else word for word in words]
    environment = {**TERMINAL, "PYTHONPATH": str(tmp_path)}
    done = warm.run("-m", "proxemic", *given, "--out", tmp_path / "out", environment=environment, cwd=trapped)
    assert "A worker process ended before its first job" in done.stderr
    assert {*found.read_text().split("\n")} == {torch.__file__, ""}


@pytest.mark.parametrize(
    "words",
    [
        ["embed", "SHELF/photos", "--model", "SHELF/model", "--workers", "1", "--out", "OUT.parquet"],
        ["clean", "SHELF/photos", "--model", "SHELF/model", "--workers", "1"],
    ],
    ids=["embed", "clean"],
)
def test_processes_that_embed_import_nothing_from_the_current_directory(
    words: list[str], trapped: Path, shelf: Path, tmp_path: Path
) -> None:
    given = [word.replace("SHELF", str(shelf)).replace("OUT", str(tmp_path / "out")) for word in words]
    done = warm.run("-m", "proxemic", *given, environment=TERMINAL, cwd=trapped)
    assert done.returncode == 0, done.stderr


def test_workers_of_serve_import_nothing_from_the_current_directory(trapped: Path, shelf: Path, tmp_path: Path) -> None:
    found = tmp_path / "found"
    ends = indent(ENDS_AT_TORCH.replace("FOUND", str(found)), "    ")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nif '--multiprocessing-fork' in sys.orig_argv:\n{ends}")
    words = ["serve", shelf / "shop", "--port", "0", "--workers", "2"]
    environment = {**TERMINAL, "PYTHONPATH": str(tmp_path)}
    done = warm.run("-m", "proxemic", *words, environment=environment, cwd=trapped, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "worker processes end before they serve" in done.stderr
    assert {*found.read_text().split("\n")} == {torch.__file__, ""}


def test_python_m_imports_no_library_from_the_current_directory(trapped: Path) -> None:
    for name in sys.stdlib_module_names:  # Python itself imports these from there before this package begins
        (trapped / f"{name}.py").unlink()
    done = proxemic("recipes", "show", "glyphs-small", cwd=trapped)
    assert done.returncode == 0, done.stderr


def test_the_variable_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for before in ("1", "", None):
        if before is None:
            monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
        else:
            monkeypatch.setenv("PYTHONSAFEPATH", before)
        with safe_path():
            assert os.environ["PYTHONSAFEPATH"] == "1"
        assert os.environ.get("PYTHONSAFEPATH") == before
