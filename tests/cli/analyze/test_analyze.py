"""``proxemic analyze`` as a user runs it."""

import csv
import json
from functools import partial
from pathlib import Path

import pytest

from command_line import Here, assert_refused, warm_proxemic
from comparisons import interval
from proxemic.analysis import characteristics, every_proxy_loss
from proxemic.cli.analyze import SUBCOMMANDS


def test_alone_it_says_what_there_is(here: Here) -> None:
    result = here("analyze")
    assert result.returncode == 0
    for subcommand in SUBCOMMANDS:
        assert subcommand.__name__.rpartition(".")[2].replace("_", "-") in result.stdout


def test_characteristics_are_printed_and_written(tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    # A quarter of the samples gives the same answers: see tests/analysis/gradients/test_six_characteristics.py.
    monkeypatch.setattr("proxemic.analyze._characteristics.measure", partial(characteristics, samples=256))
    table, data = tmp_path / "new" / "table.csv", tmp_path / "data.json"
    result = here("analyze", "characteristics", "--numbers", "--csv", table, "--json", data, "--proxies-per-class", "3")
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["loss", "stability", "manifold", "similarity", "P-P", "N-N", "P-N"]
    assert ["ProxyAnchorLoss", "no", "yes", "yes", "(yes)", "yes", "no"] in lines
    assert ["HISTLoss*", "yes", "yes", "no", "no", "yes", "yes"] in lines
    assert sum(line[:1] == ["ProxyNCALoss"] for line in lines) == 2
    tables = result.stdout.partition("Wrote ")[0].splitlines()
    assert max(map(len, tables)) <= 80, "as wide as a terminal"

    found = json.loads(data.read_text())
    assert list(found) == list(every_proxy_loss())
    assert found["ProxyAnchorLoss"]["P-P"] == "(yes)"
    assert found["ProxyAnchorLoss"]["proxies_per_class"] == 3
    with table.open(newline="") as file:
        rows = {row["loss"]: row for row in csv.DictReader(file)}
    for name, values in found.items():
        assert rows[name] == {"loss": name, **{key: str(value) for key, value in values.items()}}
    assert sorted(path.name for path in tmp_path.rglob("*.*")) == ["data.json", "table.csv"]


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
    monkeypatch.setattr("proxemic.analyze._characteristics.every_proxy_loss", lambda *_, **__: few)
    assert_refused(here("analyze", "characteristics", "--csv", tmp_path), [str(tmp_path), "could not be written"])


@pytest.fixture(scope="module")
def centers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two short runs with two proxies per class."""
    runs = [tmp_path_factory.mktemp("centers") / f"seed-{seed}" for seed in (0, 1)]
    for seed, run in enumerate(runs):
        words = ["--recipe", "glyphs-small/mpa", "--training.epochs", "1", "--seed", str(seed), "--training.loggers=[]"]
        result = warm_proxemic("train", *words, "--model.width", "4", "--data.train_classes", "24", "--out", run)
        assert result.returncode == 0, result.stderr
    return runs


def test_local_centers_of_one_run_and_of_several(centers: list[Path], tmp_path: Path, here: Here) -> None:
    data = tmp_path / "data.json"
    one = here("analyze", "local-centers", centers[0], "--draws", "1", "--shuffles", "20")
    assert one.returncode == 0, one.stderr
    assert "beyond chance" not in one.stdout
    log = centers[0].with_name("seed-0.log")  # as proxemic compare leaves it beside a run
    log.write_text("training\n")
    both = here("analyze", "local-centers", *centers, log, "--draws", "1", "--shuffles", "20", "--json", data)
    assert both.returncode == 0, both.stderr
    found = json.loads(data.read_text())
    assert list(found) == [str(run) for run in centers]
    means = both.stdout[both.stdout.index("beyond chance") :]
    for name in ("family", "weight", "slant"):
        values = [run[name]["information"] - run[name]["chance"] for run in found.values()]
        assert all(0 <= run[name]["information"] <= run[name]["most"] <= 1 for run in found.values())
        (line,) = (line for line in means.splitlines() if name in line)
        mean, half = (round(number, 3) + 0.0 for number in interval(*values))  # never −0.000
        assert f"{mean:.3f} ± {half:.3f}" in line
    for run in found.values():
        assert f"mean cosine between two of them {run['proxies']['cosine']:.4f}" in both.stdout
        assert f"{run['proxies']['used']:.2f} of the 2 proxies of a class" in both.stdout
        assert 1 <= run["proxies"]["used"] <= 2


def test_local_centers_need_groups_and_proxies(run: Path, tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "local-centers", run), ["have no groups within their classes"])
    assert_refused(here("analyze", "local-centers", tmp_path / "none"), ["none"])
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "recipe.yaml").write_text((run / "recipe.yaml").read_text())
    assert_refused(here("analyze", "local-centers", run, tmp_path / "begun"), ["begun has no weights of a finished"])
