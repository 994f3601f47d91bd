"""docs/experiments: what the scripts name exists, and tables in the documentation are those of the CSV files."""

import csv
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from command_line import run_here
from proxemic.errors import UserError
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe, read_yaml
from proxemic.studies.jobs import Workers
from proxemic.studies.reality_check import RealityCheckResult
from proxemic.studies.reality_check.tables import ResultRow
from proxemic.studies.tuning.directory import TuningDirectory, TuningOptions
from proxemic.studies.tuning.search import FinishedTrial
from proxemic.studies.tuning.spaces import default_space, load_space, read_stages, resolve_factors
from proxemic.tables import Table

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "experiments"
MARK = re.compile(r"<!-- table: (\S+\.csv) -->\n((?:(?!<!--)[^|\n].*\n|\n)+)((?:\|.*\n)+)")


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
    around = in_full(searches.AROUND) if dataset in ("glyphs-small", "omniglot") else None
    for name in names:
        search = searches.SEARCHES[name]
        content = in_full(f"{dataset}/{search.recipe}")
        for sibling in search.siblings if dataset != "cars-pretrained" else ():
            find_recipe(f"{dataset}/{sibling}")
        space = default_space(content) if search.space is None else load_space(search.space)
        stages = read_stages(resolve_factors(space, around or content, name), name)
        # Of features that are normalised by their layer, and so 36 times as long, for a head.
        of_a_head = dataset == "cars-features" and content["model"]["layer_norm"]
        for key, bounds in zip(("optim.lr", "optim.loss_lr"), rates, strict=True):
            if key in stages[0].search:  # losses of pairs have no proxies
                found: Any = stages[0].search[key]
                low, high = (bound / 10 for bound in bounds) if of_a_head and key == "optim.lr" else bounds
                assert (found.low, found.high, found.log) == (pytest.approx(low), pytest.approx(high), True), name
        if "loss.gamma" in stages[0].search:
            assert {"loss.proxies_per_class", "loss.gamma"} <= stages[0].search.keys()


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The values of nested mappings and lists by their path, whether a class's arguments are named alone or not."""
    if not isinstance(value, dict | list):
        return {path.replace(".init_args", ""): value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for key, child in items for name, leaf in leaves(child, f"{path}.{key}").items()}


@pytest.mark.parametrize("dataset", ["glyphs-small", "omniglot"])
def test_recipes_of_characters_have_what_the_searches_found(dataset: str, searches: Any) -> None:
    for name in searches.searched(dataset):
        if name.endswith("-attracting"):
            continue  # the recipe is that of the search over the whole range of k1
        # Read as a recipe: one that was kept lacks the keywords that losses got later.
        found = leaves(yaml.safe_load(read_recipe(searches.kept(dataset).recipe(name)).yaml))
        recipe = in_full(f"{dataset}/{searches.SEARCHES[name].recipe}")
        sections = ("model", "loss", "optim", "batches", "second_phase", "images", "augment")
        values = leaves({section: recipe[section] for section in sections}) | {
            ".training.epochs": recipe["training"]["epochs"]
        }
        for path, value in values.items():
            # Recipes are rounded to three digits.
            expected = pytest.approx(found[path], rel=0.005) if isinstance(value, float) else found[path]
            assert value == expected, f"{dataset}, {name}: {path}"


def test_the_warp_is_searched_below_the_push_of_the_others() -> None:
    for path in (FOLDER / "spaces").glob("warp-*.yaml"):
        ranges = [stage["search"]["loss.k1"] for stage in read_yaml(path) if "loss.k1" in stage["search"]]
        assert ranges == [{"low": 0.1, "high": 0.45}] * len(ranges) != []


@pytest.fixture
def known(script: Callable[[str], Any], tmp_path: Path) -> Any:
    """What is kept of a data set, in a folder of its own."""
    return script("_kept").Kept(tmp_path / "glyphs-small")


