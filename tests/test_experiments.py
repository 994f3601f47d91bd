"""docs/experiments: names in scripts exist, and tables match the kept runs."""

import csv
import doctest
import importlib
import json
import math
import re
import statistics
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml

from command_line import run_here
from proxemic import train
from proxemic.analysis.forces import training_forces
from proxemic.analyze import robustness
from proxemic.analyze.results import read_snapshots
from proxemic.data import OwnVectors
from proxemic.errors import UserError
from proxemic.files import write_csv
from proxemic.recipes import find_recipe, list_recipes
from proxemic.recipes.reader import read_recipe, read_yaml
from proxemic.studies.finished import FinishedRun
from proxemic.studies.jobs import Workers
from proxemic.studies.reality_check import RealityCheckResult
from proxemic.studies.reality_check.tables import ResultRow
from proxemic.studies.tuning.directory import TuningDirectory, TuningOptions
from proxemic.studies.tuning.search import FinishedTrial
from proxemic.studies.tuning.spaces import default_space, load_space, read_stages, resolve_factors
from proxemic.tables import Table

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = DOCS / "experiments"
TINY = {"data.train_classes": 8, "data.test_classes": 4, "training.epochs": 1, "model.width": 8}
TINY |= {"evaluation.start": False}
SNAPSHOTS = "[{class_path: proxemic.training.Snapshots}]"
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


@pytest.mark.parametrize(
    ("dataset", "rates"),
    [
        ("glyphs-small", ((0.0002, 0.02), (0.002, 0.2))),
        ("omniglot", ((0.0002, 0.02), (0.002, 0.2))),
        ("cars-features", ((0.001, 0.1), (0.005, 0.5))),
        ("cars-pretrained", ((0.00003, 0.003), (0.001, 0.1))),
    ],
)
def test_every_search_has_its_recipe_and_the_same_rates(dataset: str, rates: Any, shared: Any) -> None:
    names = shared.searched(dataset)
    assert {"softmax", "mpa-ap", "multi-similarity", "warp-off-first"} < {*names}
    around = in_full(shared.AROUND) if dataset in ("glyphs-small", "omniglot") else None
    for name in names:
        search = shared.SEARCHES[name]
        content = in_full(f"{dataset}/{search.recipe}")
        for sibling in search.siblings if dataset != "cars-pretrained" else ():
            find_recipe(f"{dataset}/{sibling}")
        space = default_space(content) if search.space is None else load_space(search.space)
        stages = read_stages(resolve_factors(space, around or content, name), name)
        # A head over layer-normalised features, which are 36 times as long.
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


def test_the_warp_is_searched_below_the_push_of_the_others() -> None:
    for path in (FOLDER / "spaces").glob("warp-*.yaml"):
        ranges = [stage["search"]["loss.k1"] for stage in read_yaml(path) if "loss.k1" in stage["search"]]
        assert ranges == [{"low": 0.1, "high": 0.45}] * len(ranges) != []


