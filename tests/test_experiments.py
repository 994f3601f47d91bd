"""docs/experiments: names in scripts exist, and tables match the kept runs."""

import csv
import importlib
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxemic import train
from proxemic.errors import UserError
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.studies.statistics import power
from proxemic.tables import Table

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "experiments"
TINY = {"data.train_classes": 8, "data.test_classes": 4, "training.epochs": 1, "model.width": 8}
TINY |= {"evaluation.start": False}
MARK = re.compile(r"<!-- table: (\S+\.csv) -->\n((?:(?!<!--)[^|\n].*\n|\n)+)((?:\|.*\n)+)")


@pytest.fixture(scope="module")
def script() -> Iterator[Callable[[str], Any]]:
    """Imports a script by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module


@pytest.fixture(scope="module")
def shared(script: Callable[[str], Any]) -> Any:
    return script("_experiments")


@pytest.fixture(scope="module")
def centres(script: Callable[[str], Any]) -> Any:
    return script("centres")


@pytest.fixture
def known(shared: Any, tmp_path: Path) -> Any:
    """The kept runs of a data set, in an empty folder."""
    return shared.Kept(tmp_path / "glyphs-small")


def keep(known: Any, loss: str, values: Sequence[float], condition: str = "") -> None:
    """Keep runs with these values of all metrics, by seed."""
    by_seed = dict(enumerate(values))
    known.keep_runs(loss, {"recall@1": by_seed, "map@r": by_seed, "ndcg@8": by_seed}, condition)


def in_full(recipe: str) -> Any:
    return yaml.safe_load(read_recipe(find_recipe(recipe)).yaml)


def test_documented_tables_are_those_of_the_csv_files() -> None:
    texts = {path.relative_to(DOCS): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    tables = [(page, *found) for page, text in texts.items() for found in MARK.findall(text)]
    marks = sum(text.count("<!-- table:") for text in texts.values())
    assert len(tables) == marks, "a mark stands above the words that name the command and the commit, and its table"
    for page, name, words, table in tables:
        with (FOLDER / name).open(newline="", encoding="utf-8") as file:
            columns, *rows = csv.reader(file)
        assert table == Table(columns, rows).text("markdown") + "\n", f"{page}: the table is not that of {name}"
        assert re.search(r"`.*(python docs/experiments/\w+\.py|proxemic) .*`", words), f"{page}, {name}: no command"
        assert re.search(r"commit `?[0-9a-f]{7,40}`?\b", words), f"{page}, {name}: no commit"
    kept = {path.name for path in FOLDER.glob("*.csv") if not path.name.startswith("curves-")}
    assert kept == {name for _, name, _, _ in tables}


def test_the_summary_of_the_results_is_that_of_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(DOCS))
    make_dots = importlib.import_module("make_dots")
    for dataset in make_dots.DATA_SETS:
        picture = (DOCS / "results" / f"{dataset}.svg").read_text(encoding="utf-8")
        assert picture == make_dots.drawn(dataset), "python docs/make_dots.py draws it anew"
    tables = "".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.csv"))
    figures = re.findall(r"-?[\d.]+ ± [\d.]+\d", (DOCS / "results.md").read_text(encoding="utf-8"))
    assert len(figures) > 8
    assert [figure for figure in figures if figure not in tables] == []


def test_every_search_names_a_recipe(shared: Any) -> None:
    for dataset in shared.DATA_SETS:
        assert {"softmax", "mpa-ap", "multi-similarity", "warp-off-first"} < {*shared.searched(dataset)}


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The values of nested mappings and lists by their path, whether a class's arguments are named alone or not."""
    if not isinstance(value, dict | list):
        return {path.replace(".init_args", ""): value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for key, child in items for name, leaf in leaves(child, f"{path}.{key}").items()}


