"""Configurations that are drawn from a search space, and a comparison of recipes at each of them."""

import json
import math
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import csv_rows, run_here
from proxemic.errors import UserError
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.report import write_comparison_report
from proxemic.studies.comparison import markdown
from proxemic.studies.comparison.configurations import plan_configurations
from proxemic.studies.comparison.directory import Comparison
from proxemic.studies.comparison.entries import Entry, read_entry
from proxemic.studies.comparison.run import compare
from proxemic.studies.jobs import Workers
from proxemic.studies.statistics import found_effect, power, t_interval

OVERRIDES: dict[str, Any] = {"training.epochs": 1, "evaluation.untrained": False, "training.loggers": []}


def entries(name: str, *flags: str) -> list[Entry]:
    """A recipe, and the same with flags."""
    first = read_entry(name, ())
    return [first, read_entry(name, flags, [first])]


def test_a_configuration_is_drawn_from_the_space_and_depends_on_its_number_alone() -> None:
    pair = entries("glyphs-small/mpa", "--loss.proxies_per_class", "12")
    drawn, note = plan_configurations(pair, 40, None, None, ())
    assert plan_configurations(pair, 3, None, None, ())[0] == drawn[:3]
    loss = ("alpha", "margin", "gamma", "center_weight")
    assert drawn[0].keys() == {"optim.lr", "optim.loss_lr", *(f"loss.{key}" for key in loss)}
    rates = [configuration["optim.lr"] for configuration in drawn]
    own = pair[0].recipe["optim"]["lr"]
    assert all(own / 10 <= rate <= own * 10 for rate in rates)
    assert min(rates) < own / 3
    assert max(rates) > own * 3, "uniform in the logarithm"
    assert note.startswith("Drawn: optim.lr, ")


