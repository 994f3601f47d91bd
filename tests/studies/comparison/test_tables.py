"""Statistics and tables of comparisons whose runs are written by hand."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from command_line import csv_rows
from comparisons import comparison, entry, finish
from proxemic.studies.comparison.directory import Comparison, Result
from proxemic.studies.comparison.statistics import seed_variation
from proxemic.studies.comparison.tables import write_tables

T = {1: 12.706, 2: 4.303}  # Student's t, 0.975, from a printed table
A, B, C = [0.50, 0.52, 0.57], [0.60, 0.61, 0.68], [0.70, 0.40]


def test_csv(three: Comparison) -> None:
    write_tables(three)
    rows = csv_rows(three.path / "results.csv")
    assert len(rows) == 8 * (3 + 1 + 1)
    first = "recipe=small/a dataset=small loss=ALoss seed=0 split=test metric=recall@1 value=0.5 epoch=2"
    assert " ".join("=".join(item) for item in rows[0].items()) == f"{first} selected_on=validation seconds=5.0"
    assert {row["split"] for row in rows} == {"test", "untrained", "validation"}
    summary = {(row["recipe"], row["split"], row["metric"]): row for row in csv_rows(three.path / "summary.csv")}
    found = summary["small/b", "test", "recall@1"]
    assert float(found["mean"]) == pytest.approx(np.mean(B))
    assert float(found["half_width"]) == pytest.approx(T[2] * np.std(B, ddof=1) / 3**0.5, rel=2e-4)
    assert (found["n"], found["selected_on"]) == ("3", "validation")
    assert summary["small/c", "untrained", "map@r"]["n"] == "2"
    differences = csv_rows(three.path / "differences.csv")
    # By hand: b less a is 0.10, 0.09, 0.11; c less a, of the two seeds that both have, is 0.20, -0.12.
    first, other = (row for row in differences if row["metric"] == "recall@1")
    told = [first[key] for key in ("recipe", "baseline", "excludes_zero", "n")]
    assert told == ["small/b", "small/a", "yes", "3"]
    assert float(first["difference"]) == pytest.approx(0.10)
    assert float(first["half_width"]) == pytest.approx(T[2] * 0.01 / 3**0.5, rel=2e-4)
    assert (other["recipe"], other["excludes_zero"], other["n"]) == ("small/c", "no", "2")
    assert float(other["difference"]) == pytest.approx(0.04)
    assert float(other["half_width"]) == pytest.approx(T[1] * 0.16, rel=2e-4)


def test_spread(three: Comparison) -> None:
    """By hand from A, B, C: variances, and the logarithms of ratios, which are all that of a half."""
    write_tables(three)
    rows = {row["metric"]: row for row in csv_rows(three.path / "spread.csv")}
    assert set(rows) == {"recall@1", "map@r", "ndcg@8"}
    over_seeds = math.sqrt(sum(np.var(value, ddof=1) for value in (A, B, C)) / 3)
    apart = np.std([np.mean(value) for value in (A, B, C)], ddof=1)
    for name, share in (("recall@1", 1), ("map@r", 1 / 2), ("ndcg@8", 1 / 4)):
        row = rows[name]
        assert (row["n"], row["against"]) == ("3", "recall@1")
        assert float(row["seeds"]) == pytest.approx(share * over_seeds)
        assert float(row["recipes"]) == pytest.approx(share * apart)
        if name != "recall@1":
            assert float(row["ratio"]) == pytest.approx(share)
            assert row["ratio_low"] == row["ratio_high"] == "", "C varies so much that A's deviation may be 0"
    assert rows["recall@1"]["ratio"] == ""


def test_markdown(three: Comparison) -> None:
    three.cell(three.entries[2], 2).fail("The loss is no longer\nfinite.")
    write_tables(three)
    assert (
        (three.path / "table.md").read_text()
        == """\
# Comparison

3 recipes × 3 seeds (0, 1, 2), evaluated on the test classes, in percent: mean ± 95% interval over seeds (t \
distribution). **1 of 9 cells are not finished**; – stands for missing values.

## small

| recipe | loss | recall@1 | map@r | ndcg@8 | seeds |
| --- | --- | --: | --: | --: | --: |
| `small/a` | ALoss | 53.00 ± 8.96 | 26.50 ± 4.48 | 13.25 ± 2.24 | 3 |
| `small/b` | BLoss | **63.00 ± 10.83** | **31.50 ± 5.41** | **15.75 ± 2.71** | 3 |
| `small/c` † | ALoss | 55.00 ± 190.59 | 27.50 ± 95.30 | 13.75 ± 47.65 | 2 of 3, 1 failed |

† the epoch was selected on the test classes: the values are too good to compare with the others.

Difference from `small/a`, paired by seed; * if the 95% interval, each by itself, excludes 0:

| recipe | recall@1 | map@r | ndcg@8 | pairs |
| --- | --: | --: | --: | --: |
| `small/b` | +10.00 ± 2.48 * | +5.00 ± 1.24 * | +2.50 ± 0.62 * | 3 |
| `small/c` † | +4.00 ± 203.30 | +2.00 ± 101.65 | +1.00 ± 50.82 | 2 |

Standard deviations in percent; ratios are geometric means over recipes with their 95% interval:

