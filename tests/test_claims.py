"""docs/experiments/claims.py: its tables are those of the kept runs, and its rule is that of rule.md."""

import doctest
import functools
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from experimented import DOCS, FOLDER, KEPT, keep, script
from proxemic.published import published_figures


@pytest.fixture(scope="module")
def claims() -> Any:
    return script("claims")


@pytest.fixture(scope="module")
def page(claims: Any) -> Any:
    """The page of what is kept."""
    return claims.Page(KEPT)


def test_the_tables_are_those_of_the_kept_runs(claims: Any, page: Any) -> None:
    text = (DOCS / "claims.md").read_text(encoding="utf-8")
    for name, table in page.tables().items():
        assert table.text("markdown") in text, name
    assert doctest.testmod(claims)[0] == 0


PAGES = {"heads": 0, "several-centres": 0, "fine-tuned": 1, "characters": 2, "analysis": 2, "omniglot": 3}
"""The setting of each page that names verdicts, by its place."""


def test_verdicts_on_other_pages_are_those_of_the_claims(page: Any) -> None:
    verdicts = {str(row[0]).partition(":")[0]: row[2:] for row in page.tables()["claims"].rows}
    named = [
        (path.stem, *found)
        for path in (DOCS / "analysis.md", *(DOCS / "results").glob("*.md"))
        for found in re.findall(r"\[([ABC]\d+): ([a-z ]+)\]\(\S*claims\.md", path.read_text(encoding="utf-8"))
    ]
    assert len(named) > 8
    assert [found for found in named if verdicts[found[1]][PAGES[found[0]]] != found[2]] == []


def test_every_run_and_condition_that_a_claim_names_exists(claims: Any) -> None:
    conditions, reality, sweeps = script("conditions"), script("reality"), script("sweeps")
    functions = script("functions")
    known = {condition.name for group in conditions.CONDITIONS.values() for condition in group} | {*reality.KINDS}
    known |= {*functions.FUNCTIONS} | {f"weight {weight:g}" for weight in script("evidence").WEIGHTS}
    warp = script("_experiments").Kept(KEPT, "glyphs-small").recipe("warp")
    known |= {name for what in ("alpha", "k1-k2", "delta") for name in sweeps.sweep(warp, what)} | {"several proxies"}
    for claim in claims.CLAIMS.values():
        assert bool(claim["parts"]) != ("why" in claim), claim
        assert claim.get("pairs", "warp") in claims.paired.COMPONENTS
        for part, gains in claim["parts"].items():
            assert all(gain > 0 for gain in gains.values())
            for name in re.split(r" [+−] ", part.format(warp="warp")) if " / " not in part else ():
                loss, _, condition = name.partition("@")
                assert loss in (*claims.SEARCHES, functions.LOSS)
                assert condition in {"", *known}
    assert not claims.CLAIMS.keys() & {"C3", "C4"}, "ids of dropped claims are not used again"


PRINTED = {
    "softmax": {"Softmax-loss", "N-Softmax", "N. Softmax"},
    "softmax-mean-proxy": {"Ours"},
    "mpa": {"MPA"},
    "mpa-dw": {"MPA-DW"},
    "mpa-ap": {"MPA-AP"},
    "proxy-anchor": {"ProxyAnchor (our)", "Proxy-Anchor", "PrAnchor"},
    "soft-triple": {"SoftTriple (our)", "SoftTriple"},
    "proxy-nca-plus-plus": {"ProxyNCA++", "PrNCA++"},
    "multi-similarity": {"Multi-Sim", "Multi-Sim."},
    "cosface": {"CosFace"},
    "hist": {"HIST"},
    "euclidean-softmax": {"Softmax (Eq. 4)"},
    "euclidean-softmax-two-phases": {"Softmax (Eq. 4)", "Regular Softmax"},
    "warp": {"Warped-Softmax", "Warped Softmax"},
    "warp-off-first": {"Warped-Softmax", "Warped Softmax"},
    "identity": {"t1 - t2 (Eq. 4)"},
    "square": {"t1^2 - t2^2"},
    "square-root": {"sqrt(t1) - sqrt(t2)"},
    "power-1.5": {"t1^(3/2) - t2^(3/2)"},
    **{f"times-{factor}": {f"{factor} t1 - t2"} for factor in ("0.97", "0.5", "1.1", "2.0")},
    **{name: {"Eq. 7"} for name in ("warp-12", "warp-6", "warp-2")},
}
"""The methods of the papers' tables, by the names of losses and of functions of distance."""
SETTINGS = {"K=1": "1", "one proxy": "1", "K=4": "4", "K=8": "8", "K=16": "16"}
ALPHAS = {"warp-12": "50.0", "warp-6": "25.0", "warp-2": "7.75"}