def test_whole_numbers_are_equally_likely(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("loss.proxies_per_class: {low: 1, high: 3, int: true}\n")
    drawn, _ = plan_configurations(entries("glyphs-small/mpa", "--optim.lr", "0.01"), 3000, str(space), None, ())
    counts = Counter(configuration["loss.proxies_per_class"] for configuration in drawn)
    assert counts.keys() == {1, 2, 3}
    assert all(abs(count - 1000) < 100 for count in counts.values()), counts  # four standard deviations


def test_what_differs_or_is_given_is_not_drawn_and_what_a_recipe_lacks_is_left_out(tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("{extends: glyphs-small/softmax-mean-proxy, loss: {regularizers: []}, optim: {lr: 0.0123}}\n")
    first = read_entry("glyphs-small/softmax-mean-proxy", ())
    pair = [first, read_entry(str(other), (), [first])]
    drawn, note = plan_configurations(pair, 3, None, None, ("--optim.loss_lr", "0.1"))
    assert drawn[0].keys() == {"loss.scale", "loss.regularizers.weight"}
    assert "recipes differ in it or flags set it: optim.lr, optim.loss_lr." in note
    assert note.endswith("other.yaml has no loss.regularizers.weight.")
    made = Comparison(tmp_path, tuple(pair), (0, 1, 2), configurations=drawn)
    with_it, without = (made.cell(entry, 1) for entry in pair)
    assert with_it.values == drawn[1]
    assert without.values == {"loss.scale": drawn[1]["loss.scale"]}
    assert with_it.path.name == "configuration-1"


def test_configurations_near_a_recipe_and_of_both_phases() -> None:
    name = "glyphs-small/warped-softmax"
    own = yaml.safe_load(read_recipe(find_recipe(name)).yaml)
    drawn, _ = plan_configurations(entries(name, "--loss.delta_scale", "2"), 30, None, name, ())
    for configuration in drawn:
        ratio = configuration["loss.temperature"] / own["loss"]["init_args"]["temperature"]
        assert abs(math.log(ratio)) <= math.log(20 / 0.1) / 4 + 1e-6, "a quarter of the range on either side"
        assert abs(configuration["loss.k2"] - own["loss"]["init_args"]["k2"]) <= (2.5 - 1.01) / 4
        factor = configuration["second_phase.optim.lr"] / configuration["optim.lr"]
        assert 0.01 <= factor <= 1
    assert "loss.delta_scale" not in drawn[0]


@pytest.fixture
def pair(recipes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Comparison:
    monkeypatch.setattr(Workers, "run", run_here)
    lines: list[str] = []
    made = compare(
        recipes[:1],
        out=tmp_path / "paired",
        vary=["loss.proxies_per_class=1,2"],
        paired=3,
        overrides=OVERRIDES,
        report=lines.append,
    )
    assert lines[1].endswith("2 recipes × 3 configurations, 6 cells, 0 finished before")
    assert "configuration 0: recall@1" in lines[2]
    return made


def test_recipes_are_paired_by_configuration(
    pair: Comparison, recipes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair.entries
    for number, configuration in enumerate(pair.configurations):
        contents = [
            yaml.safe_load((pair.cell(entry, number).path / "recipe.yaml").read_text()) for entry in pair.entries
        ]
        assert contents[0]["seed"] == contents[1]["seed"] == number
        assert contents[0]["optim"]["lr"] == configuration["optim.lr"]
        assert [content["loss"]["init_args"].pop("proxies_per_class") for content in contents] == [1, 2]
        assert contents[0] == contents[1], "otherwise the same"
    results = pair.results()
    values = [[results[entry][number].values["test"]["recall@1"] for number in range(3)] for entry in (one, other)]
    differences = [b - a for a, b in zip(*values, strict=True)]
    text, estimate, deviation = markdown(pair), t_interval(differences), statistics.stdev(differences)
    assert "2 recipes × 3 configurations, evaluated" in text
    page = write_comparison_report(pair, out=pair.path / "report.html").read_text()
    assert "seed" not in text + page[page.index("<h1") :]
    assert "map@r" not in text, "one metric decides"
    shown = f"{100 * estimate.mean:.2f} ± {100 * (estimate.half_width or 0):.2f}"
    assert f"| {'+' if estimate.mean > 0 else ''}{shown} | 3 | {100 * deviation:.2f} |" in text
    if deviation:
        effect = found_effect(deviation, 3)
        assert power(effect, deviation, 3) == pytest.approx(0.8)
        assert f"| {100 * effect:.2f} |" in text
    rows = csv_rows(pair.path / "configurations.csv")
    assert len(rows) == 6
    assert float(rows[0]["optim.lr"]) == pair.configurations[0]["optim.lr"]
    # The same command continues, and more configurations are added.
    options: dict[str, Any] = {"vary": ["loss.proxies_per_class=1,2"], "overrides": OVERRIDES, "report": str}
    trained: list[Path] = []
    monkeypatch.setattr(Workers, "run", lambda _, jobs, **__: trained.extend(job.out for job in jobs))
    more = compare(recipes[:1], out=pair.path, paired=4, **options)
    assert more.configurations[:3] == pair.configurations
    assert [path.name for path in trained] == ["configuration-3"] * 2
    assert compare(resume=pair.path, report=str).configurations == more.configurations
    with pytest.raises(UserError, match="begun with other configurations"):
        compare(recipes[:1], out=pair.path, paired=4, around="glyphs-small/mpa", **options)
    with pytest.raises(UserError, match="has paired configurations: give --paired"):
        compare(recipes[:1], out=pair.path, **options)
    assert len(json.loads((pair.path / "comparison.json").read_text())["configurations"]) == 4


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"paired": 2, "vary": ["loss.alpha=8,16"]}, "--paired is 2, but must be at least 3"),
        ({"paired": 3}, "--paired compares what differs at equal configurations: give --vary"),
        ({"paired": 3, "vary": ["loss.alpha=8,16"], "seeds": [0]}, "leave --seeds out"),
        ({"space": "MultiProxyAnchorLoss", "vary": ["loss.alpha=8,16"]}, "give --paired N, too"),
        ({"paired": 3, "vary": ["loss.alpha=8,16", "other.yaml"]}, "given a key and a file"),
    ],
)
def test_what_is_refused(given: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises((UserError, ValueError), match=words):
        compare(["glyphs-small/mpa"], out=tmp_path / "out", dry_run=True, **given)
    assert list(tmp_path.iterdir()) == []
