"""``proxemic analyze characteristics`` as a user runs it."""

import json
from functools import partial
from pathlib import Path

import pytest

from command_line import Here, assert_refused, cells, csv_rows
from proxemic.analysis import characteristics, every_proxy_loss


def test_characteristics_are_printed_and_written(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some losses, and a quarter of the samples, which gives the same answers.
    few = {name: every_proxy_loss(3)[name] for name in ("HISTLoss", "ProxyAnchorLoss", "ProxyNCALoss")}
    monkeypatch.setattr("proxemic.analyze._characteristics.every_proxy_loss", lambda *_, **__: few)
    monkeypatch.setattr("proxemic.analyze._characteristics.measure", partial(characteristics, samples=256))
    table, data = tmp_path / "new" / "table.csv", tmp_path / "data.json"
    result = here("analyze", "characteristics", "--numbers", "--csv", table, "--json", data, "--proxies-per-class", "3")
    assert result.returncode == 0, result.stderr
    lines = cells(result.stdout)
    header = result.stdout.splitlines()[1]
    assert header.replace("┃", " ").split() == ["loss", "stability", "manifold", "similarity", "P-P", "N-N", "P-N"]
    assert ["ProxyAnchorLoss", "no", "yes", "yes", "(yes)", "yes", "no"] in lines
    assert ["HISTLoss*", "yes", "yes", "no", "no", "yes", "yes"] in lines
    assert sum(line[:1] == ["ProxyNCALoss"] for line in lines) == 2

    found = json.loads(data.read_text())
    assert list(found) == list(few)
    assert found["ProxyAnchorLoss"]["P-P"] == "(yes)"
    assert found["ProxyAnchorLoss"]["proxies_per_class"] == 3
    rows = {row["loss"]: row for row in csv_rows(table)}
    for name, values in found.items():
        assert rows[name] == {"loss": name, **{key: str(value) for key, value in values.items()}}
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["data.json", "table.csv"]


def test_a_file_that_cannot_be_written(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"ProxyAnchorLoss": every_proxy_loss()["ProxyAnchorLoss"]}  # all take seconds
    monkeypatch.setattr("proxemic.analyze._characteristics.every_proxy_loss", lambda *_, **__: few)
    assert_refused(here("analyze", "characteristics", "--csv", tmp_path), [str(tmp_path), "folder"])
    one = tmp_path / "one"
    assert_refused(here("analyze", "characteristics", "--csv", one, "--json", one), [f"both {one}", "two files"])
    alone = here("analyze", "characteristics", cwd=tmp_path)
    assert (alone.returncode, list(tmp_path.iterdir())) == (0, []), "without a flag it writes nothing"
    assert "through their embeddings" not in alone.stdout
