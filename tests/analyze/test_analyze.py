"""The room as a whole: every subcommand is a function, which neither prints nor imports what it does not need."""

import json
import shutil
from pathlib import Path

import pytest

import proxemic.analyze
from command_line import Here, assert_refused
from proxemic.analyze import Analysis, gap, gradients
from proxemic.cli import COMMANDS


def test_every_subcommand_is_a_function() -> None:
    actions = COMMANDS["analyze"][1]
    assert isinstance(actions, dict)
    functions = {name for name in proxemic.analyze.__all__ if name[0].islower()}
    assert {str(address).removeprefix("proxemic.analyze:") for address in actions.values()} == functions
    for name in proxemic.analyze.__all__:
        assert getattr(proxemic.analyze, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        proxemic.analyze.nothing  # noqa: B018


def test_functions_return_figures_and_print_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    dependence, curve = gradients(losses=["ProxyNCALoss"], out="one/g"), gap(epsilon=0.2)
    assert capsys.readouterr() == ("", "")
    for result in (dependence, curve):
        assert isinstance(result, Analysis)
        assert str(result)
        assert result.written
        assert all(path.is_file() for path in result.written)
    assert dependence.figures["ProxyNCALoss"].shape == (6, 3, 6, 3)
    assert 0.2 < curve.figures.minimum < 1


@pytest.mark.parametrize(
    "action", ["forces", "gap", "landscape", "local-centers", "map", "robustness", "theorems", "toy"]
)
def test_what_is_no_finished_run_is_refused(action: str, run: Path, tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", action, tmp_path / "none"), ["none does not hold a run"])
    (tmp_path / "begun").mkdir()
    shutil.copy(run / "recipe.yaml", tmp_path / "begun")
    assert_refused(here("analyze", action, tmp_path / "begun"), ["begun has no weights of a finished"])


@pytest.mark.parametrize("action", ["map", "robustness"])
def test_a_trial_of_a_search_has_no_test(action: str, run: Path, tmp_path: Path, here: Here) -> None:
    trial = shutil.copytree(run, tmp_path / "trial")
    environment = json.loads((trial / "environment.json").read_text())
    (trial / "environment.json").write_text(json.dumps(environment | {"test": False}))
    assert_refused(here("analyze", action, trial), ["trial of proxemic tune"])
