"""``proxemic analyze gradients`` as a user runs it."""

from pathlib import Path

import pytest

from command_line import Here, assert_refused, cells, csv_rows
from proxemic.analysis import every_proxy_loss, score_dependence


def test_two_losses(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def quick(*arguments: object, seed: int) -> object:
        asked.append(seed)
        return score_dependence(*arguments, draws=24, seed=seed)  # type: ignore[arg-type]

    monkeypatch.setattr("proxemic.analyze._gradients.score_dependence", quick)
    names = ["ProxyAnchorLoss", "AllPairMultiProxyAnchorLoss"]
    result = here("analyze", "gradients", "--losses", ", ".join(names), "--seed", "5", "--out", tmp_path / "g")
    assert result.returncode == 0, result.stderr
    assert asked == [5, 5]
    assert cells(result.stdout) == [
        ["ProxyAnchor", "positive", "1 of 1", "0 of 2", "1 of 5", "0 of 10"],
        ["ProxyAnchor", "negative", "0 of 1", "1 of 2", "0 of 5", "3 of 10"],
        ["MPA-AP", "positive", "1 of 1", "2 of 2", "0 of 5", "0 of 10"],
        ["MPA-AP", "negative", "1 of 1", "2 of 2", "0 of 5", "0 of 10"],
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g.csv", "g.png", "g.svg"]
    rows = csv_rows(tmp_path / "g.csv")
    assert len(rows) == 2 * 2 * 18
    enters = {
        (row["loss"], row["kind"], int(row["embedding"]), int(row["proxy_class"]))
        for row in rows
        if float(row["dependence"]) > 1e-6
    }
    assert {enter[2:] for enter in enters if enter[:2] == ("ProxyAnchorLoss", "negative")} == {
        (k, 1) for k in (0, 1, 4, 5)
    }
    assert all((row["score"] == "positive") == (int(row["embedding"]) // 2 == int(row["proxy_class"])) for row in rows)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--losses", "TripletLoss"], ["losses has 'TripletLoss'", *every_proxy_loss()]),
        (["--losses", "ProxyNCALoss,"], ["losses has ''"]),
        (["--seed", "-1"], ["seed is -1"]),
        (["--out", "."], ["--out is the folder ."]),
        (["run"], ["run"]),
    ],
)
def test_bad_flags(flags: list[str], words: list[str], tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "gradients", *flags, cwd=tmp_path), words)
    assert list(tmp_path.iterdir()) == []