def printed(name: str, dataset: str, metric: str, kinds: Sequence[str]) -> dict[str, set[float]]:
    """The printed values of a loss under a condition, by table."""
    loss, _, condition = name.partition("@")
    loss = condition if loss == "distance-functions" else loss
    loss = {"weight 0": "softmax", "weight 1": "softmax-mean-proxy"}.get(condition, loss)
    values: dict[str, set[float]] = {}
    for figure in published_figures(dataset=dataset):
        if (
            figure.method in PRINTED[loss]
            and figure.metric == metric
            and (condition not in kinds or figure.variant == condition)
            and (condition not in SETTINGS or figure.settings == f"proxies_per_class={SETTINGS[condition]}")
            and (loss not in ALPHAS or figure.settings.endswith(f"alpha={ALPHAS[loss]}"))
            and not (condition == "corruptions" and figure.settings == "corruption=none")
        ):
            values.setdefault(figure.table, set()).add(figure.value)
    if condition == "corruptions":
        return {"IV": {statistics.fmean(values["IV"])}}
    return values


def test_the_gains_are_those_of_the_papers_tables(claims: Any) -> None:
    kinds, keys, tested = script("reality").KINDS, {"CUB": "cub", "Cars196": "cars", "SOP": "sop"}, 0
    for number, claim in claims.CLAIMS.items():
        metric, digits = ("recall@1", 1) if claim.get("metric") == "corrupted" else (claim.get("metric"), 2)
        for part, gains in claim["parts"].items():
            for data, gain in gains.items():
                if " + " in part:  # the lead on this data, whose classes have many images, less that on SOP
                    loss = part.split(" + ")[0]
                    leads = [
                        (mine - theirs, table)
                        for dataset in (keys[data], "sop")
                        for table, values in printed(loss, dataset, metric, kinds).items()
                        for mine in values
                        for theirs in printed("proxy-anchor", dataset, metric, kinds).get(table, ())
                    ]
                    found = {round(many - few, digits) for many, _ in leads for few, table in leads if table == "6"}
                else:
                    names = part.format(warp="warp").split(" − ")
                    plus, minus = (printed(name, keys[data], metric, kinds) for name in names)
                    found = {
                        round(one - other, digits)
                        for table in plus.keys() & minus.keys()
                        for one in plus[table]
                        for other in minus[table]
                    }
                assert gain in found, (number, part, data)
                tested += 1
    assert tested > 100


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_false_discoveries_are_those_of_benjamini_and_hochberg(claims: Any, p_values: list[float]) -> None:
    ordered = sorted(p_values)
    expected = 0
    for rank in range(1, len(ordered) + 1):
        if ordered[rank - 1] <= 0.05 * rank / len(ordered):
            expected = rank
    assert claims.false_discoveries(p_values) == expected


@pytest.mark.parametrize(
    ("mean", "interval", "rejected", "gain", "verdict"),
    [
        (0.2, (0.1, 0.3), True, 0.5, "holds"),  # less than the paper's, but above 0
        (-0.2, (-0.3, -0.1), True, None, "contradicted"),
        (0.1, (-0.1, 0.3), False, 0.3, None),
        (0.1, (-0.1, 0.3), False, 0.31, "contradicted"),
        (0.1, (0.0, 0.2), False, 0.3, "contradicted"),
        (-0.1, (-0.3, 0.1), False, None, None),
    ],
)
def test_the_verdict_on_a_difference(
    mean: float, interval: tuple[float, float], rejected: bool, gain: float | None, verdict: str | None, claims: Any
) -> None:
    assert claims.decide(mean, interval, rejected=rejected, gain=gain) == verdict