| metric | over seeds | of recipes' means | recipes / seeds | over seeds, to recall@1's |
| --- | --: | --: | --: | --: |
| recall@1 | 12.68 | 5.29 | 0.4 | – |
| map@r | 6.34 | 2.65 | 0.4 | 0.50 |
| ndcg@8 | 3.17 | 1.32 | 0.4 | 0.25 |

A ratio without an interval: with so few recipes and seeds, one of its two standard deviations may be 0, and the \
ratio any number.

## Failed

- small/c, seed 2: The loss is no longer finite.
"""
    )


def test_figures_that_were_not_computed_in_float32_are_named(tmp_path: Path) -> None:
    half = entry("small/b", evaluation={"precision": "bf16-mixed"})
    mixed = comparison(tmp_path / "mixed", [entry("small/a"), half], 1)
    write_tables(mixed)
    assert "Computed in bf16-mixed: `small/b`.\n" in (mixed.path / "table.md").read_text()


def test_few_test_classes_are_said(three: Comparison) -> None:
    metrics = three.cell(three.entries[1], 1).path / "metrics.json"
    for classes, said in ((20, False), (19, True)):
        metrics.write_text(json.dumps(json.loads(metrics.read_text()) | {"test_classes": classes}))
        write_tables(three)
        assert (f"Few test classes: {classes}." in (three.path / "table.md").read_text()) == said


def test_what_was_not_measured_is_never_filled(tmp_path: Path) -> None:
    entries = [entry("small/a"), entry("small/b"), entry("large/c", evaluation={"recall_at": [10], "ndcg_at": []})]
    made = comparison(tmp_path, entries, seeds=2)
    finish(made.cell(entries[0], 0), {"recall@1": 0.5, "map@r": 0.25, "ndcg@8": 0.75})
    write_tables(made)
    text = (tmp_path / "table.md").read_text()
    assert "| `small/a` | ALoss | **50.00** | **25.00** | **75.00** | 1 of 2 |" in text
    assert "| `small/b` | ALoss | – | – | – | 0 of 2 |" in text
    assert "| `small/b` | – | – | – | 0 |" in text
    assert "| recipe | loss | map@r | seeds |" in text
    assert "| `large/c` | ALoss | – | 0 of 2 |" in text
    assert "**5 of 6 cells are not finished**" in text
    assert csv_rows(tmp_path / "differences.csv") == []
    assert {row["half_width"] for row in csv_rows(tmp_path / "summary.csv")} == {""}


def test_another_baseline_and_other_metrics(three: Comparison) -> None:
    for seed in range(3):
        finish(three.cell(three.entries[2], seed), {"recall@1": 0.9, "map@r": 0.9, "ndcg@8": 0.9})
    write_tables(three)
    text = (three.path / "table.md").read_text()
    assert "| **63.00 ± 10.83** |" in text  # the best is not one that was chosen on the test classes
    assert "| 90.00 ± 0.00 |" in text
    write_tables(Comparison(three.path, three.entries, three.seeds, baseline="*/b", metrics=("map@r",)))
    text = (three.path / "table.md").read_text()
    assert "Difference from `small/b`" in text
    assert "| `small/a` | -5.00 ± 1.24 * | 3 |" in text
    assert "recall@1" not in text


def varied(reference: list[float], metric: list[float]) -> list[dict[int, Result]]:
    """Return results of recipes whose metrics differ by the given numbers between two seeds."""
    return [
        {
            seed: Result({"test": {"recall@1": 0.5 + seed * one, "map@r": 0.2 + seed * other}}, 1, "validation", 1.0)
            for seed in range(2)
        }
        for one, other in zip(reference, metric, strict=True)
    ]


def test_the_interval_of_a_ratio_is_that_of_its_logarithm() -> None:
    reference, metric = [0.1, 0.12, 0.11], [0.2, 0.3, 0.25]
    found = seed_variation(varied(reference, metric), "map@r", "recall@1")
    assert found is not None
    assert found.interval is not None
    # 4.303: Student's t, 0.975, of two degrees of freedom.
    logarithms = np.log([other / one for one, other in zip(reference, metric, strict=True)])
    half = 4.303 * np.std(logarithms, ddof=1) / 3**0.5
    expected = np.exp([logarithms.mean(), logarithms.mean() - half, logarithms.mean() + half])
    assert (found.ratio, *found.interval) == pytest.approx(expected, rel=1e-3)
    deviations, means = np.array(metric) / 2**0.5, 0.2 + np.array(metric) / 2
    assert found.separability == pytest.approx(np.std(means, ddof=1) / np.sqrt((deviations**2).mean()))
    assert seed_variation(varied([0.1], [0.2]), "map@r", "recall@1") is None


@pytest.mark.parametrize(("reference", "metric"), [([1e-5, 0.2], [0.01, 0.01]), ([0.1, 0.1], [1e-9, 0.1])])
def test_a_ratio_of_deviations_that_may_be_0_has_no_interval(reference: list[float], metric: list[float]) -> None:
    found = seed_variation(varied(reference, metric), "map@r", "recall@1")
    assert found is not None
    assert found.ratio == pytest.approx(np.exp(np.log(np.array(metric) / reference).mean()), rel=1e-4)
    assert found.interval is None
    assert found.ratio_text() == f"{found.ratio:.2f}"