def keep(known: Any, loss: str, values: Sequence[float], condition: str = "") -> None:
    """Keep runs with these MAP@R, by seed."""
    by_seed = dict(enumerate(values))
    known.keep_runs(loss, {"recall@1": by_seed, "map@r": by_seed, "ndcg@8": by_seed}, condition)


def test_an_unknown_loss_and_a_table_of_nothing_are_one_sentence(
    script: Callable[[str], Any], searches: Any, known: Any
) -> None:
    assert searches.check_losses([], ["mpa", "softmax"]) == ["mpa", "softmax"]
    with pytest.raises(SystemExit, match=r"no loss sofmax here: take some of mpa, softmax, or name none"):
        searches.check_losses(["sofmax"], ["mpa", "softmax"])
    with pytest.raises(SystemExit, match="holds no run"):
        script("compare").tables(known)


def test_claims_are_paired_by_seed_and_corrected_together(script: Callable[[str], Any], known: Any) -> None:
    values = {
        "softmax": (0.60, 0.64, 0.62),
        "softmax-mean-proxy": (0.61, 0.65, 0.63),
        "euclidean-softmax": (0.70, 0.72, 0.77),
        "contrastive": (0.5, 0.5, 0.5),
    }
    for loss, each in values.items():
        keep(known, loss, each)
    keep(known, "softmax", (0.1, 0.1, 0.1), "40% wrong")
    keep(known, "contrastive", (0.5, 0.5, 0.56))
    # Standard deviations 2, 2, 3.6056 and 3.4641, and 8.5829 of the means 62, 63, 73 and 52; all metrics are alike.
    spread = script("compare").spread(known)
    assert spread.rows[1] == ["MAP@R", "2.87", "8.58", "3.0", "1.00 (1.00 to 1.00)"]
    means, differences = script("compare").tables(known)
    assert [row[0] for row in means.rows] == list(values)
    assert means.rows[0][2] == "62.00 ± 4.97"
    euclidean, mean_proxy = sorted(differences.rows)
    assert (mean_proxy[0], mean_proxy[2]) == ("softmax-mean-proxy − softmax", "1.00 ± 0.00")
    assert mean_proxy[-1] == "0.000"
    assert euclidean[0] == "euclidean-softmax − softmax"
    # 10, 8 and 15 points: t = 11 / (3.6056 / √3) = 5.284, whose p of two degrees of freedom is 0.0340, the larger one.
    assert euclidean[-1] == "0.034"


def test_the_table_of_a_condition_pairs_the_worst_with_none(
    script: Callable[[str], Any], searches: Any, known: Any
) -> None:
    conditions = script("conditions")
    known.recipe("arcface").parent.mkdir(parents=True)
    for loss in ("arcface", "softmax"):
        known.recipe(loss).touch()
        for name, value in zip(("", "10% wrong", "20% wrong", "40% wrong"), (0.6, 0.55, 0.5, 0.3), strict=True):
            if (loss, name) != ("softmax", "20% wrong"):  # which is not there yet
                keep(known, loss, (value, value + 0.02, value + 0.04), name)
    assert known.lacking(["arcface", "softmax", "proxy-anchor"], range(3), "20% wrong") == ["softmax"]
    assert known.lacking(["arcface"], range(4)) == ["arcface"]
    table = conditions.table(known, "wrong-labels", conditions.LOSSES, range(3))
    assert table.columns[1:] == ["as searched", "10% wrong", "20% wrong", "40% wrong", "difference of 40% wrong"]
    assert [row[0] for row in table.rows] == ["arcface"]
    assert [str(cell).partition(" ")[0] for cell in table.rows[0][1:]] == ["62.00", "57.00", "52.00", "32.00", "-30.00"]
    with pytest.raises(SystemExit, match="holds no finished loss"):
        conditions.table(known, "few-images", conditions.LOSSES, range(3))