def test_verdicts_of_runs(claims: Any, tmp_path: Path) -> None:
    assert [row[-1] for row in claims.tables(tmp_path)["claims-counts"].rows][:4] == [0] * 4
    base, small = [0.5, 0.6, 0.55, 0.52], [1e-4, -1e-4, 1e-4, 0.0]
    gains = {
        "softmax-mean-proxy": [0.1, 0.1001, 0.0999, 0.1],  # holds
        "mpa-dw": [-0.1, -0.1001, -0.0999, -0.1],  # contradicted
        "mpa": small,  # contradicted by the gain of 0.7 points alone
        "mpa-ap": [0.0] * 4,  # not tested, as the runs are the same
    }
    for loss in ("softmax", "proxy-anchor"):
        keep(tmp_path, "cars-pretrained", loss, base)
    for loss, gain in gains.items():
        keep(tmp_path, "cars-pretrained", loss, [one + more for one, more in zip(base, gain, strict=True)])
    keep(tmp_path, "cars-pretrained", "hist", [0.4])  # one seed has no interval
    keep(tmp_path, "glyphs-small", "mpa", [0.5, 0.6, 0.7, 0.6], "K=8")
    keep(tmp_path, "glyphs-small", "mpa", [0.5, 0.5, 0.7, 0.7], "K=1")  # spread far more than 0.7 points
    tables = claims.tables(tmp_path)
    verdicts = {str(row[0]).partition(":")[0]: row[2:] for row in tables["claims"].rows}
    fine_tuned, glyphs = 1, 2
    found = {number: verdicts[number][fine_tuned] for number in ("A1", "B1", "B2", "B3", "B13", "C10")}
    assert found == {
        "A1": "holds",
        "B1": "contradicted",
        "B2": "contradicted",
        "B3": "not tested",
        "C10": "not tested",
        "B13": "contradicted",  # MPA-AP is above MPA-DW, but not above MPA by 0.3 points
    }
    assert verdicts["B19"][glyphs] == "too few runs"
    counts = {row[0]: row[-1] for row in tables["claims-counts"].rows}
    assert sum(counts.values()) == len(claims.CLAIMS) * len(claims.SETTINGS)


def test_a_search_that_was_repeated_widens_every_interval_of_its_data(claims: Any, tmp_path: Path) -> None:
    base = np.array([0.5, 0.6, 0.55, 0.52])
    noise = np.array([0.001, -0.001, 0.0005, 0.0])
    for loss, lead in (("mpa", 0.02), ("proxy-anchor", 0.0), ("mpa-dw", 0.01)):
        keep(tmp_path, "cars-features", loss, base + lead * (1 + noise))

    def sample(number: str) -> Any:
        page = claims.Page(tmp_path)
        (item,) = [item for item in page.differences if item.number == number]
        return page.sample(item)

    before = sample("B2")
    for suffix, lead in (("-search-2", -0.02), ("-search-3", 0.06)):
        keep(tmp_path, "cars-features", f"mpa{suffix}", base + lead * (1 + noise))
        keep(tmp_path, "cars-features", f"proxy-anchor{suffix}", base)
    after = sample("B2")
    # The leads of MPA over the searches, 0.02, −0.02 and 0.06, have a variance of 0.0016, half of it for each loss.
    # Three searches of Proxy-Anchor and one of MPA-DW: 0.0008 · (1 + 1/3).
    assert after.searches == 3
    assert after.mean == pytest.approx(before.mean, abs=1e-6)
    assert after.error == pytest.approx((0.0008 * 4 / 3) ** 0.5, rel=1e-2)
    assert after.freedom == pytest.approx(2, abs=0.1)


def test_on_characters_both_losses_have_the_norm(claims: Any, tmp_path: Path) -> None:
    for setting in ("glyphs-small", "cars-features"):
        keep(tmp_path, setting, "warp", [0.8, 0.9])
        keep(tmp_path, setting, "proxy-nca-plus-plus", [0.4, 0.3])
        keep(tmp_path, setting, "proxy-nca-plus-plus-with-norm", [0.7, 0.7])
    found = {item.setting: item for item in claims.Page(tmp_path).differences if item.number == "C6"}
    assert found["glyphs-small"].values[0] == pytest.approx([0.1, 0.2])
    assert found["cars-features"].values[0] == pytest.approx([0.4, 0.6])
    assert (found["glyphs-small"].has_norm, found["cars-features"].has_norm) == (True, None)


def test_newer_runs_join_older_ones_or_replace_them(claims: Any, tmp_path: Path) -> None:
    keep(tmp_path, "omniglot", "softmax", [0.5, 0.6])
    evidence = script("_evidence").Evidence(tmp_path)

    def add(seed: int, value: float) -> None:
        metrics = {"recall@1": value, "map@r": value, "ndcg@8": value}
        evidence.keep("omniglot", "softmax", {"condition": "", "seed": seed, **metrics})

    def values() -> Mapping[int, float]:
        return claims.read(tmp_path, "omniglot", "runs", "softmax", "recall@1")

    add(0, 0.5)
    add(5, 0.7)
    assert values() == {0: 0.5, 1: 0.6, 5: 0.7}
    add(0, 0.51)
    assert values() == {0: 0.51, 5: 0.7}


