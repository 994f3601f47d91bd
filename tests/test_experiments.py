"""docs/experiments: names in scripts exist, and tables match the kept runs."""

import csv
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.tables import Table

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "experiments"
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


def test_every_run_of_the_rule_has_a_recipe(script: Callable[[str], Any], shared: Any, tmp_path: Path) -> None:
    evidence = script("evidence")
    runner = evidence.Runner(FOLDER / "kept", dict.fromkeys(shared.DATA_SETS), tmp_path)
    needs_features = "few images, small batches, K, α", "cells not tested before"
    for name, row in runner.rows().items():
        for runs in row() if name not in needs_features else ():
            read_recipe(runs.recipe, {**shared.LEAN, **runs.values}, own_code=True)
    assert evidence.status(runner).columns[:2] == ["row", "runs"]
