"""docs/experiments/claims.py: the rule, its corrected intervals, and the tables that it makes of the kept runs."""

import csv
import doctest
import importlib
import math
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxemic.studies.statistics import holm, t_interval, t_test

FOLDER = Path(__file__).parents[1] / "docs" / "experiments"
ENDS = st.floats(-5, 5)


@pytest.fixture(scope="module")
def claims() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("claims")


def test_the_tables_are_those_of_the_kept_runs(claims: Any) -> None:
    page = (FOLDER.parent / "claims.md").read_text(encoding="utf-8")
    for name, table in claims.tables(FOLDER / "kept").items():
        assert (FOLDER / name).read_text(encoding="utf-8") == table.text("csv") + "\n", claims.COMMAND
        assert table.text("markdown") in page, claims.COMMAND


def test_the_examples_of_the_rule_run(claims: Any) -> None:
    assert doctest.testmod(claims) == (0, 3)


def test_every_run_and_condition_that_a_claim_names_exists(claims: Any) -> None:
    searches, conditions, reality = map(importlib.import_module, ("_searches", "conditions", "reality"))
    known = {condition.name for group in conditions.CONDITIONS.values() for condition in group} | {*reality.KINDS}
    for claim in claims.CLAIMS.values():
        assert (claim.parts == ()) == bool(claim.why), claim.statement
        for part in claim.parts:
            assert all(gain > 0 for gain in part.gains.values())
            for name in () if part.ratio else (*part.plus, *part.minus):
                loss, _, condition = name.partition("@")
                assert loss in searches.SEARCHES
                assert condition in {"", *known}


@pytest.mark.parametrize(
    ("low", "high", "gain", "verdict"),
    [
        (0.1, 0.3, None, "holds"),
        (0.1, 0.3, 0.5, "holds"),  # less than the paper's, but above 0
        (0.0, 0.3, None, "inconclusive"),
        (-0.3, -0.1, None, "contradicted"),
        (-0.3, 0.0, None, "inconclusive"),
        (-0.3, 0.4, 0.5, "contradicted"),
        (-0.3, 0.5, 0.5, "inconclusive"),
        (-0.3, 0.4, None, "inconclusive"),
    ],
)
def test_the_verdict_on_each_boundary(low: float, high: float, gain: float | None, verdict: str, claims: Any) -> None:
    assert claims.decide(low, high, gain) == verdict


@given(ends=st.tuples(ENDS, ENDS), gain=st.one_of(st.none(), st.floats(0.01, 5)))
def test_the_rule_follows_the_interval(ends: tuple[float, float], gain: float | None, claims: Any) -> None:
    low, high = sorted(ends)
    verdict = claims.decide(low, high, gain)
    assert (verdict == "holds") == (low > 0)
    if verdict == "inconclusive":
        assert low <= 0 <= high
        assert gain is None or gain <= high
    if verdict == "contradicted":
        assert low <= 0
        assert claims.decide(low - 1, high - 1, gain) == "contradicted", "a smaller difference is no better"


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([], "not tested"),
        (["holds", "holds"], "holds"),
        (["holds", "inconclusive"], "inconclusive"),
        (["inconclusive", "contradicted", "holds"], "contradicted"),
    ],
)
def test_all_parts_of_a_claim_must_hold(parts: Sequence[str], verdict: str, claims: Any) -> None:
    assert claims.combine(parts) == verdict


@given(
    samples=st.lists(st.lists(st.integers(-20, 40), min_size=3, max_size=6).filter(lambda s: len({*s}) > 1), min_size=1)
)
def test_a_corrected_interval_excludes_0_where_holm_rejects(samples: list[list[float]], claims: Any) -> None:
    p_values = [t_test(sample) for sample in samples]
    for sample, level, p in zip(samples, claims.holm_levels(p_values), holm(p_values), strict=True):
        assume(abs(p - 0.05) > 1e-9)
        assert 0.05 / len(samples) <= level <= 0.05
        assert t_interval(sample, confidence=1 - level).excludes_zero == (p < 0.05)


def keep(folder: Path, loss: str, values: Sequence[float], condition: str = "") -> None:
    """Keep runs of the fine-tuned photographs with these values of all metrics, by seed."""
    by_seed = dict(enumerate(values))
    metrics = {"recall@1": by_seed, "map@r": by_seed, "ndcg@8": by_seed}
    importlib.import_module("_kept").Kept(folder / "cars-pretrained").keep_runs(loss, metrics, condition)