def test_centres_and_reality_checks_are_read(claims: Any) -> None:
    cells: dict[str, list[dict[str, Any]]] = {}
    for (dataset, name), rows in grouped("centres").items():
        if dataset == "makers" and name.startswith("mpa-k"):
            cells[name] = rows
    one = cells.pop("mpa-k1-drawn")
    best = max(cells.values(), key=lambda rows: statistics.fmean(row["validation"] for row in rows))
    for name, rows in (("mpa@one proxy", one), ("mpa@several proxies", best)):
        expected = {row["seed"]: row["recall@1"] for row in rows}
        assert claims.read(KEPT, "cars-features", "centres", name, "recall@1") == expected
    assert claims.read(KEPT, "omniglot", "centres", "mpa@one proxy", "recall@1") == {}
    assert len(claims.read(KEPT, "cars-features", "reality check", "warp@complete", "map@r")) == 10


def test_the_headline_on_the_layer_norm_is_that_of_its_table() -> None:
    made = script("norm").tables(None, script("_experiments").Kept(KEPT, "glyphs-small"))
    rows = made["norm-glyphs-small"].records
    columns = ("gain in MAP@R", "MAP@R with", "MAP@R without")
    gains, *both = ([float(row[name].split(" ± ")[0]) for row in rows] for name in columns)
    losses = {row["loss"].removesuffix("-two-phases").removesuffix("-off-first") for row in rows}
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"{len(rows)} searches of {len(losses)} losses" in readme
    assert f"norm adds {statistics.fmean(gains):.1f} points of MAP@R on average" in readme
    assert "deviation of {:.1f} to {:.1f}".format(*sorted(map(statistics.stdev, both))) in readme


# All numbers of the page once more, from the Parquet tables and the words of rule.md, with numpy alone.

Values = dict[int, float]
REPEATED = [  # the pairs whose searches were repeated
    *(("arcface-with-norm", "softmax-with-norm"), ("euclidean-softmax", "softmax-with-norm"), ("mpa", "proxy-anchor")),
    *(("softmax-mean-proxy", "softmax"), ("warp", "euclidean-softmax-two-phases"), ("softmax-with-norm", "softmax")),
]
DISPLAYED = {"cars-features": "photographs, heads", "cars-pretrained": "photographs, fine-tuned"}
DISPLAYED |= {"glyphs-small": "Glyphs", "omniglot": "Omniglot"}


