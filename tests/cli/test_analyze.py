"""``proxemic analyze`` as a user runs it."""

import csv
import json
from pathlib import Path

import pytest

from command_line import Here, assert_refused
from proxemic.analysis import Characteristics, every_proxy_loss
from proxemic.cli.analyze import SUBCOMMANDS
from proxemic.cli.analyze.characteristics import _print


def test_alone_it_says_what_there_is(here: Here) -> None:
    result = here("analyze")
    assert result.returncode == 0
    for subcommand in SUBCOMMANDS:
        assert subcommand.__name__.rpartition(".")[2].replace("_", "-") in result.stdout


def test_characteristics_are_printed_and_written(tmp_path: Path, here: Here) -> None:
    table, data = tmp_path / "new" / "table.csv", tmp_path / "data.json"
    result = here("analyze", "characteristics", "--numbers", "--csv", table, "--json", data, "--proxies-per-class", "3")
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["loss", "stability", "manifold", "similarity", "P-P", "N-N", "P-N"]
    assert ["ProxyAnchorLoss", "no", "yes", "yes", "(yes)", "yes", "no"] in lines
    assert ["HISTLoss*", "yes", "yes", "no", "no", "yes", "yes"] in lines
    assert sum(line[:1] == ["ProxyNCALoss"] for line in lines) == 2

    found = json.loads(data.read_text())
    assert list(found) == list(every_proxy_loss())
    assert found["ProxyAnchorLoss"]["P-P"] == "(yes)"
    assert found["ProxyAnchorLoss"]["proxies_per_class"] == 3
    with table.open(newline="") as file:
        rows = {row["loss"]: row for row in csv.DictReader(file)}
    for name, values in found.items():
        assert rows[name] == {"loss": name, **{key: str(value) for key, value in values.items()}}
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["data.json", "table.csv"]


def test_characteristics_fit_a_terminal(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    longest = max(every_proxy_loss(), key=len)
    _print({longest: Characteristics(10, *[0.5] * 7)}, numbers=True)
    assert "…" not in here.capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["characteristic"], ["characteristic", "characteristics"]),
        (["characteristics", "--proxies-per-class", "0"], ["proxies_per_class is 0"]),
        (["characteristics", "--proxies-per-class", "two"], ["--proxies-per-class", "two"]),
        (["characteristics", "--seed", "-1"], ["seed is -1"]),
        (["characteristics", "--nubmers"], ["--nubmers", "--help"]),
        (["--numbers"], ["--numbers", "--help"]),
    ],
)
def test_bad_flags(flags: list[str], words: list[str], here: Here) -> None:
    assert_refused(here("analyze", *flags), words)


def test_a_file_that_cannot_be_written(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"ProxyAnchorLoss": every_proxy_loss()["ProxyAnchorLoss"]}  # all take seconds
    monkeypatch.setattr("proxemic.analysis.every_proxy_loss", lambda *_, **__: few)
    assert_refused(here("analyze", "characteristics", "--csv", tmp_path), [str(tmp_path), "could not be written"])
