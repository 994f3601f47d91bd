"""``proxemic analyze sweep`` as a user runs it."""

import csv
from pathlib import Path

import pytest

from command_line import Here, assert_refused, warm_proxemic
from comparisons import interval
from proxemic.protocols.finished import Run


def test_two_values_over_two_seeds_and_one_more_value(tiny: Path, tmp_path: Path) -> None:
    recipe, out = tiny, tmp_path / "sweep"
    words = ["analyze", "sweep", recipe, "--seeds", "2", "--out", out, "--training.epochs", "1"]
    first = warm_proxemic(*words, "--vary", "loss.alpha=8,32")
    assert first.returncode == 0, first.stderr
    with (out / "sweep-loss.alpha.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["loss.alpha"], row["seed"]) for row in rows] == [(v, s) for v in ("8", "32") for s in ("0", "1")]
    for row in rows:
        kept = Run(out / "comparison" / "runs" / f"loss.alpha={row['loss.alpha']}" / f"seed-{row['seed']}")
        assert kept.metrics is not None
        assert float(row["recall@1"]) == kept.metrics["test"]["recall@1"]
        assert kept.content["loss"]["init_args"]["alpha"] == float(row["loss.alpha"])
    mean, half = interval(*(100 * float(row["recall@1"]) for row in rows[:2]))
    assert f"{mean:.2f} ± {half:.2f}" in first.stdout
    assert {path.name for path in out.iterdir()} == {
        "comparison", "values", *(f"sweep-loss.alpha.{kind}" for kind in ("png", "svg", "csv")),
    }  # fmt: skip

    more = warm_proxemic(*words, "--vary", "loss.alpha=8,32,64")
    assert more.returncode == 0, more.stderr
    assert "6 cells, 4 finished before" in more.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vary", "loss.alpha"], ["--vary is 'loss.alpha'", "loss.alpha=8,16,32"]),
        (["--vary", "loss.alpha=8,8"], ["each once"]),
        (["--vary", "loss.alhpa=8"], ["--vary loss.alhpa=8", "alhpa"]),
        (["--vary", "loss.alpha=-8,8"], ["--vary loss.alpha=-8", "alpha"]),
        (["--vary", "loss.alpha=8", "--vary", "loss.alpha=9"], ["vary each once"]),
        (["--vary", "loss.alpha=8", "--metric", "recall@3"], ["recall@3", "recall@1"]),
        (["--vary", "loss.alpha=8", "--seeds", "none"], ["--seeds is 'none'"]),
        ([], ["--vary"]),
    ],
)
def test_refused(tiny: Path, tmp_path: Path, here: Here, words: list[str], said: list[str]) -> None:
    out = tmp_path / "sweep"
    assert_refused(here("analyze", "sweep", tiny, "--out", out, *words), said)
    assert not out.exists()


def test_an_unknown_recipe(tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "sweep", "glyhps", "--vary", "a=1", "--out", tmp_path / "out"), ["glyhps"])
