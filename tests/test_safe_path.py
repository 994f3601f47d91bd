"""Files of the current directory that are called as modules are: no process that a command starts may run them."""

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import servings
import warm
from command_line import TERMINAL, proxemic
from images import write_recipe
from proxemic.safe_path import safe_path

SOURCE = Path(__file__).parents[1] / "src" / "proxemic"
BRIEF = ("--training.epochs", "1", "--evaluation.recall_at", "[1]")


def most_imported(count: int = 50) -> list[str]:
    """The modules that this package imports most often, itself not among them."""
    names = Counter(
        name
        for path in SOURCE.rglob("*.py")
        for name in re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.MULTILINE)
    )
    del names["proxemic"]
    return [name for name, _ in names.most_common(count)]


@pytest.fixture
def trapped(tmp_path: Path) -> Iterator[Path]:
    """A folder with a trap for each module of the standard library, and for each that we often import."""
    folder, sprung = tmp_path / "here", tmp_path / "sprung"
    folder.mkdir()
    for name in {*sys.stdlib_module_names, *most_imported(), "yaml"}:
        (folder / f"{name}.py").write_text(f"print({name!r}, file=open({str(sprung)!r}, 'a'))\n")
    yield folder
    assert not sprung.exists(), sprung.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "RECIPE", "--seeds", "1", "--out", "OUT", *BRIEF],
        ["tune", "--recipe", "RECIPE", "--trials", "1", "--workers", "2", "--out", "OUT", *BRIEF],
        ["analyze", "sweep", "RECIPE", "--vary", "loss.alpha=8", "--seeds", "1", "--out", "OUT", *BRIEF],
        ["reality-check", "RECIPE", "--trials", "1", "--repeats", "1", "--folds", "2", "--out", "OUT", *BRIEF[:2]],
        ["embed", "SHELF/model", "SHELF/photos", "--workers", "1", "--out", "OUT.parquet"],
        ["embed", "SHELF/model", "SHELF/photos/class 00/0.png", "--engine", "ray", "--out", "OUT.parquet"],
        ["gallery", "create", "OUT", "SHELF/photos", "--model", "SHELF/model", "--workers", "1"],
        ["clean", "SHELF/photos", "--model", "SHELF/model", "--workers", "1"],
    ],
    ids=["compare", "tune", "sweep", "reality-check", "embed", "ray", "gallery", "clean"],
)
def test_commands_start_no_process_that_imports_from_the_current_directory(
    words: list[str], trapped: Path, shelf: Path, folder: Path, tmp_path: Path
) -> None:
    if "ray" in words:
        pytest.importorskip("ray")
    places = {"RECIPE": tmp_path / "recipe.yaml", "SHELF": shelf, "OUT": tmp_path / "out"}
    write_recipe(places["RECIPE"], folder)
    given = [re.sub("RECIPE|SHELF|OUT", lambda match: str(places[match[0]]), word) for word in words]
    done = warm.run("-m", "proxemic", *given, environment=TERMINAL, cwd=trapped)
    assert done.returncode == 0, done.stderr


def test_serve_starts_no_process_that_imports_from_the_current_directory(
    trapped: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path(sys.executable).with_name("proxemic")  # Python itself looks there for `python -m proxemic`
    monkeypatch.setattr(servings, "command", lambda *words: [script, *words])
    monkeypatch.chdir(trapped)
    assert servings.Serving(tmp_path, shelf / "shop").end() == 0


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
