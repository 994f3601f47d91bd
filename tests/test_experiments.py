"""docs/experiments: what the scripts name exists, and tables in the documentation are those of the CSV files."""

import csv
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxemic.protocols.tuning.spaces import default_space, load_space, read_stages, resolve_factors
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe, read_yaml
from proxemic.tables import Table

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "experiments"
MARK = re.compile(r"<!-- table: (\S+\.csv) -->\n(.+?)\n((?:\|.*\n)+)", re.DOTALL)


def markdown(path: Path) -> str:
    with path.open(newline="", encoding="utf-8") as file:
        columns, *rows = csv.reader(file)
    return Table(columns, rows).text("markdown") + "\n"


def tables() -> list[tuple[str, str, str, str]]:
    """Page, CSV file, the text between its mark and the table, and the table."""
    texts = {path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    return [(page, *found) for page, text in texts.items() for found in MARK.findall(text)]


def test_documented_tables_are_those_of_the_csv_files() -> None:
    marks = sum(path.read_text(encoding="utf-8").count("<!-- table:") for path in DOCS.rglob("*.md"))
    assert len(tables()) == marks, "a mark stands above the words that name the command and the commit, and its table"
    for page, name, words, table in tables():
        assert table == markdown(FOLDER / name), f"{page}: the table is not that of {name}"
        assert re.search(r"`.*(python docs/experiments/\w+\.py|proxemic) .*`", words), f"{page}, {name}: no command"
        assert re.search(r"commit `?[0-9a-f]{7,40}`?\b", words), f"{page}, {name}: no commit"


def test_every_kept_table_is_shown() -> None:
    kept = {path.name for path in FOLDER.glob("*.csv") if not path.name.startswith("curves-")}
    assert kept == {name for _, name, _, _ in tables()}


def test_a_table_that_was_changed_by_hand_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("loss,MAP@R\nMPA,70.86 ± 1.74\n", encoding="utf-8")
    table = "| loss | MAP@R |\n| --- | --: |\n| MPA | 70.86 ± 1.74 |\n"
    assert MARK.findall(f"<!-- table: a.csv -->\n`proxemic compare x`, at commit 1234567:\n\n{table}")[0][2] == table
    assert markdown(tmp_path / "a.csv") == table
    assert markdown(tmp_path / "a.csv") != table.replace("70.86", "70.96")


def in_full(recipe: str) -> Any:
    return yaml.safe_load(read_recipe(find_recipe(recipe)).yaml)


@pytest.fixture(scope="module")
def searches() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        return importlib.import_module("_searches")


@pytest.mark.parametrize(
    ("dataset", "rates"),
    [
        ("glyphs-small", ((0.0002, 0.02), (0.002, 0.2))),
        ("omniglot", ((0.0002, 0.02), (0.002, 0.2))),
        ("cars-features", ((0.001, 0.1), (0.005, 0.5))),
        ("cars-pretrained", ((0.00003, 0.003), (0.001, 0.1))),
    ],
)
def test_every_search_has_its_recipe_and_the_same_rates(dataset: str, rates: Any, searches: Any) -> None:
    names = searches.searched(dataset)
    assert {"softmax", "mpa-ap", "multi-similarity", "warp-off-first"} < {*names}
    for name in names:
        search = searches.SEARCHES[name]
        content = in_full(f"{dataset}/{search.recipe}")
        for sibling in search.siblings if dataset != "cars-pretrained" else ():
            find_recipe(f"{dataset}/{sibling}")
        space = default_space(content) if search.space is None else load_space(search.space)
        base = in_full(searches.AROUND) if dataset in ("glyphs-small", "omniglot") else content
        stages = read_stages(resolve_factors(space, base, name), name)
        # Of features that are normalised by their layer, and so 36 times as long, for a head.
        of_a_head = dataset == "cars-features" and content["model"]["layer_norm"]
        for key, bounds in zip(("optim.lr", "optim.loss_lr"), rates, strict=True):
            if key in stages[0].search:  # losses of pairs have no proxies
                found: Any = stages[0].search[key]
                low, high = (bound / 10 for bound in bounds) if of_a_head and key == "optim.lr" else bounds
                assert (found.low, found.high, found.log) == (pytest.approx(low), pytest.approx(high), True), name
        if "loss.gamma" in stages[0].search:
            assert {"loss.proxies_per_class", "loss.gamma"} <= stages[0].search.keys()


def test_the_warp_is_searched_below_the_push_of_the_others() -> None:
    for path in (FOLDER / "spaces").glob("*.yaml"):
        ranges = [stage["search"]["loss.k1"] for stage in read_yaml(path) if "loss.k1" in stage["search"]]
        assert ranges == [{"low": 0.1, "high": 0.45}] * len(ranges) != []