@pytest.mark.parametrize("dataset", ["glyphs-small", "omniglot"])
def test_recipes_of_characters_have_what_the_searches_found(dataset: str, shared: Any) -> None:
    for name in shared.searched(dataset):
        if name.endswith("-attracting"):
            continue  # its recipe comes from the search over the whole range of k1
        # Read as a recipe: one that was kept lacks the keywords that losses got later.
        found = leaves(yaml.safe_load(read_recipe(shared.Kept(FOLDER / "kept" / dataset).recipe(name)).yaml))
        recipe = in_full(f"{dataset}/{shared.SEARCHES[name].recipe}")
        sections = ("model", "loss", "optim", "batches", "second_phase", "images", "augment")
        values = leaves({section: recipe[section] for section in sections})
        for path, value in (values | {".training.epochs": recipe["training"]["epochs"]}).items():
            # Recipes are rounded to three digits.
            expected = pytest.approx(found[path], rel=0.005) if isinstance(value, float) else found[path]
            assert value == expected, f"{dataset}, {name}: {path}"


def test_losses_that_are_compared_are_searched(script: Callable[[str], Any], shared: Any) -> None:
    compare, conditions = script("compare"), script("conditions")
    assert {name for pair in (*compare.CLAIMS, *compare.ON_CARS) for name in pair} <= {*shared.SEARCHES}
    searched = {*shared.searched("cars-features"), *shared.OTHER_NORM}
    assert all(searched.issuperset(losses) for losses in (conditions.LOSSES, *conditions.WHOSE.values()))


def test_all_kept_recipes_are_read() -> None:
    files = [*(FOLDER / "kept").rglob("*.yaml")]
    assert len(files) > 300
    for file in files:
        assert read_recipe(file).recipe.training.epochs > 0, file


def test_removed_keys_are_dropped_from_kept_recipes_that_have_their_default(
    script: Callable[[str], Any], tmp_path: Path
) -> None:
    drop_keys = script("drop_keys").drop_keys
    kept = (FOLDER / "kept" / "omniglot" / "searches" / "softmax.yaml").read_text(encoding="utf-8")
    assert "  warmup_epochs: 0\n" in kept
    (tmp_path / "default.yaml").write_text(kept)
    other = tmp_path / "other.yaml"
    other.write_text(kept.replace("warmup_epochs: 0", "warmup_epochs: 2"))
    gone = {"training.warmup_epochs": 0, "training.never_there": 1, "second_phase.epochs": None}
    with pytest.raises(UserError, match=r"other\.yaml has training\.warmup_epochs: 2, and not the default, 0"):
        drop_keys(tmp_path, gone)
    assert (tmp_path / "default.yaml").read_text() == kept  # all or nothing
    other.unlink()
    assert drop_keys(tmp_path, gone) == 1
    assert (tmp_path / "default.yaml").read_text() == kept.replace("  warmup_epochs: 0\n", "")
    assert drop_keys(tmp_path, gone) == 0


def test_a_configuration_is_near_what_a_search_found(script: Callable[[str], Any], shared: Any) -> None:
    paired = script("paired")
    known = shared.Kept(FOLDER / "kept" / "glyphs-small")
    drawn = paired.read_configurations(known, "warp")
    found = yaml.safe_load(known.recipe("warp-search-2").read_text())  # 4 mod 3 searches
    first, second = found["loss"]["init_args"], found["second_phase"]["loss"]["init_args"]
    # A quarter of the range of temperature: 0.1 to 20, in its logarithm, and a factor of 0.1 to 1 in the second phase.
    ratio = drawn[4]["loss.temperature"] / first["temperature"]
    assert abs(math.log(ratio)) < math.log(200) / 4
    factors = drawn[4]["second_phase.loss.temperature"] / drawn[4]["loss.temperature"], second["temperature"]
    assert abs(math.log(factors[0] / (factors[1] / first["temperature"]))) < math.log(10) / 4
    assert abs(drawn[4]["loss.k1"] - first["k1"]) < (0.99 - 0.1) / 4
    assert drawn[4]["second_phase.loss.delta_scale"] == drawn[4]["loss.delta_scale"]


