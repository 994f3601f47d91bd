"""``proxemic analyze sweep`` as a user runs it."""

from pathlib import Path
from typing import Any

import pytest

from command_line import Here, assert_refused, csv_rows, start_with_workers
from comparisons import finish, interval
from proxemic.studies.comparison.sweep import plan_sweep
from proxemic.studies.comparison.vary import read_sweeps
from proxemic.studies.finished import Run


def test_a_value_over_a_seed_and_one_more(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    flags = ["--training.epochs", "1"]
    comparison, _ = plan_sweep(str(tiny), read_sweeps(["loss.alpha=8"]), [0], out, flags, "recall@1")
    comparison.write()
    (cell,) = comparison.cells()
    finish(cell, {"recall@1": 0.25})
    words = ["analyze", "sweep", tiny, "--out", out, "--vary", "loss.alpha=8", "--seeds", "2", *flags]
    more = start_with_workers(*words)
    said, errors = more.communicate(timeout=300)
    assert more.returncode == 0, errors
    assert {path.name for path in out.iterdir()} == {
        "comparison", "values", *(f"sweep-loss.alpha.{kind}" for kind in ("png", "svg", "csv")),
    }  # fmt: skip
    assert "2 cells, 1 finished before" in said
    found = csv_rows(out / "sweep-loss.alpha.csv")
    assert [(row["loss.alpha"], row["seed"]) for row in found] == [("8", "0"), ("8", "1")]
    for row in found:
        kept = Run(out / "comparison" / "runs" / f"loss.alpha={row['loss.alpha']}" / f"seed-{row['seed']}")
        assert kept.metrics is not None
        assert float(row["recall@1"]) == kept.metrics.get("test", {})["recall@1"]
        assert kept.content["loss"]["init_args"]["alpha"] == float(row["loss.alpha"])
    assert float(found[0]["recall@1"]) == 0.25
    mean, half = interval(*(100 * float(row["recall@1"]) for row in found))
    assert f"{mean:.2f} ± {half:.2f}" in said


def planned(recipe: str, out: Path, *vary: str, grid: bool = False) -> list[dict[str, Any]]:
    """The recipes of a sweep, all of whose runs are finished by hand: recall@1 0.5, 0.51, … by seed, then by point."""
    comparison, _ = plan_sweep(recipe, read_sweeps(vary, grid=grid), [0, 1], out, [], "recall@1")
    comparison.write()
    for number, cell in enumerate(comparison.cells()):
        finish(cell, {"recall@1": 0.5 + number / 100})
    return [entry.recipe for entry in comparison.entries]


def test_figure_7_of_the_warping_paper(tmp_path: Path, here: Here) -> None:
    both = [("loss.k1,second_phase.loss.k1", "0.5,1.0"), ("loss.k2,second_phase.loss.k2", "1,1.5")]
    vary = [f"{keys}={values}" for keys, values in both]
    recipes = planned("cub/warped-softmax", tmp_path, *vary, grid=True)
    slopes = [(recipe["loss"]["init_args"]["k1"], recipe["loss"]["init_args"]["k2"]) for recipe in recipes]
    assert slopes == [(0.5, 1), (0.5, 1.5), (1, 1), (1, 1.5)]
    assert all({"k1", "k2"}.isdisjoint(recipe["second_phase"]["loss"]) for recipe in recipes)  # as in the first

    flags = [word for text in vary for word in ("--vary", text)]
    result = here("analyze", "sweep", "cub/warped-softmax", *flags, "--grid", "--out", tmp_path)
    assert result.returncode == 0, result.stderr
    assert "8 cells, 8 finished before" in result.stdout
    name = "sweep-loss.k1+second_phase.loss.k1,loss.k2+second_phase.loss.k2"
    found = csv_rows(tmp_path / f"{name}.csv")
    expected = [0.5 + (4 * seed + point) / 100 for point in range(4) for seed in range(2)]
    assert [float(row["recall@1"]) for row in found] == pytest.approx(expected)
    assert [(row["loss.k1"], row["second_phase.loss.k1"], row["loss.k2"]) for row in found[4:6]] == [
        ("1.0", "1.0", "1"),
        ("1.0", "1.0", "1"),
    ]
    mean, half = interval(52, 56)
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("│ 1.0"))
    assert f"{mean:.2f} ± {half:.2f}" in line
    drawn = (tmp_path / f"{name}.svg").read_text()
    for text in (f"{mean:.2f}", f"±{half:.2f}", "loss.k1 = second_phase.loss.k1"):
        assert f"<!-- {text} -->" in drawn


def test_figure_6_of_the_warping_paper(tmp_path: Path) -> None:
    (at_zero,) = planned("cub/warped-softmax", tmp_path, "loss.alpha,second_phase.loss.alpha=0")
    assert at_zero["loss"]["init_args"]["alpha"] == 0
    assert "alpha" not in at_zero["second_phase"]["loss"]


def test_a_list_of_margins_has_one_per_class_however_many(tmp_path: Path) -> None:
    flags = ["--loss.margin", "[0.1, 0.2, 0.3, 0.2, 0.1]"]
    comparison, names = plan_sweep(
        "glyphs-small/arcface", read_sweeps(["loss.scale=8,16"]), [0], tmp_path, flags, "recall@1"
    )
    assert len(comparison.entries) == sum(map(len, names.values())) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--vary", "loss.alpha"], ["--vary is 'loss.alpha'", "loss.alpha=8,16,32"]),
        (["--vary", "loss.alpha=-8,8"], ["--vary loss.alpha=-8", "alpha"]),
        (["--vary", "loss.alpha=8", "--vary", "loss.alpha=9"], ["name each key once"]),
        (["--vary", "loss.alpha=8", "--grid"], ["--grid takes two --vary, not 1"]),
        (["--vary", "loss.alpha=8", "--metric", "recall@3"], ["recall@3", "recall@1"]),
    ],
)
def test_refused(tiny: Path, tmp_path: Path, here: Here, words: list[str], said: list[str]) -> None:
    out = tmp_path / "sweep"
    assert_refused(here("analyze", "sweep", tiny, "--out", out, *words), said)
    assert not out.exists()


def test_an_unknown_recipe(tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "sweep", "glyhps", "--vary", "a=1", "--out", tmp_path / "out"), ["glyhps"])