def test_losses_that_are_compared_are_searched(script: Callable[[str], Any], shared: Any, centres: Any) -> None:
    compare, conditions = script("compare"), script("conditions")
    assert {name for pair in (*compare.CLAIMS, *compare.ON_CARS) for name in pair} <= {*shared.SEARCHES}
    searched = {*shared.searched("cars-features"), *shared.OTHER_NORM}
    assert all(searched.issuperset(losses) for losses in (conditions.LOSSES, *conditions.WHOSE.values()))
    folders = {experiment.recipes for experiment in centres.EXPERIMENTS.values()}
    assert {f"{folder}/{loss}" for folder in folders for loss in centres.LOSSES} <= {*list_recipes()}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("search glyphs-small sofmax", r"no sofmax here: take some of .*softmax.*, or name none"),
        ("conditions glyphs-small proxies mpa", r"holds no finished search of these losses: .* mpa comes first\.$"),
        ("compare cars-pretrained mpa", r"holds no finished search of these losses: python .* mpa comes first\.$"),
        ("compare glyphs-small --table {out}", "holds no run"),
        ("conditions cars-features few-images --table {out}", "holds no finished loss"),
        ("reality glyphs-small --table {out}", "holds no finished check"),
        ("search glyphs-small --table {out}", "holds no finished search"),
        ("norm glyphs-small --table {out}", "holds no run of this comparison"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    words: str, sentence: str, script: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *words_of_it = words.format(out=tmp_path).split()
    monkeypatch.setattr("sys.argv", [f"{name}.py", *words_of_it, "--kept", str(tmp_path / "kept")])
    with pytest.raises(SystemExit, match=sentence):
        script(name).main()


def test_claims_are_paired_by_seed_and_corrected_together(script: Callable[[str], Any], known: Any) -> None:
    values = {
        "softmax": (0.60, 0.64, 0.62),
        "softmax-mean-proxy": (0.61, 0.65, 0.63),
        "euclidean-softmax": (0.70, 0.72, 0.77),
        "contrastive": (0.5, 0.5, 0.56),
    }
    keep(known, "contrastive", (0.5, 0.5, 0.5))
    for loss, value in values.items():
        keep(known, loss, value)
    keep(known, "softmax", (0.1, 0.1, 0.1), "40% wrong")
    # Standard deviations 2, 2, 3.6056 and 3.4641, and 8.5829 of the means 62, 63, 73 and 52; all metrics are alike.
    compare = script("compare")
    runs = {loss: known.runs(loss) for loss in values}
    spread = compare.spread(runs)
    assert spread.rows[1] == ["MAP@R", "2.87", "8.58", "3.0", "1.00 (1.00 to 1.00)"]
    means, differences = compare.means(runs), compare.differences(runs)
    assert [row[0] for row in means.rows] == ["euclidean-softmax", "softmax-mean-proxy", "softmax", "contrastive"]
    assert means.rows[2][2] == "62.00 ± 4.97"
    euclidean, mean_proxy = sorted(differences.rows)
    assert (mean_proxy[0], mean_proxy[2]) == ("softmax-mean-proxy − softmax", "1.00 ± 0.00")
    assert mean_proxy[-1] == "0.000"
    assert euclidean[0] == "euclidean-softmax − softmax"
    # 10, 8 and 15 points: t = 11 / (3.6056 / √3) = 5.284, whose p of two degrees of freedom is 0.0340, the larger one.
    assert euclidean[-1] == "0.034"


def test_swapped_and_true_colours_are_compared_by_seed(script: Callable[[str], Any], known: Any) -> None:
    compare = script("compare")
    keep(known, "softmax", (0.70, 0.72))
    assert compare.colors(known) is None
    keep(known, "softmax", (0.69, 0.71, 0.10), compare.SWAPPED)
    keep(known, "warp", (0.60, 0.60), compare.SWAPPED)
    softmax, warp = compare.colors(known).rows
    # The mean of the three swapped runs is 0.5; two of them have a run with true colours, which is better by 0.01.
    assert [cell.split(" ±")[0] for cell in softmax] == ["softmax", *("50.00", "71.00", "1.00") * 2]
    assert warp == ["warp", *("60.00 ± 0.00", "–", "–") * 2]


def test_the_gain_of_a_norm_is_with_it_less_without(script: Callable[[str], Any], known: Any) -> None:
    known.recipe("softmax").parent.mkdir(parents=True)
    for loss, value in (
        *(("softmax", 0.5), ("softmax-with-norm", 0.6)),
        *(("warp", 0.8), ("warp-without-norm", 0.7)),
    ):
        keep(known, loss, (value, value + 0.1))
        trials = f"1,0.99,20,20\n2,0.1,5,20\n2,{value + 0.15},20,20\n"  # of the first stage no value counts
        header = "stage,value,epochs,epochs of a complete trial\n"
        known.recipe(loss).with_suffix(".csv").write_text(header + trials, encoding="utf-8")
    rows = script("norm").tables(None, known)["norm-glyphs-small"].rows
    assert [(row[0], *(str(row[column])[:5] for column in (1, 2, 4, 6, 7))) for row in rows] == [
        ("softmax", "65.00", "55.00", "10.00", "75.00", "65.00"),
        ("warp", "85.00", "75.00", "10.00", "95.00", "85.00"),
    ]


def test_the_table_of_a_condition_pairs_the_worst_with_none(script: Callable[[str], Any], known: Any) -> None:
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


def test_few_images_of_characters_leave_the_steps_and_their_rates(script: Callable[[str], Any]) -> None:
    recipe = FOLDER / "kept" / "glyphs-small" / "searches" / "mpa.yaml"
    few_characters = script("conditions").few_characters
    found, changed = yaml.safe_load(recipe.read_text()), few_characters(recipe, 3, "glyphs-small")
    schedule = found["optim"]["schedule"]["init_args"]
    assert changed["training.epochs"] == 4 * found["training"]["epochs"]
    assert changed["optim.schedule.gamma"] ** 4 == pytest.approx(schedule["gamma"])
    few = script("_few_images")
    splits = few.FewGlyphs(train_classes=8, test_classes=8, images=3).load()
    assert [len(part.labels) for part in (splits.train, splits.validation, splits.test)] == [12, 48, 96]
    assert splits.train.labels.bincount().tolist() == [3, 3, 3, 3]
    assert doctest.testmod(few) == (0, 1)
    omniglot = FOLDER / "kept" / "omniglot" / "searches" / "mpa.yaml"
    flags = [f"--{key}={json.dumps(value)}" for key, value in few_characters(omniglot, 5, "omniglot").items()]
    made = read_recipe(omniglot, flags, own_code=True).recipe
    assert (made.data, made.training.epochs) == (few.FewOmniglot(validation_fraction=0.2, images=5), 80)


def test_the_table_of_k_pairs_the_papers_with_one_proxy(script: Callable[[str], Any], known: Any) -> None:
    known.recipe("mpa").parent.mkdir(parents=True)
    known.recipe("mpa").touch()
    values = {"": 0.9, "K=1": 0.5, "K=2": 0.6, "K=4": 0.7, "K=8": 0.75, "K=12": 0.3, "K=16": 0.2}
    for name, value in values.items():
        keep(known, "mpa", (value, value + 0.02), name)
    table = script("conditions").table(known, "proxies", ["mpa"], range(2))
    assert table.columns[-1] == "K=8 − K=1"
    assert str(table.rows[0][-1]).startswith("25.00 ")


def test_single_values_of_another_loss(
    script: Callable[[str], Any], shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions, given = script("conditions"), []
    monkeypatch.setattr(shared, "make_runs", lambda *arguments, **_: given.append(arguments[-2:]))
    known = shared.Kept(FOLDER / "kept" / "glyphs-small")
    mpa = yaml.safe_load(known.recipe("mpa").read_text(encoding="utf-8"))["optim"]
    for name in ("one-proxy", "rates", "no-regularizer"):
        conditions.run(known, *conditions.WHOSE[name], *conditions.CONDITIONS[name], range(1), tmp_path, None)
    assert given == [
        ("one proxy", {"loss.proxies_per_class": 1}),
        ("rates of mpa", {"optim.lr": mpa["lr"], "optim.loss_lr": mpa["loss_lr"]}),
        ("no regularizer", {"loss.regularizers": []}),
    ]
    assert [*conditions.seeds_of(known)] == [*range(5)]
    assert [*conditions.seeds_of(shared.Kept(tmp_path / "cars-pretrained"))] == [*range(6)]


@pytest.mark.parametrize("dataset", ["glyphs-small", "toy"])
def test_a_sweep_changes_both_phases(dataset: str, script: Callable[[str], Any], shared: Any, tmp_path: Path) -> None:
    sweeps = script("sweeps")
    recipe = sweeps.recipe_of(shared.Kept(FOLDER / "kept" / dataset), tmp_path)
    base = in_full(str(recipe))
    ratio = base["second_phase"]["loss"]["alpha"] / base["loss"]["init_args"]["alpha"]
    found = {what: sweeps.sweep(recipe, what) for what in ("alpha", "k1-k2", "delta")}
    assert [len(values) for values in found.values()] == [8, 16, 7]
    changed = []
    for what, name in (("alpha", "α=8"), ("k1-k2", "k1=0.6, k2=2.0"), ("delta", "Δ×2.5")):
        flags = [f"--{key}={value}" for key, value in found[what][name].items()]
        made = read_recipe(recipe, flags).recipe
        assert made.second_phase is not None
        losses: list[Any] = [phase.loss for phase in (made, made.second_phase)]
        changed.append([[loss.keywords[key] for key in ("alpha", "k1", "k2", "delta_scale")] for loss in losses])
    assert [phase[0] for phase in changed[0]] == pytest.approx([8, 8 * ratio])
    assert [phase[1:3] for phase in changed[1]] == [[0.6, 2.0]] * 2
    assert [phase[3] for phase in changed[2]] == [2.5] * 2


def test_a_sweep_is_trained_and_tabulated(
    script: Callable[[str], Any], known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = script("sweeps")
    monkeypatch.setattr(Workers, "run", run_here)
    small = TINY | {"training.epochs": 2, "second_phase.epochs": 1}
    flags = [f"--{key}={value}" for key, value in small.items()]
    known.recipe("warp").parent.mkdir(parents=True)
    known.recipe("warp").write_text(read_recipe(FOLDER / "kept/glyphs-small/searches/warp.yaml", flags).yaml)
    monkeypatch.setattr(sweeps, "ALPHAS", (0, 95))
    monkeypatch.setattr(sweeps, "SEEDS", range(2))
    arguments = Namespace(dataset="glyphs-small", losses=[], sweep="alpha", out=tmp_path / "out", root=None)
    sweeps.train(arguments, known)
    ((_, table),) = sweeps.tables(arguments, known).items()
    assert table.columns == ["alpha", "Recall@1", "MAP@R", "images within α"]
    assert [(row[0], row[3]) for row in table.rows] == [("α=0", "0.00 ± 0.00"), ("α=95", "100.00 ± 0.00")]
    sweeps.train(arguments, known)  # which makes nothing again
    keep(known, "warp", (0.5, 0.7), "k1=0.6, k2=2.0")
    ((_, grid),) = sweeps.tables(Namespace(**vars(arguments) | {"sweep": "k1-k2"}), known).items()
    assert str(grid.rows[1][3]).startswith("60.00 ±")


@pytest.mark.parametrize("name", ["euclidean-softmax", "softmax"])
def test_finished_runs_are_measured(name: str, script: Callable[[str], Any], tmp_path: Path) -> None:
    measures = script("_measures")
    flags = [f"--{key}={value}" for key, value in TINY.items()]
    read = read_recipe(find_recipe(f"glyphs-small/{name}"), [*flags, f"--training.callbacks={SNAPSHOTS}"])
    run = FinishedRun(train(read, out=tmp_path / "run").path)
    loss: Any = run.loss
    images = run.splits.train
    embeddings, proxies = run.embed(images).double(), loss.proxies.detach().double()
    if name == "softmax":
        embeddings, proxies = (x / x.norm(dim=-1, keepdim=True) for x in (embeddings, proxies))
    distances = [(row - proxies[label, 0]).norm() for row, label in zip(embeddings, images.labels, strict=True)]
    # All classes have as many images, so that the mean over classes is that over images.
    assert measures.distance_to_proxy(run.path) == {"avg_dtp": pytest.approx(float(sum(distances) / len(distances)))}
    if name == "euclidean-softmax":
        assert measures.clusters(run.path).keys() == {"avg_dtp", "alignment"}
        first, last = (training_forces(loss, scene).mean_alignment for scene in read_snapshots(run.path).values())
        assert measures.clusters(run.path)["alignment"] == pytest.approx(last - first)
    else:
        assert measures.clusters(run.path).keys() == {"avg_dtp"}
    (group,) = robustness([run.path], severities=(3,)).figures.groups.values()
    assert measures.recall_of_corrupted(run.path) == {"corrupted": pytest.approx(group.values.mean().item())}


def test_functions_of_distance_are_trained_and_tabulated(
    script: Callable[[str], Any], shared: Any, known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = script("functions")
    for name in functions.FUNCTIONS:
        find_recipe(f"glyphs-small/{functions.LOSS}/{name}")
    monkeypatch.setattr(Workers, "run", run_here)
    small = tmp_path / "small.yaml"
    flags = [f"--{key}={value}" for key, value in TINY.items()]
    small.write_text(read_recipe(find_recipe("glyphs-small/distance-functions/warp-2"), flags).yaml)
    monkeypatch.setattr(functions, "find_recipe", lambda _: small)
    monkeypatch.setattr(functions, "SEEDS", range(2))
    functions.train(
        Namespace(dataset="glyphs-small", losses=["identity", "warp-2"], out=tmp_path / "out", root=None), known
    )
    runs = known.runs(functions.LOSS, "warp-2")
    assert {name for name, values in runs.items() if len(values) == 2} == {*shared.METRICS, "nmi", "avg_dtp"}
    ((_, table),) = functions.tables(Namespace(), known).items()
    assert table.columns[-3:] == ["AvgDTP", "gain in Recall@1", "paper, CUB"]
    (identity, warp) = table.rows
    assert (identity[0], identity[-2], warp[-2]) == ("t1 − t2", "", "0.00 ± 0.00"), "the same recipe twice"
    assert (identity[-1], warp[-1]) == ("63.2, 67.1, 12.88", "64.6, 68.5, 7.76")
    assert str(warp[3]).startswith(f"{statistics.fmean(runs['avg_dtp'].values()):.2f} ±"), "a distance, not in percent"


def test_repeated_searches_are_compared(script: Callable[[str], Any], shared: Any, known: Any) -> None:
    assert len(shared.REPEATED) == 18
    assert {search.seed for search in shared.REPEATED.values()} == {1, 2}
    for place, suffix in enumerate(("", "-search-2", "-search-3")):
        keep(known, f"mpa{suffix}", (0.5, 0.6 + 0.02 * place))
        keep(known, f"proxy-anchor{suffix}", (0.4, 0.5))
    tables = script("repeated").tables(None, known)
    found = {name: [[str(cell).partition(" ±")[0] for cell in row] for row in tables[name].rows] for name in tables}
    metrics = ("Recall@1", "MAP@R")
    assert found["repeated-glyphs-small"] == [
        ["mpa − proxy-anchor", metric, "10.00", "11.00", "12.00", "11.00"] for metric in metrics
    ]
    assert found["repeated-glyphs-small-losses"] == [
        *(["proxy-anchor", metric, "45.00", "45.00", "45.00", "45.00"] for metric in metrics),
        *(["mpa", metric, "55.00", "56.00", "57.00", "56.00"] for metric in metrics),
    ]


def test_searches_are_repeated_for_pairs_that_a_data_set_has(script: Callable[[str], Any], shared: Any) -> None:
    pairs = script("repeated").pairs_of
    assert pairs(shared.Kept(FOLDER / "kept/glyphs-small")) == [*shared.HEADLINES]
    names = {name for pair in pairs(shared.Kept(FOLDER / "kept/cars-features")) for name in pair}
    assert names <= {*shared.SEARCHES}
    assert {"mpa", "warp"} <= names


def test_few_images_are_the_first_of_each_class_and_make_as_many_steps(
    script: Callable[[str], Any], tmp_path: Path
) -> None:
    conditions = script("conditions")
    splits = ["train"] * 6 + ["test"] * 3
    columns = {"embedding": [[float(n)] for n in range(9)], "label": [*"aabaaa", *"ccc"], "split": splits}
    pq.write_table(pa.table(columns), tmp_path / "features.parquet")
    file, times = conditions.few_images(tmp_path / "features.parquet", 2, tmp_path)
    assert pq.read_table(file)["embedding"].to_pylist() == [[float(n)] for n in (0, 1, 2, 6, 7, 8)]
    assert times == 6 / 3
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("training: {epochs: 14}\nsecond_phase: {epochs: 6}\n")
    assert conditions.more_epochs(recipe, times) == {"training.epochs": 28, "second_phase.epochs": 12}


def test_a_reality_check_is_kept_once_finished_and_printed(
    script: Callable[[str], Any], known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reality = script("reality")
    kinds = [kind for kind in reality.KINDS if kind != "concatenated unnormalized"]
    rows = [ResultRow("r", n, kind, "map@r", 0.5 + n / 10) for n in range(2) for kind in kinds]
    rows += [ResultRow("r", n, kind, "recall@1", 0.75) for n in range(2) for kind in kinds]
    asked: list[Any] = []

    def check(recipes: Sequence[str], **options: Any) -> RealityCheckResult:
        asked.append((recipes, options["trials"], options["repeats"]))
        return RealityCheckResult(tmp_path, tuple(rows), "")

    monkeypatch.setattr(reality.proxemic, "reality_check", check, raising=False)
    reality.run_check("glyphs-small", "warp", tmp_path / "out", {}, known)
    recipe = tmp_path / "recipes" / "warp.yaml"
    assert asked == [([recipe], 20, 5)]
    assert read_recipe(recipe).recipe.model.layer_norm
    table = reality.table(reality.CHECKS["glyphs-small"], known)
    assert table.columns[:3] == ["loss", "separated MAP@R", "separated P@1"]
    assert [row[:3] for row in table.rows] == [["warp", "55.00 ± 63.53", "75.00 ± 0.00"]]
    control = [(row.kind, row.metric, row.repeat, row.value - 0.1 - row.repeat / 100) for row in reversed(rows)]
    known.keep_check("euclidean-softmax-two-phases", control)
    *_, difference = reality.table(reality.CHECKS["glyphs-small"], known).rows
    assert difference[:2] == ["warp − euclidean-softmax-two-phases", "10.50 ± 6.35"], "paired by repetition"


def test_all_losses_of_the_check_on_photographs_train_as_in_the_paper(
    script: Callable[[str], Any], known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reality = script("reality")
    made: list[Any] = []

    def check(recipes: Sequence[Path], **_: Any) -> RealityCheckResult:
        made.append(yaml.safe_load(read_recipe(recipes[0]).yaml))
        return RealityCheckResult(tmp_path, (), "")

    monkeypatch.setattr(reality.proxemic, "reality_check", check, raising=False)
    published = {path.stem for path in find_recipe("cars/reality-check/cosface").parent.glob("[!_]*.yaml")}
    losses = reality.CHECKS["cars-features"].losses
    assert {reality.shared.SEARCHES[loss].recipe for loss in losses} == published | {reality.CONTROL}
    for loss in losses:
        reality.run_check("cars-features", loss, tmp_path / "out" / loss, {}, known)
    for recipe in made:
        assert recipe["model"]["layer_norm"]
        assert not recipe["model"]["unit_features"]
        assert recipe["optim"]["optimizer"]["class_path"] == "torch.optim.RMSprop"
        assert recipe["training"]["until_plateau"]
    # Only HIST has a graph network.
    same = [
        (recipe["optim"] | {"graph_lr": None}, recipe["training"], recipe["second_phase"]["optim"]) for recipe in made
    ]
    assert same == [same[0]] * len(losses)


def searched(folder: Path, recipe: str, root: str | None = None) -> None:
    """A directory as a finished search leaves it."""
    directory = TuningDirectory(folder)
    space = [{"search": {"optim.lr": {"factor": 10}}}]
    options = TuningOptions(recipe, [], space, recipe, None, "tpe", "halving", None, "s", 0, budget=2.0)
    text = read_recipe(find_recipe(recipe), [] if root is None else [f"--data.root={root}"]).yaml
    directory.begin(options, {directory.base: text})
    directory.write_trials([[FinishedTrial(n, "complete", 0.5 + n / 10, {}, 1.0, steps=20) for n in range(3)]])
    directory.best_recipe.write_text("# Found by proxemic tune: map@r 0.7.\n" + text, encoding="utf-8")


def test_a_finished_search_gives_a_row_and_its_curve(
    script: Callable[[str], Any],
    known: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched(tmp_path / "mpa", "glyphs-small/mpa")
    known.keep_search("mpa", tmp_path / "mpa")
    (tmp_path / "tables").mkdir()
    words = ["search.py", "glyphs-small", "--kept", str(tmp_path), "--table", str(tmp_path / "tables")]
    monkeypatch.setattr("sys.argv", words)
    script("search").main()
    printed = capsys.readouterr().out
    assert MARK.search(printed.replace("commit unknown", "commit 1234567"))
    assert "| mpa | 3 | 6.0 | 70.00 | 60.00 (" in printed
    with (tmp_path / "tables" / "curves-glyphs-small.csv").open(newline="") as file:
        assert [row["found"] for row in csv.DictReader(file)] == ["0.5", "0.6", "0.7"]


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


def test_a_kept_search_is_not_made_again_and_names_no_folder(shared: Any, known: Any, tmp_path: Path) -> None:
    searched(tmp_path / "softmax", "omniglot/softmax", str(tmp_path))
    assert str(tmp_path) in (tmp_path / "softmax" / "best.yaml").read_text(encoding="utf-8")
    known.keep_search("softmax", tmp_path / "softmax")
    kept = known.recipe("softmax").read_text(encoding="utf-8")
    assert str(tmp_path) not in kept
    assert kept.startswith("# Found by proxemic tune: map@r 0.7.\n")
    assert yaml.safe_load(read_recipe(known.recipe("softmax")).yaml) == in_full("omniglot/softmax")
    shared.run_search(known, "softmax", tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_runs_are_made_with_each_seed_and_kept(
    shared: Any, known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Workers, "run", run_here)
    known.recipe("softmax").parent.mkdir(parents=True)
    text = read_recipe(find_recipe("glyphs-small/softmax"), [f"--{key}={value}" for key, value in TINY.items()]).yaml
    known.recipe("softmax").write_text(text, encoding="utf-8")
    shared.make_runs(known, "softmax", range(2), tmp_path / "runs", None)
    wrong = {"training.label_noise": 0.4, "evaluation.own_metrics": ["_verification.accepted_by_cosine"]}
    shared.make_runs(known, "softmax", range(2), tmp_path / "runs", None, "40% wrong", wrong)
    assert known.lacking(["softmax"], range(2)) == []
    before, after = known.runs("softmax"), known.runs("softmax", "40% wrong")
    assert before["map@r"].keys() == after["map@r"].keys() == after["tar"].keys() == {0, 1}
    assert before["map@r"] != after["map@r"]
    assert before["tar"] == {}
    with pytest.raises(UserError, match=r"^1 runs failed, the first of them softmax.*finite"):
        shared.make_runs(known, "softmax", range(1), tmp_path / "runs", None, "broken", {"optim.lr": 1e30})
    assert known.lacking(["softmax"], range(1), "broken") == ["softmax"]
    assert [*(tmp_path / "runs" / "softmax-40-wrong-from-0").rglob("metrics.json")] != []
    assert [*(tmp_path / "runs" / "softmax-40-wrong-from-0").rglob("*.ckpt")] == []


def test_a_search_on_characters_begins_with_what_the_first_of_the_family_has_found(
    shared: Any, known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    monkeypatch.setattr(shared, "run_search", lambda *given: made.append(given[1]))
    first = shared.first_trials(known, "mpa", tmp_path, None)
    assert made == ["proxy-anchor"]
    assert first[0] == known.recipe("proxy-anchor")
    assert first[1:] == [*(f"glyphs-small/{name}" for name in ("mpa-dw", "mpa-ap", "soft-triple")), "glyphs-small"]
    assert shared.first_trials(known, "proxy-anchor", tmp_path, None)[0] == "glyphs-small/mpa"
    shared.first_trials(known, "mpa-search-2", tmp_path, None)
    shared.first_trials(known, "arcface-with-norm-search-3", tmp_path, None)
    assert made[1:] == ["proxy-anchor-search-2", "softmax-with-norm-search-3"], "not what another search has found"


def test_a_search_on_photographs_begins_with_the_loss_that_features_came_to(shared: Any, tmp_path: Path) -> None:
    known = shared.Kept(tmp_path / "cars-pretrained")
    with pytest.raises(SystemExit, match="cars-features mpa-ap comes first"):
        shared.first_trials(known, "mpa-ap", tmp_path, None)
    for name in ("mpa-ap", "warp-off-first", "euclidean-softmax-two-phases"):
        found = tmp_path / "cars-features" / "searches" / f"{name}.yaml"
        found.parent.mkdir(parents=True, exist_ok=True)
        recipe = shared.SEARCHES[name].recipe
        text = read_recipe(find_recipe(f"cars-features/{recipe}")).yaml
        found.write_text(text.replace("alpha: 32.0", "alpha: 77.0").replace("alpha: 15.0", "alpha: 9.0"))
        (first,) = shared.first_trials(known, name, tmp_path / "out", None)
        content = in_full(str(first))
        assert content["optim"] == in_full(f"cars-pretrained/{recipe}")["optim"]
        if name == "mpa-ap":
            assert content["loss"]["init_args"]["alpha"] == 77
        if name == "warp-off-first":
            assert content["second_phase"]["loss"]["alpha"] == 9
            assert content["second_phase"]["optim"]["lr"] == 0.0001


def test_pairs_are_accepted_by_the_distance_of_a_loss(
    script: Callable[[str], Any], shared: Any, known: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conditions, given = script("conditions"), []
    monkeypatch.setattr(shared, "make_runs", lambda *arguments, **_: given.append(arguments[-1]))
    known.recipe("magface").parent.mkdir(parents=True)
    for loss in ("magface", "euclidean-softmax"):
        known.recipe(loss).write_text(read_recipe(find_recipe(f"cars-features/{loss}")).yaml, encoding="utf-8")
        conditions.run(known, loss, *conditions.CONDITIONS["verification"], range(1), tmp_path, tmp_path)
    names = ["accepted_by_cosine", "accepted_by_euclidean"]
    assert given == [{"evaluation.own_metrics": [f"_verification.{name}"]} for name in names]
    # A long vector belongs to the class of a short one in its direction.
    rays, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [9.0, 1.0], [1.0, 9.0]]), torch.tensor([0, 1, 0, 1])
    assert [getattr(script("_verification"), name)(rays, labels)["tar"] for name in names] == [1, 0]
    places = torch.tensor([[0.0], [1.0], [3.0], [3.5]])  # as far apart as 0.5, 1, 2 and more
    accepted = script("_verification").accepted_by_euclidean
    for labels, share in (([0, 1, 1, 0], 0.0), ([0, 1, 2, 2], 1.0), ([0, 0, 0, 1], 0.0), ([0, 1, 0, 0], 1 / 3)):
        assert accepted(places, torch.tensor(labels))["tar"] == pytest.approx(share)


# Classes with several centres.

MODELS = [
    *("Audi TT Coupe 2012", "Audi S4 Sedan 2007", "Audi R8 2012", "BMW X5 SUV 2007", "BMW M3 Coupe 2012"),
    *("Aston Martin Virage Coupe 2012", "Aston Martin Virage Sedan 2012", "Ford GT Coupe 2006"),
    *("Ford Focus Sedan 2007", "Fiat 500 Coupe 2012", "Honda Civic Sedan 2007", "Kia Rio Coupe 2012"),
    *("Lada Niva SUV 1999", "Mini Cooper Sedan 2012", "Opel Corsa Coupe 2012", "Seat Leon Sedan 2012"),
]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("centres") / "features.parquet"
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4.0 * 3 * len(MODELS), dtype=np.float32)), 4)
    labels = [model for model in MODELS for _ in range(3)]
    table = {"embedding": vectors, "label": labels, "path": [f"{row}.jpg" for row in range(len(labels))]}
    pq.write_table(pa.table(table), path)
    return path


def test_makers_are_held_out_and_models_are_the_centres(centres: Any, features: Path, tmp_path: Path) -> None:
    note = centres.join_classes(features, tmp_path / "makers.parquet")
    assert note.startswith("train: 21 photographs of 7 models in 4 classes; validation: ")
    splits = OwnVectors(tmp_path / "makers.parquet").load()
    assert splits.validation is not None
    parts = [splits.train, splits.validation, splits.test_images]
    names = [{*part.class_names} for part in parts]
    assert "Aston Martin" in set.union(*names)
    assert sum(map(len, names)) == len(set.union(*names)) == 11
    assert {model for part in parts for model in part.attributes["subclass"].texts()} == {*MODELS}


@pytest.mark.parametrize(("name", "reason"), [("nothing.parquet", "nothing"), ("a page.md", "not a parquet file")])
def test_what_is_no_file_of_features_is_one_sentence(centres: Any, tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "a page.md").write_text("# A page\n" * 10)
    out = tmp_path / "makers.parquet"
    with pytest.raises(UserError, match=rf"{name} is not a file of features \(.*{reason}.*: create it with python"):
        centres.join_classes(tmp_path / name, out)
    assert not out.exists()


def test_tables_of_what_is_finished(centres: Any, shared: Any, tmp_path: Path) -> None:
    known = shared.Kept(tmp_path / "makers")
    values = {("mpa", 1, "drawn"): 0.5, ("mpa", 2, "drawn"): 0.4, ("mpa", 2, "clusters"): 0.6}
    for (loss, k, start), value in values.items():
        row = dict.fromkeys(centres.COLUMNS, 0.25) | {"loss": loss, "k": k, "start": start}
        row |= {"map@r": value, "validation": value, "bits": 0.75, "chance": 0.25, "most": 1.0, "used": 2.0}
        rows = [list((row | {"seed": seed}).values()) for seed in (0, 1)]
        write_csv(centres.rows_of(known, (loss, k, start)), centres.COLUMNS, rows)
        trials = [[1, value, 8, 8], [1, 0.1, 4, 8]]
        path = known.recipe(f"{loss}-k{k}-{start}").with_suffix(".csv")
        write_csv(path, ("stage", "value", "epochs", shared.COMPLETE), trials)
    cells = centres.read_cells(known)
    shown = centres.by_start(cells, "map@r").rows
    assert shown == [["mpa", 1, "50.00 ± 0.00", "–", "–", "–"], ["mpa", 2, "40.00 ± 0.00", "60.00 ± 0.00", "–", "–"]]
    bits = "0.50 ± 0.00 of 1.00 (2.0)"
    assert centres.by_start(cells, "bits").rows[1] == ["mpa", 2, bits, bits, "–", "–"]
    gains = ["mpa", 2, "clusters", "10.00 ± 0.00", "2", "3", "20.00", "–", "–"]
    assert centres.differences(cells, known).rows == [gains]
    assert [*centres.tables(None, known)] == [f"centres-makers-{name}" for name in ("map", "bits", "differences")]


def test_a_cell_that_is_kept_is_not_made_again(
    centres: Any, shared: Any, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, known, cell = tmp_path / "makers.parquet", shared.Kept(tmp_path / "kept" / "makers"), ("mpa", 2, "drawn")
    centres.join_classes(features, joined)
    values = {"model.embedding_size": 2, "batches.size": 6}
    small = centres.Experiment("cars-features", "subclass", epochs=1, budget=1, seeds=1, values=values)
    data = {"data.root": str(joined)}
    centres.run_cell(small, cell, data, tmp_path / "runs", known)
    ((found,),) = centres.read_cells(known).values()
    assert (found["loss"], found["k"], found["seed"]) == ("mpa", "2", "0")
    assert 0 < float(found["map@r"]) <= 1
    assert "root" not in known.recipe("mpa-k2-drawn").read_text()
    monkeypatch.setattr(centres.proxemic, "tune", None, raising=False)
    centres.run_cell(small, cell, data, tmp_path / "again", known)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize(("loss", "k", "budget"), [("mpa", 2, 5), ("mpa", 1, 80), ("arcface-sub-centers", 1, 60)])
def test_one_proxy_has_the_budget_of_all_cells_of_several(
    loss: str, k: int, budget: float, centres: Any, shared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def tune(*_: object, budget: float, **__: object) -> None:
        asked.append(budget)
        raise KeyboardInterrupt

    monkeypatch.setattr(centres.proxemic, "tune", tune, raising=False)
    known = shared.Kept(tmp_path / "kept" / "makers")
    with pytest.raises(KeyboardInterrupt):
        centres.run_cell(centres.EXPERIMENTS["makers"], (loss, k, "drawn"), {}, tmp_path / "runs", known)
    assert asked == [budget]


def test_a_configuration_is_near_what_a_search_found(script: Callable[[str], Any], shared: Any) -> None:
    paired = script("paired")
    assert doctest.testmod(paired) == (0, 3)
    known = shared.Kept(FOLDER / "kept" / "glyphs-small")
    drawn = paired.read_configurations(known, "warp")
    assert drawn[4] == paired.draw(known, paired.COMPONENTS["warp"], 4), "the table is what --draw writes"
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
    assert paired.power(0.7, spread, n - 1) < 0.8 <= paired.power(0.7, spread, n)
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