def test_the_table_of_k_pairs_the_papers_with_one_proxy(script: Callable[[str], Any], known: Any) -> None:
    conditions = script("conditions")
    known.recipe("mpa").parent.mkdir(parents=True)
    known.recipe("mpa").touch()
    for name, value in zip(
        ("", *(f"K={k}" for k in (1, 2, 4, 8, 12, 16))), (0.9, 0.5, 0.6, 0.7, 0.75, 0.3, 0.2), strict=True
    ):
        keep(known, "mpa", (value, value + 0.02), name)
    table = conditions.table(known, "proxies", ["mpa"], range(2))
    assert table.columns[-1] == "K=8 − K=1"
    assert str(table.rows[0][-1]).startswith("25.00 ")


@pytest.mark.parametrize(
    ("name", "words"), [("conditions", ["glyphs-small", "proxies"]), ("compare", ["cars-pretrained"])]
)
def test_runs_need_a_finished_search(
    name: str, words: list[str], script: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", [f"{name}.py", *words, "mpa", "--kept", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"holds no finished search of these losses: python .* mpa comes first\.$"):
        script(name).main()


def test_few_images_are_the_first_of_each_class_and_make_as_many_steps(
    script: Callable[[str], Any], tmp_path: Path
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    conditions = script("conditions")
    splits = ["train"] * 6 + ["test"] * 3
    columns = {"embedding": [[float(n)] for n in range(9)], "label": [*"aabaaa", *"ccc"], "split": splits}
    pq.write_table(pa.table(columns), tmp_path / "features.parquet")
    file, times = conditions.few_images(tmp_path / "features.parquet", 2, tmp_path)
    assert pq.read_table(file)["embedding"].to_pylist() == [[float(n)] for n in (0, 1, 2, 6, 7, 8)]
    assert times == 6 / 3
    longer = conditions.more_epochs(FOLDER / "kept/cars-features/searches/euclidean-softmax-two-phases.yaml", times)
    assert longer == {"training.epochs": 28, "second_phase.epochs": 12}


def test_a_reality_check_is_kept_once_finished_and_printed(
    script: Callable[[str], Any], known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reality = script("reality")
    with pytest.raises(SystemExit, match="holds no finished check"):
        reality.table(reality.CHECKS["glyphs-small"], known)
    rows = [ResultRow("r", n, kind, "map@r", 0.5 + n / 10) for n in range(2) for kind in reality.KINDS]
    rows += [ResultRow("r", n, kind, "recall@1", 0.75) for n in range(2) for kind in reality.KINDS]
    asked: list[Any] = []

    def check(recipes: Sequence[str], **options: Any) -> RealityCheckResult:
        asked.append((recipes, options["trials"], options["repeats"]))
        return RealityCheckResult(tmp_path, tuple(rows), "")

    monkeypatch.setattr(reality.proxemic, "reality_check", check, raising=False)
    reality.run_check("glyphs-small", "warp", tmp_path / "out", {}, known)
    assert asked == [(["glyphs-small/warped-softmax"], 20, 5)]
    table = reality.table(reality.CHECKS["glyphs-small"], known)
    assert table.columns[:3] == ["loss", "separated MAP@R", "separated P@1"]
    assert [row[:3] for row in table.rows] == [["warp", "55.00 ± 63.53", "75.00 ± 0.00"]]
    control = [(row.kind, row.metric, row.repeat, row.value - 0.1 - row.repeat / 100) for row in reversed(rows)]
    known.keep_check("euclidean-softmax-two-phases", control)
    *_, difference = reality.table(reality.CHECKS["glyphs-small"], known).rows
    assert difference[:2] == ["warp − euclidean-softmax-two-phases", "10.50 ± 6.35"], "paired by repetition"


def searched(folder: Path, recipe: str, root: str | None = None) -> None:
    """A directory as a finished search leaves it."""
    directory = TuningDirectory(folder)
    space = [{"search": {"optim.lr": {"factor": 10}}}]
    options = TuningOptions(recipe, [], space, recipe, None, "tpe", "halving", None, "s", 0, budget=2.0)
    flags = [] if root is None else [f"--data.root={root}"]
    text = read_recipe(find_recipe(recipe), flags).yaml
    directory.begin(options, text)
    directory.write_trials([[FinishedTrial(n, "complete", 0.5 + n / 10, {}, 1.0, steps=20) for n in range(3)]])
    directory.best_recipe.write_text("# Found by proxemic tune: map@r 0.7.\n" + text, encoding="utf-8")


def test_a_finished_search_gives_a_row_and_its_curve(
    script: Callable[[str], Any], known: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = script("search")
    with pytest.raises(SystemExit, match="holds no finished search"):
        search.write_table("glyphs-small", known, tmp_path / "tables")
    searched(tmp_path / "mpa", "glyphs-small/mpa")
    known.keep_search("mpa", tmp_path / "mpa")
    (tmp_path / "tables").mkdir()
    search.write_table("glyphs-small", known, tmp_path / "tables")
    printed = capsys.readouterr().out
    assert MARK.search(printed.replace("commit unknown", "commit 1234567"))
    assert "| mpa | 3 | 6.0 | 70.00 | 60.00 (" in printed
    with (tmp_path / "tables" / "curves-glyphs-small.csv").open(newline="") as file:
        assert [row["found"] for row in csv.DictReader(file)] == ["0.5", "0.6", "0.7"]


def test_a_kept_search_is_not_made_again_and_names_no_folder(searches: Any, known: Any, tmp_path: Path) -> None:
    searched(tmp_path / "softmax", "omniglot/softmax", str(tmp_path))
    assert str(tmp_path) in (tmp_path / "softmax" / "best.yaml").read_text(encoding="utf-8")
    known.keep_search("softmax", tmp_path / "softmax")
    kept = known.recipe("softmax").read_text(encoding="utf-8")
    assert str(tmp_path) not in kept
    assert kept.startswith("# Found by proxemic tune: map@r 0.7.\n")
    assert yaml.safe_load(read_recipe(known.recipe("softmax")).yaml) == in_full("omniglot/softmax")
    searches.run_search("omniglot", "softmax", tmp_path / "out", None, known)
    assert not (tmp_path / "out").exists()


def test_runs_are_made_with_each_seed_and_kept(
    searches: Any, known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "run", run_here)
    known.recipe("softmax").parent.mkdir(parents=True)
    small = {"data.train_classes": 8, "data.test_classes": 4, "training.epochs": 1, "model.width": 8}
    small |= {"evaluation.start": False}
    text = read_recipe(find_recipe("glyphs-small/softmax"), [f"--{key}={value}" for key, value in small.items()]).yaml
    known.recipe("softmax").write_text(text, encoding="utf-8")
    searches.make_runs(known, "softmax", range(2), tmp_path / "runs", None)
    wrong = {"training.label_noise": 0.4, "evaluation.own_metrics": ["_verification.accepted_by_cosine"]}
    searches.make_runs(known, "softmax", range(2), tmp_path / "runs", None, "40% wrong", wrong)
    assert known.lacking(["softmax"], range(2)) == []
    before, after = known.runs("softmax"), known.runs("softmax", "40% wrong")
    assert before["map@r"].keys() == after["map@r"].keys() == after["tar"].keys() == {0, 1}
    assert before["map@r"] != after["map@r"]
    assert before["tar"] == {}
    broken = {"optim.lr": 1e30}
    with pytest.raises(UserError, match=r"^1 runs failed, the first of them softmax.*finite"):
        searches.make_runs(known, "softmax", range(1), tmp_path / "runs", None, "broken", broken)
    assert known.lacking(["softmax"], range(1), "broken") == ["softmax"]
    run = tmp_path / "runs" / "softmax-40-wrong"
    assert [*run.rglob("metrics.json")] != []
    assert [*run.rglob("*.ckpt")] == []


def test_claims_are_about_losses_that_are_searched(script: Callable[[str], Any], searches: Any) -> None:
    compare = script("compare")
    assert {name for pair in (*compare.CLAIMS, *compare.ON_CARS) for name in pair} <= {*searches.SEARCHES}
    conditions = script("conditions")
    searched = {*searches.searched("cars-features")}
    assert all(searched.issuperset(losses) for losses in (conditions.LOSSES, *conditions.WHOSE.values()))


def test_a_search_on_characters_begins_with_what_the_first_of_the_family_has_found(
    searches: Any, known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(searches, "run_search", lambda *given: made.append(given[1]))
    first = searches._first("glyphs-small", "mpa", tmp_path, None, known)
    assert made == ["proxy-anchor"]
    assert first[0] == known.recipe("proxy-anchor")
    assert first[1:] == [*(f"glyphs-small/{name}" for name in ("mpa-dw", "mpa-ap", "soft-triple")), "glyphs-small"]
    assert searches._first("glyphs-small", "proxy-anchor", tmp_path, None, known)[0] == "glyphs-small/mpa"


def test_pairs_are_accepted_by_the_distance_of_a_loss(
    script: Callable[[str], Any], known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    conditions, given = script("conditions"), []
    monkeypatch.setattr(conditions, "make_runs", lambda *arguments: given.append(arguments[-1]))
    known.recipe("magface").parent.mkdir(parents=True)
    for loss in ("magface", "euclidean-softmax"):
        known.recipe(loss).write_text(read_recipe(find_recipe(f"cars-features/{loss}")).yaml, encoding="utf-8")
        conditions.run(known, loss, *conditions.CONDITIONS["verification"], range(1), tmp_path, tmp_path)
    names = ["accepted_by_cosine", "accepted_by_euclidean"]
    assert given == [{"evaluation.own_metrics": [f"_verification.{name}"]} for name in names]
    # A long vector is of the class of a short one of its direction.
    rays, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 1.0], [1.0, 9.0]]), torch.tensor([0, 1, 0, 1])
    assert [getattr(script("_verification"), name)(rays, labels)["tar"] for name in names] == [1, 0]

    places = torch.tensor([[0.0], [1.0], [3.0], [3.5]])  # as far apart as 0.5, 1, 2 and more
    accepted = script("_verification").accepted_by_euclidean
    assert accepted(places, torch.tensor([0, 1, 1, 0])) == {"tar": 0.0}
    assert accepted(places, torch.tensor([0, 1, 2, 2])) == {"tar": 1.0}
    assert accepted(places, torch.tensor([0, 0, 0, 1])) == {"tar": 0.0}
    assert accepted(places, torch.tensor([0, 1, 0, 0]))["tar"] == pytest.approx(1 / 3)


def test_a_search_on_photographs_begins_with_the_loss_that_features_came_to(
    script: Callable[[str], Any], searches: Any, tmp_path: Path
) -> None:
    known = script("_kept").Kept(tmp_path / "cars-pretrained")
    with pytest.raises(SystemExit, match="cars-features mpa-ap comes first"):
        searches._first("cars-pretrained", "mpa-ap", tmp_path, None, known)
    for name in ("mpa-ap", "warp-off-first", "euclidean-softmax-two-phases"):
        found = tmp_path / "cars-features" / "searches" / f"{name}.yaml"
        found.parent.mkdir(parents=True, exist_ok=True)
        recipe = searches.SEARCHES[name].recipe
        text = read_recipe(find_recipe(f"cars-features/{recipe}")).yaml
        found.write_text(text.replace("alpha: 32.0", "alpha: 77.0").replace("alpha: 15.0", "alpha: 9.0"))
        (first,) = searches._first("cars-pretrained", name, tmp_path / "out", None, known)
        content = in_full(str(first))
        assert content["optim"] == in_full(f"cars-pretrained/{recipe}")["optim"]
        if name == "mpa-ap":
            assert content["loss"]["init_args"]["alpha"] == 77
        if name == "warp-off-first":
            assert content["second_phase"]["loss"]["alpha"] == 9
            assert content["second_phase"]["optim"]["lr"] == 0.0001