def test_verdicts_of_runs(claims: Any, tmp_path: Path) -> None:
    assert [row[-1] for row in claims.tables(tmp_path)["claims-counts.csv"].rows][:3] == [0, 0, 0]
    base = [0.5, 0.6, 0.55, 0.52]
    gains = {
        "softmax-mean-proxy": [0.1, 0.1001, 0.0999, 0.1],  # holds
        "proxy-nca-plus-plus": [0.5, -0.5, 0.1, 0.1],  # inconclusive
        "mpa-dw": [-0.1, -0.1001, -0.0999, -0.1],  # contradicted
        "mpa": [0.0001, -0.0001, 0.0001, 0.0],  # contradicted by the gain of 0.7 points alone
        "mpa-ap": [0.0] * 4,  # not tested, as the runs are the same
    }
    for loss in ("softmax", "proxy-anchor", "warp-off-first"):
        keep(tmp_path, loss, base)
    for loss, gain in gains.items():
        keep(tmp_path, loss, [one + more for one, more in zip(base, gain, strict=True)])
    keep(tmp_path, "hist", [0.4])  # one seed has no interval
    tables = claims.tables(tmp_path)
    fine_tuned = 3
    verdicts = {str(row[0]).partition(":")[0]: row[fine_tuned] for row in tables["claims.csv"].rows}
    by_statement = {claim.statement: verdicts.get(number) for number, claim in claims.CLAIMS.items()}
    for words, verdict in (
        ("The regulariser on the mean proxy raises Recall@1", "holds"),
        ("The warp is above ProxyNCA++", "inconclusive"),
        ("MPA-DW is above Proxy-Anchor by Recall@1", "contradicted"),
        ("MPA is above Proxy-Anchor by Recall@1", "contradicted"),
        ("MPA-AP is above Proxy-Anchor by Recall@1", "not tested"),
        ("The warp is above HIST", "not tested"),
        ("MPA-AP is the best of the family", "contradicted"),  # it is above MPA-DW, but not above MPA by 0.3 points
    ):
        assert [value for statement, value in by_statement.items() if statement.startswith(words)] == [verdict], words
    counts = {row[0]: row[-1] for row in tables["claims-counts.csv"].rows}
    assert sum(counts.values()) == len(claims.CLAIMS) * len(claims.SETTINGS)


def test_a_lead_that_grows_is_positive_and_pairs_the_seeds_that_all_runs_have(claims: Any, tmp_path: Path) -> None:
    keep(tmp_path, "mpa-ap", [0.8, 0.9, 0.7])
    keep(tmp_path, "proxy-anchor", [0.5, 0.5, 0.5])
    keep(tmp_path, "mpa-ap", [0.4, 0.5], "3 images")
    keep(tmp_path, "proxy-anchor", [0.3, 0.3], "3 images")
    (claim,) = [each for each in claims.CLAIMS.values() if each.statement.startswith("MPA-AP is superior")]
    values = claim.parts[0].values(tmp_path, "cars-pretrained", claim.metric, claim.read)
    assert values == pytest.approx([0.2, 0.2])


def test_the_ratio_of_spreads_is_compared_with_1(claims: Any, tmp_path: Path) -> None:
    known = importlib.import_module("_kept").Kept(tmp_path / "omniglot")
    for place, loss in enumerate(("softmax", "mpa", "proxy-anchor", "hist")):
        recalls = [0.5, 0.5 + 0.02 * min(place, 2) + 0.1]  # those of the last two are the same runs
        known.keep_runs(
            loss, {"recall@1": dict(enumerate(recalls)), "map@r": {}, "ndcg@8": {0: 0.4, 1: 0.4 + 0.01 * (place < 9)}}
        )
    (row,) = [row for row in claims.tables(tmp_path)["claims-numbers.csv"].rows if "spread" in str(row[0])]
    logs = [math.log(10), math.log(12), math.log(14)]
    assert row[3:5] == [3, f"{math.exp(statistics.fmean(logs)):.2f}"]


def test_centres_and_reality_checks_are_read(claims: Any) -> None:
    module = importlib.import_module("_claims")
    with (FOLDER / "kept/makers/runs/mpa-k8-drawn.csv").open(encoding="utf-8", newline="") as file:
        expected = {int(row["seed"]): float(row["recall@1"]) for row in csv.DictReader(file)}
    assert module.read_centres(FOLDER / "kept", "cars-features", "mpa@K=8", "recall@1") == expected
    assert module.read_centres(FOLDER / "kept", "omniglot", "mpa@K=8", "recall@1") == {}
    assert len(module.read_reality_check(FOLDER / "kept", "cars-features", "warp@complete", "map@r")) == 10
