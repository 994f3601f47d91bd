"""docs/experiments: what the scripts name exists, and tables in the documentation are those of the CSV files."""

import csv
import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from comparisons import comparison, entry, finish
from proxemic.protocols.comparison import Comparison
from proxemic.protocols.tuning.directory import TuningDirectory, TuningOptions
from proxemic.protocols.tuning.spaces import default_space, load_space, read_stages, resolve_factors
from proxemic.protocols.tuning.trials import FinishedTrial
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
def script() -> Iterator[Callable[[str], Any]]:
    """Imports a script by its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module


@pytest.fixture(scope="module")
def searches(script: Callable[[str], Any]) -> Any:
    return script("_searches")


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
    for path in (FOLDER / "spaces").glob("warp-*.yaml"):
        ranges = [stage["search"]["loss.k1"] for stage in read_yaml(path) if "loss.k1" in stage["search"]]
        assert ranges == [{"low": 0.1, "high": 0.45}] * len(ranges) != []


def compared(folder: Path, values: Mapping[str, Sequence[float]]) -> Comparison:
    """A comparison of losses whose runs have these MAP@R, by seed."""
    made = comparison(folder, [entry(f"{folder}/best/{name}.yaml", dataset="Glyphs") for name in values])
    for cell in made.cells():
        value = values[Path(cell.entry.name).stem][cell.seed]
        finish(cell, {"recall@1": value, "map@r": value, "ndcg@8": value})
    return made


def test_claims_are_paired_by_seed_and_corrected_together(script: Callable[[str], Any], tmp_path: Path) -> None:
    values = {
        "softmax": (0.60, 0.64, 0.62),
        "softmax-mean-proxy": (0.61, 0.65, 0.63),
        "euclidean-softmax": (0.70, 0.72, 0.77),
        "contrastive": (0.5, 0.5, 0.5),
    }
    means, differences = script("compare").tables(compared(tmp_path, values))
    assert [row[0] for row in means.rows] == list(values)
    assert means.rows[0][2] == "62.00 ± 4.97"
    euclidean, mean_proxy = sorted(differences.rows)
    assert (mean_proxy[0], mean_proxy[2]) == ("softmax-mean-proxy − softmax", "1.00 ± 0.00")
    assert mean_proxy[-1] == "0.000"
    assert euclidean[0] == "euclidean-softmax − softmax"
    # 10, 8 and 15 points: t = 11 / (3.6056 / √3) = 5.284, whose p of two degrees of freedom is 0.0340, the larger one.
    assert euclidean[-1] == "0.034"


def test_the_table_of_noise_pairs_the_worst_with_the_clean(script: Callable[[str], Any], tmp_path: Path) -> None:
    noise = script("noise")
    shares = dict(zip(noise.SHARES, (0.6, 0.55, 0.5, 0.3), strict=True))
    made = {
        share: compared(tmp_path / str(share), {"arcface": [value, value + 0.02, value + 0.04]})
        for share, value in shares.items()
    }
    table = noise.table(made)
    assert table.columns == ["loss", "0% wrong", "10% wrong", "20% wrong", "40% wrong", "difference, 40% to 0%"]
    assert table.rows[0][0] == "arcface"
    assert [str(cell).partition(" ")[0] for cell in table.rows[0][1:]] == ["62.00", "57.00", "52.00", "32.00", "-30.00"]


def test_a_finished_search_gives_a_row_and_its_curve(
    script: Callable[[str], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = TuningDirectory(tmp_path / "glyphs-small" / "mpa")
    space = [{"search": {"optim.lr": {"factor": 10}}}]
    options = TuningOptions("mpa", [], space, "mpa", None, "tpe", "halving", None, "s", 0, budget=2.0)
    directory.create(options, "training: {epochs: 20}")
    directory.write_trials([[FinishedTrial(n, "complete", 0.5 + n / 10, {}, 1.0, steps=20) for n in range(3)]])
    (tmp_path / "kept").mkdir()
    search = script("search")
    with pytest.raises(SystemExit, match="holds no finished search"):  # only begun
        search.write_table("glyphs-small", tmp_path, tmp_path / "kept")
    (directory.path / "slices.png").touch()
    search.write_table("glyphs-small", tmp_path, tmp_path / "kept")
    printed = capsys.readouterr().out
    assert MARK.search(printed.replace("commit unknown", "commit 1234567"))
    assert "| mpa | 3 | 3.0 | 70.00 | 60.00 (" in printed
    with (tmp_path / "kept" / "curves-glyphs-small.csv").open(newline="") as file:
        assert [row["found"] for row in csv.DictReader(file)] == ["0.5", "0.6", "0.7"]


def test_claims_are_about_losses_that_are_searched(script: Callable[[str], Any], searches: Any) -> None:
    compare = script("compare")
    assert {name for pair in (*compare.CLAIMS, *compare.ON_CARS) for name in pair} <= {*searches.SEARCHES}
    assert {*script("noise").LOSSES} <= {*searches.searched("cars-features")}


@pytest.mark.parametrize(("dataset", "kept"), [("glyphs-small", True), ("cars-features", False)])
def test_weights_of_finished_runs_are_dropped(dataset: str, kept: bool, searches: Any, tmp_path: Path) -> None:
    runs = [tmp_path / "runs" / "softmax" / f"seed-{seed}" for seed in range(2)]
    for run in runs:
        (run / "checkpoints").mkdir(parents=True)
        (run / "model.safetensors").touch()
    (runs[0] / "metrics.json").touch()
    searches.report_to(tmp_path, dataset)("a line")
    assert [(run / "checkpoints").exists() for run in runs] == [False, True]
    assert [(run / "model.safetensors").exists() for run in runs] == [kept, True]


def test_a_search_on_photographs_begins_with_the_loss_that_features_came_to(searches: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cars-features mpa-ap comes first"):
        searches._first("cars-pretrained", "mpa-ap", tmp_path, None)
    for name in ("mpa-ap", "warp-off-first", "euclidean-softmax-two-phases"):
        found = tmp_path / "cars-features" / name
        found.mkdir(parents=True)
        (found / "slices.png").touch()
        recipe = searches.SEARCHES[name].recipe
        text = read_recipe(find_recipe(f"cars-features/{recipe}")).yaml
        (found / "best.yaml").write_text(
            text.replace("alpha: 32.0", "alpha: 77.0").replace("alpha: 15.0", "alpha: 9.0")
        )
        (first,) = searches._first("cars-pretrained", name, tmp_path, None)
        content = in_full(str(first))
        assert content["optim"] == in_full(f"cars-pretrained/{recipe}")["optim"]
        if name == "mpa-ap":
            assert content["loss"]["init_args"]["alpha"] == 77
        if name == "warp-off-first":
            assert content["second_phase"]["loss"]["alpha"] == 9
            assert content["second_phase"]["optim"]["lr"] == 0.0001