def test_the_two_sides_of_a_pair_differ_in_the_component_alone(script: Callable[[str], Any], shared: Any) -> None:
    paired = script("paired")
    known = shared.Kept(FOLDER / "kept" / "glyphs-small")
    losses = {}
    for name, component in paired.COMPONENTS.items():
        drawn = paired.read_configurations(known, name)[0]
        recipe, sides = paired.searches_of(known, component.loss)[0], []
        for condition in (component.with_it, component.without):
            content = yaml.safe_load(read_recipe(recipe, component.values(condition, drawn)).yaml)
            phases = [content, *([content["second_phase"]] if content["second_phase"] else [])]
            sides.append([phase.pop("loss") for phase in phases])
            sides[-1].append(content)
        assert sides[0][-1] == sides[1][-1], "all but the loss"
        losses[name] = [side[:-1] for side in sides]
    (several,), (one,) = losses["several-proxies"]
    assert [loss["init_args"].pop("proxies_per_class") for loss in (several, one)] == [10, 1]
    assert several == one
    (with_it,), (without,) = losses["mean-proxy"]
    assert with_it["init_args"].pop("regularizers")[0]["class_path"].endswith("MeanProxyNorm")
    assert without["init_args"].pop("regularizers") == []
    assert with_it == without
    (warp, second), (none, second_of_none) = losses["warp"]
    assert none["class_path"] == "proxemic.losses.EuclideanSoftmaxLoss"
    assert none["init_args"]["temperature"] == warp["init_args"]["temperature"]
    assert second_of_none == {"temperature": second["temperature"]}


def test_new_pairs_are_compared_by_the_command(script: Callable[[str], Any], shared: Any, tmp_path: Path) -> None:
    paired, known = script("paired"), shared.Kept(FOLDER / "kept" / "glyphs-small")
    for name, component in paired.COMPONENTS.items():
        made = paired.compare(known, name, 3, tmp_path, None, dry_run=True)
        _, without = made.entries
        assert made.baseline_of(made.entries) == without
        assert component.without in without.title
        assert len(made.configurations) == 3
        cells = [made.cell(entry, 2) for entry in made.entries]
        files = [tmp_path / cell.entry.title for cell in cells]
        flags = [cell.job.flags for cell in cells]
        contents = [yaml.safe_load(read_recipe(file, of).yaml) for file, of in zip(files, flags, strict=True)]
        for content in contents:
            second = content["second_phase"] or {}
            losses = [content.pop("loss"), second.pop("loss", None)]
            content["temperature"] = losses[0]["init_args"].get("temperature")
        assert contents[0] == contents[1], "all but the loss, which keeps what both have"
        lacking = {*cells[0].values} - {*cells[1].values}
        assert bool(lacking) == (name != "several-proxies")


def test_the_spread_of_the_first_pairs_alone_sets_their_number(
    script: Callable[[str], Any], known: Any, tmp_path: Path
) -> None:
    paired, evidence = script("paired"), script("_evidence").Evidence(tmp_path)

    def pair(number: int, gain: float) -> None:
        for condition, recall in (("K=10", 0.5 + gain / 100), ("K=1", 0.5)):
            evidence.keep("glyphs-small", "several-proxies", keyed(condition, number, recall))

    def keyed(condition: str, seed: int, recall: float) -> dict[str, Any]:
        return {"condition": condition, "seed": seed, "recall@1": recall}

    count = lambda: paired.number_of(evidence, "glyphs-small", "several-proxies")  # noqa: E731
    for number in range(19):
        pair(number, 5 + 2.2 * (-1) ** number)
    assert count() == 20, "not yet known"
    pair(19, 5 - 2.2)
    spread = statistics.stdev([2.2, -2.2] * 10)
    n = count()
    assert 60 < n < 120
    assert power(0.7, spread, n - 1) < 0.8 <= power(0.7, spread, n)
    pair(20, 50)
    assert count() == n, "later pairs change nothing"


