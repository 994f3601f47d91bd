"""What the command line does with errors, whatever the command."""

import os
import subprocess
from contextlib import redirect_stdout
from io import StringIO

import pytest

from command_line import ENVIRONMENT, Here, assert_refused, command
from proxemic.cli import main


def test_output_may_go_to_any_stream() -> None:
    with redirect_stdout(StringIO()) as output:
        assert main(["recipes", "list"]) == 0
    assert "glyphs-small/mpa" in output.getvalue()


@pytest.mark.parametrize("words", [("recipes", "list"), ("recipes", "show", "glyphs-small")])
def test_a_reader_that_has_had_enough_is_no_error(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(command(*words), stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=300)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("error", [RuntimeError("of a library"), ModuleNotFoundError("No module named 'json'")])
def test_a_defect_has_a_traceback(error: Exception, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr("proxemic.cli.recipes.run", fail)
    with pytest.raises(type(error), match=str(error)):
        here("recipes", "list")


def test_what_the_user_can_mend_is_a_sentence(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("Symlink loop from 'photos'")

    monkeypatch.setattr("proxemic.cli.recipes.run", fail)
    assert_refused(here("recipes", "list"), ["Symlink loop from 'photos'"])
    with pytest.raises(RuntimeError, match="Symlink loop"):
        here("--traceback", "recipes", "list")