@functools.cache
def grouped(table: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The rows of a table by data set and loss."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in pq.read_table(KEPT / f"{table}.parquet").to_pylist():
        found.setdefault((row["dataset"], row["name"]), []).append(row)
    return found


def by_seed(table: str, setting: str, loss: str, condition: str, metric: str) -> Values:
    found = [row for row in grouped(table).get((setting, loss), []) if row["condition"] == condition]
    return {row["seed"]: row[metric] for row in found if row[metric] is not None}


def runs_of(setting: str, loss: str, condition: str, metric: str) -> Values:
    old, new = (by_seed(table, setting, loss, condition, metric) for table in ("runs", "evidence"))
    for seed in sorted(old.keys() & new.keys())[:1]:
        for other in ("recall@1", "map@r", "ndcg@8"):
            first, second = (by_seed(table, setting, loss, condition, other) for table in ("runs", "evidence"))
            if seed in first and first[seed] != second.get(seed):
                return new
    return old | new


def check_of(setting: str, loss: str, kind: str, metric: str) -> Values:
    found = grouped("checks").get((setting, loss), [])
    return {row["repeat"]: row["value"] for row in found if (row["kind"], row["metric"]) == (kind, metric)}


def tail(x: float, freedom: float) -> float:
    """Two-sided p-value of Student's t: with t = √f tan θ its density is cos(θ)^(f − 1)."""
    limit = math.atan(abs(x) / freedom**0.5)
    steps = np.linspace(0, 1, 4001)

    def integral(low: float, high: float) -> float:
        heights = np.cos(low + (high - low) * steps) ** (freedom - 1)
        weights = np.ones_like(steps)
        weights[1:-1:2], weights[2:-1:2] = 4, 2  # Simpson
        return float((heights * weights).sum() * (high - low) / 12000)

    return integral(limit, math.pi / 2) / integral(0, math.pi / 2)


def quantile(p: float, freedom: float) -> float:
    """The t whose two-sided p-value is p."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle, freedom) > p else (low, middle)
    return low


def expected_of(item: Any) -> dict[str, Any]:
    """The lists of differences of a part of a claim, each of a search, and the weights of its losses."""
    setting, metric, part, claim = item.setting, item.claim["metric"], item.part, item.claim
    if item.component:
        one, other = {"several-proxies": ("K=10", "K=1"), "mean-proxy": ("regularizer", "no regularizer")}.get(
            item.component, ("warp", "no warp")
        )
        first, second = (by_seed("evidence", setting, item.component, side, metric) for side in (one, other))
        return {"own": [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]}
    if " / " in part:
        ratios = set()
        for loss in {loss for dataset, loss in grouped("checks") if dataset == setting}:
            spreads = [np.std([*check_of(setting, loss, "complete", m).values()], ddof=1) for m in part.split(" / ")]
            ratios.add(math.log(spreads[0] / spreads[1]))
        return {"own": sorted(ratios)}
    if claim["read"] == "alpha":
        function = part.partition("@")[2]
        alpha = float(function.partition("-")[2])
        for row in grouped("evidence").get((setting, "distance-functions"), []):
            if row["condition"] == function and "loss" in json.loads(row["values"]):
                alpha = json.loads(row["values"])["loss"]["init_args"]["alpha"]
        distances = runs_of(setting, "distance-functions", function, "avg_dtp")
        return {"own": [0.1 - abs(value / alpha - 1) for value in distances.values()]}
    normed = claim["layer_norm"] and setting in ("glyphs-small", "omniglot") and claim["read"] == "runs"
    have_it = ("euclidean-softmax", "euclidean-softmax-two-phases", "warp", "warp-off-first")
    pieces = re.split(r" ([+−]) ", part)
    terms = [
        (1, pieces[0]),
        *((1 if sign == "+" else -1, name) for sign, name in zip(pieces[1::2], pieces[2::2], strict=True)),
    ]
    weights: dict[str, int] = {}
    named = []
    for sign, name in terms:
        loss, _, condition = name.partition("@")
        loss += "-with-norm" if normed and loss not in have_it else ""
        weights[loss] = weights.get(loss, 0) + sign
        named.append((sign, loss, condition))
    weights = {loss: weight for loss, weight in weights.items() if weight}

    def repeated(loss: str, suffix: str) -> bool:
        return claim["read"] == "runs" and bool(by_seed("runs", setting, f"{loss}{suffix}", "", "recall@1"))

    def values_of(loss: str, condition: str, suffix: str) -> Values:
        loss += suffix if suffix and repeated(loss, suffix) else ""
        if claim["read"] == "reality check":
            return check_of(setting, loss, condition, metric)
        if claim["read"] == "epochs":
            condition, _, epoch = condition.rpartition(" epoch ")
            found = grouped("epochs").get((setting, loss), [])
            found = [row for row in found if (row["condition"], str(row["epoch"])) == (condition, epoch)]
            return {row["seed"]: row[metric] for row in found}
        if claim["read"] == "centres":
            data = {"cars-features": "makers", "glyphs-small": "letters"}[setting]
            cells = {name: rows for (dataset, name), rows in grouped("centres").items() if dataset == data}
            several = [name for name in cells if name.startswith(f"{loss}-k") and "-k1-" not in name]
            best = max(several, key=lambda name: np.mean([row["validation"] for row in cells[name]]))
            chosen = f"{loss}-k1-drawn" if condition == "one proxy" else best
            return {row["seed"]: row[metric] for row in cells[chosen]}
        return runs_of(setting, loss, condition, metric)

    searches = ["", *(s for s in ("-search-2", "-search-3") if any(repeated(loss, s) for loss in weights))]
    lists = []
    for suffix in searches:
        columns = [(sign, values_of(loss, condition, suffix)) for sign, loss, condition in named]
        seeds = sorted(set.intersection(*(set(column) for _, column in columns)))
        if len(seeds) > 1:
            lists.append([sum(sign * column[seed] for sign, column in columns) for seed in seeds])
    if not weights or len(terms) == 1:
        return {"own": lists[0]}
    numbers = {loss: 1 + sum(repeated(loss, s) for s in ("-search-2", "-search-3")) for loss in weights}
    share = np.mean([1 / numbers.get(loss, 1) for _, loss, _ in named])
    return {"lists": lists, "weights": weights, "numbers": numbers, "share": share, "terms": len(terms)}


def test_every_number_is_that_of_an_independent_computation(claims: Any, page: Any) -> None:
    items = page.differences
    given_claims = yaml.safe_load((FOLDER / "claims.yaml").read_text(encoding="utf-8"))
    expected = {item: expected_of(item) for item in items}
    pools: dict[tuple[Any, ...], list[list[float]]] = {}
    for item, found in expected.items():
        if "lists" in found:
            pools.setdefault((item.setting, item.claim["metric"], item.claim["read"], found["terms"]), []).extend(
                found["lists"]
            )
    estimates = {}
    for item, found in expected.items():
        if "own" in found:
            values = np.array(found["own"])
            estimates[item] = values.mean(), values.std(ddof=1) / len(values) ** 0.5, len(values) - 1
            continue
        lists = pools[item.setting, item.claim["metric"], item.claim["read"], found["terms"]]
        freedom = sum(len(values) - 1 for values in lists)
        seeds = sum((len(values) - 1) * np.var(values, ddof=1) for values in lists) / freedom
        seeds *= found["share"] / len(found["lists"][0])
        nearest = {"cars-pretrained": "cars-features", "omniglot": "glyphs-small"}
        of_searches = nearest.get(item.setting) or item.setting
        metric = item.claim["metric"] if item.claim["metric"] in ("recall@1", "map@r", "ndcg@8") else "recall@1"
        squares, search_freedom, noise = 0.0, 0, []
        for one, other in REPEATED:
            means = []
            for suffix in ("", "-search-2", "-search-3"):
                first, second = (by_seed("runs", of_searches, f"{loss}{suffix}", "", metric) for loss in (one, other))
                values = np.array([first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())])
                if len(values) > 1:
                    means.append(values.mean())
                    noise.append(values.var(ddof=1) / len(values))
            if len(means) > 1:
                squares += (len(means) - 1) * np.var(means, ddof=1)
                search_freedom += len(means) - 1
        search = max(squares / search_freedom - np.mean(noise), 0) / 2
        search *= sum(weight**2 / found["numbers"][loss] for loss, weight in found["weights"].items())
        total = seeds + search
        combined = total**2 / (seeds**2 / freedom + search**2 / search_freedom)
        estimates[item] = np.mean([np.mean(values) for values in found["lists"]]), total**0.5, combined
    shown = {(row[0], row[1], row[2]): row for row in page.tables()["claims-numbers"].rows}
    assert len(shown) == len(items) > 150
    for paper in "ABC":
        for setting, displayed in DISPLAYED.items():
            group = [item for item in items if (item.number[0], item.setting) == (paper, setting)]
            p_values = {item: tail(estimates[item][0] / estimates[item][1], estimates[item][2]) for item in group}
            same = {(item.component or item.part, item.claim["metric"], item.read): p_values[item] for item in group}
            ordered, count = sorted(same.values()), len(same)
            rejected = max((rank for rank, p in enumerate(ordered, 1) if p <= 0.05 * rank / count), default=0)
            for item in group:
                mean, error, freedom = estimates[item]
                half = quantile(0.05 * max(rejected, 1) / count, freedom) * error
                gains = given_claims[item.number]["parts"]
                gain = item.gains.get("Cars196") if setting.startswith("cars") else None
                assert item.gains in gains.values()
                if p_values[item] <= 0.05 * rejected / count:
                    verdict = {"holds"} if mean > 0 else {"contradicted"}
                elif gain is not None and mean - half <= 0 and 100 * (mean + half) < gain:
                    verdict = {"contradicted"}
                else:
                    verdict = {"inconclusive", "too few runs"}
                place = (
                    {"cars-features": " (makers)", "glyphs-small": " (letters)"}[setting]
                    if item.read == "centres"
                    else ""
                )
                row = shown[f"{item.number}: {item.name}{place}", displayed, claims.METRIC_NAMES[item.claim["metric"]]]
                factor = 1 if item.claim["metric"] in ("avg_dtp", "alignment") and item.read != "alpha" else 100
                ends = [float(end) for end in str(row[7]).split(" to ")]
                wanted = [mean - half, mean + half]
                wanted = [math.exp(end) for end in wanted] if item.is_ratio else [factor * end for end in wanted]
                middle = math.exp(mean) if item.is_ratio else factor * mean
                assert [float(row[6]), *ends] == pytest.approx([middle, *wanted], abs=0.0051)
                assert float(row[9]) == pytest.approx(p_values[item], abs=6e-4)
                assert row[-1] in verdict, (item.number, item.name)