def test_evidence_is_kept_run_by_run(
    script: Callable[[str], Any], shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = script("_evidence")
    recipe = find_recipe("glyphs-small/euclidean-softmax-two-phases")
    values = TINY | {"training.epochs": 2, "second_phase.epochs": 1}
    runs = made.Runs("glyphs-small", "plain", "", recipe, range(2), values, history=True)
    evidence = made.Evidence(tmp_path)
    made.make(evidence, runs, tmp_path / "out", "0123abcd")
    rows = evidence.read("glyphs-small", "plain")
    overrides = {**shared.LEAN, **values, "seed": 1}
    test = train(recipe, tmp_path / "run", overrides=overrides).metrics["test"]
    assert {name: float(rows["", 1][name]) for name in made.METRICS} == {name: test[name] for name in made.METRICS}
    assert (rows["", 1]["commit"], rows["", 1]["diverged"]) == ("0123abcd", "")
    assert json.loads(rows["", 1]["values"]) == {**shared.LEAN, **values}
    epochs = shared.read_rows(tmp_path / "glyphs-small" / "evidence" / "plain-epochs.csv")
    assert [(row["seed"], row["epoch"]) for row in epochs] == [("0", "1"), ("0", "2"), ("1", "1"), ("1", "2")]
    # A run that diverges in its second phase has the metrics of the only epoch before, and one that diverges at once
    # those of the network before training.
    too_high = {"second_phase.optim.lr": 1e30, "second_phase.optim.loss_lr": 1e30}
    diverged, _ = made.train_once(made.Runs("glyphs-small", "high", "", recipe, [1], values | too_high), 1, tmp_path)
    assert (diverged["diverged"], diverged["epoch"]) == ("yes", 1)
    at_once, _ = made.train_once(
        made.Runs("glyphs-small", "higher", "", recipe, [1], values | {"optim.lr": 1e30, "optim.loss_lr": 1e30}),
        1,
        tmp_path,
    )
    assert (at_once["diverged"], at_once["epoch"]) == ("yes", 0)
    assert 0 < float(str(at_once["map@r"])) < 1
    # Rows go to another folder without the keys that are gone.
    target = tmp_path / "target"
    assert script("copy_rows").copy_rows(tmp_path, target, ("model",)) == 6
    copied = made.Evidence(target).read("glyphs-small", "plain")["", 1]
    assert json.loads(copied["values"]).keys() == {*shared.LEAN, *values} - {"model.width"}
    assert script("copy_rows").copy_rows(tmp_path, target, ("model",)) == 0


def test_kept_seeds_are_joined_only_if_they_come_out_the_same(
    script: Callable[[str], Any], shared: Any, tmp_path: Path
) -> None:
    runner = script("evidence").Runner(tmp_path, dict.fromkeys(shared.DATA_SETS), tmp_path)
    keep(shared.Kept(tmp_path / "glyphs-small"), "mpa", [0.5, 0.6])
    runs = runner.runs("glyphs-small", "mpa", "", {}, range(4))
    for value, trained in ((0.5, [2, 3]), (0.51, [0, 1, 2, 3])):
        first, rest = (iterator := runner.joined(runs)), None
        assert [*next(first).seeds] == [0]
        row = {"condition": "", "seed": 0, "recall@1": value, "map@r": 0.5, "ndcg@8": 0.5}
        runner.evidence.keep("glyphs-small", "mpa", row)
        rest = next(iterator)
        assert [*rest.seeds] == trained


def test_every_run_of_the_rule_has_a_recipe(script: Callable[[str], Any], shared: Any, tmp_path: Path) -> None:
    evidence = script("evidence")
    runner = evidence.Runner(FOLDER / "kept", dict.fromkeys(shared.DATA_SETS), tmp_path)
    needs_features = "few images, small batches, K, α", "cells not tested before"
    for name, row in runner.rows().items():
        for runs in row() if name not in needs_features else ():
            read_recipe(runs.recipe, {**shared.LEAN, **runs.values}, own_code=True)
    assert evidence.status(runner).columns[:2] == ["row", "runs"]
