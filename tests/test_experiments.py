"""docs/experiments: names in scripts exist, tables match the kept runs, and recipes are those of the searches."""

import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from experimented import DOCS, FOLDER, KEPT, script
from proxemic import train
from proxemic.errors import UserError
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe

TINY = {"data.train_classes": 8, "data.test_classes": 4, "training.epochs": 1, "model.width": 8}
TINY |= {"evaluation.start": False}
MARK = re.compile(r"<!-- table: (\S+) -->\n((?:(?!<!--)[^|\n].*\n|\n)+)((?:\|.*\n)+)")
COMMAND = re.compile(r"`python docs/experiments/(\w+)\.py ?([\w -]*)`, at commit [0-9a-f]{8}\+?:")
CHOICES = {"conditions": "condition", "sweeps": "sweep"}
"""The scripts whose command line has a second word, with its name."""
shared = script("_experiments")


def in_full(recipe: str) -> Any:
    return yaml.safe_load(read_recipe(find_recipe(recipe)).yaml)


def test_documented_tables_are_those_that_their_commands_make_of_the_kept_runs(tmp_path: Path) -> None:
    texts = {path.relative_to(DOCS): path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md")}
    tables = [(page, *found) for page, text in texts.items() for found in MARK.findall(text)]
    marks = sum(text.count("<!-- table:") for text in texts.values())
    assert len(tables) == marks > 50, "a mark stands above words with the command and the commit, and its table"
    made: dict[str, dict[str, Any]] = {}
    for page, name, described, table in tables:
        command = COMMAND.match(described)
        assert command is not None, f"{page}, {name}: no command and commit"
        program, *words = command[1], *command[2].split()
        if command[0] not in made:
            choices = dict(zip(("dataset", CHOICES.get(program, "")), words, strict=False))
            given = Namespace(losses=[], out=tmp_path, **choices)
            made[command[0]] = script(program).tables(*([given, shared.Kept(KEPT, words[0])] if words else [KEPT]))
        assert table == made[command[0]][name].text("markdown") + "\n", f"{page}: {name} is another table now"


def test_the_summary_of_the_results_is_that_of_the_tables() -> None:
    make_dots = script("make_dots")
    for dataset in make_dots.DATA_SETS:
        picture = (DOCS / "results" / f"{dataset}.svg").read_text(encoding="utf-8")
        assert picture == make_dots.drawn(dataset), "python docs/make_dots.py draws it anew"
    tables = "".join(
        table for page in DOCS.rglob("*.md") for _, _, table in MARK.findall(page.read_text(encoding="utf-8"))
    )
    figures = re.findall(r"-?[\d.]+ ± [\d.]+\d", (DOCS / "results.md").read_text(encoding="utf-8"))
    assert len(figures) > 8
    assert [figure for figure in figures if figure not in tables] == []


def test_every_search_names_a_recipe() -> None:
    for dataset in shared.DATA_SETS:
        assert {"softmax", "mpa-ap", "multi-similarity", "warp-off-first"} < {*shared.searched(dataset)}


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The values of nested mappings and lists by their path, whether a class's arguments are named alone or not."""
    if not isinstance(value, dict | list):
        return {path.replace(".init_args", ""): value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {name: leaf for key, child in items for name, leaf in leaves(child, f"{path}.{key}").items()}


@pytest.mark.parametrize("dataset", ["glyphs-small", "omniglot"])
def test_recipes_of_characters_have_what_the_searches_found(dataset: str) -> None:
    for name in shared.searched(dataset):
        if name.endswith("-attracting"):
            continue  # its recipe comes from the search over the whole range of k1
        # Read as a recipe: one that was kept lacks the keywords that losses got later.
        found = leaves(yaml.safe_load(read_recipe(shared.Kept(KEPT, dataset).recipe(name)).yaml))
        recipe = in_full(f"{dataset}/{shared.SEARCHES[name].recipe}")
        sections = ("model", "loss", "optim", "batches", "second_phase", "images", "augment")
        values = leaves({section: recipe[section] for section in sections})
        for path, value in (values | {".training.epochs": recipe["training"]["epochs"]}).items():
            # Recipes are rounded to three digits.
            expected = pytest.approx(found[path], rel=0.005) if isinstance(value, float) else found[path]
            assert value == expected, f"{dataset}, {name}: {path}"


def test_losses_that_are_compared_are_searched() -> None:
    compare, conditions = script("compare"), script("conditions")
    assert {name for pair in (*compare.CLAIMS, *compare.ON_CARS) for name in pair} <= {*shared.SEARCHES}
    searched = {*shared.searched("cars-features"), *shared.OTHER_NORM}
    assert all(searched.issuperset(losses) for losses in (conditions.LOSSES, *conditions.WHOSE.values()))


def test_a_kept_recipe_is_printed_as_training_takes_it(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "kept.py"), "glyphs-small", "mpa"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert yaml.safe_load(printed) == yaml.safe_load(read_recipe(shared.Kept(KEPT, "glyphs-small").recipe("mpa")).yaml)
    (tmp_path / "mpa.yaml").write_text(printed)
    assert train(tmp_path / "mpa.yaml", tmp_path / "run", overrides=TINY).metrics["test"]["recall@1"] > 0
    for wrong in (("mpa", "nothing"), ("nothing",), ("mpa", "40% wrong", 5)):
        with pytest.raises(UserError, match=r"batches of 64|softmax-search-2|take one of"):
            script("kept").recipe_of(KEPT, "glyphs-small", *wrong)


def test_every_kept_run_has_a_recipe() -> None:
    kept, made = script("kept"), {(row["dataset"], row["name"], "") for row in rows_of("searches")}
    runs = rows_of("evidence")
    made |= {(row["dataset"], row["name"], row["condition"]) for row in (*rows_of("runs"), *runs)}
    assert len(made) > 500
    for dataset, name, condition in sorted(made):
        if dataset != "cars-features" or not condition.endswith(" images"):  # which are files of their own
            recipe = yaml.safe_load(kept.recipe_of(KEPT, dataset, name, condition))
            assert recipe["training"]["epochs"] > 0
    wanted = ("glyphs-small", "several-proxies", "K=10", 7)
    (row,) = [row for row in runs if (row["dataset"], row["name"], row["condition"], row["seed"]) == wanted]
    recipe = yaml.safe_load(kept.recipe_of(KEPT, *wanted))
    assert recipe["loss"]["init_args"]["alpha"] == json.loads(row["values"])["loss.alpha"]
    assert (recipe["loss"]["init_args"]["proxies_per_class"], recipe["seed"]) == (10, 7)
    noisy = yaml.safe_load(kept.recipe_of(KEPT, "glyphs-small", "mpa-ap", "40% wrong", 3))
    assert (noisy["training"]["label_noise"], noisy["seed"]) == (0.4, 3)


def rows_of(table: str) -> list[dict[str, Any]]:
    return pq.read_table(KEPT / f"{table}.parquet").to_pylist()


def test_removed_keys_are_dropped_from_kept_recipes_that_have_their_default(tmp_path: Path) -> None:
    drop_keys, tables = script("drop_keys").drop_keys, script("_kept")
    (row,) = [row for row in rows_of("searches") if (row["dataset"], row["name"]) == ("omniglot", "softmax")]
    assert "  warmup_epochs: 0\n" in row["recipe"]
    tables.merge(tmp_path, "searches", [row])
    run = {"dataset": "omniglot", "name": "softmax", "condition": "", "seed": 0}
    tables.merge(tmp_path, "runs", [run | {"values": '{"optim.lr": 1, "never": {}}'}])
    other = row | {"name": "other", "recipe": row["recipe"].replace("warmup_epochs: 0", "warmup_epochs: 2")}
    tables.merge(tmp_path / "two", "searches", [row, other])
    before = (tmp_path / "two" / "searches.parquet").read_bytes()
    gone = {"training.warmup_epochs": 0, "training.never_there": 1, "second_phase.epochs": None, "never": {}}
    with pytest.raises(UserError, match=r"other has training\.warmup_epochs: 2 instead of the default, 0"):
        drop_keys(tmp_path / "two", gone)
    assert (tmp_path / "two" / "searches.parquet").read_bytes() == before  # all or nothing
    assert drop_keys(tmp_path, gone) == 2
    assert shared.Kept(tmp_path, "omniglot").recipe_text("softmax") == row["recipe"].replace("  warmup_epochs: 0\n", "")
    assert pq.read_table(tmp_path / "runs.parquet")["values"].to_pylist() == ['{"optim.lr": 1}']
    assert drop_keys(tmp_path, gone) == 0


def add_rows(kept: Path, name: str, count: int) -> None:
    for seed in range(count):
        run = {"dataset": "toy", "name": name, "condition": "", "seed": seed, "recall@1": 0.5}
        script("_kept").merge(kept, "evidence", [run])


def test_rows_survive_a_kill_and_other_programs(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=add_rows, args=(tmp_path, name, 20)) for name in ("one", "other")]
    killed = context.Process(target=add_rows, args=(tmp_path, "killed", 10_000))
    for worker in (*workers, killed):
        worker.start()
    while not script("_kept").read(tmp_path, "evidence", "toy", "killed"):
        time.sleep(0.01)
    assert killed.pid is not None
    os.kill(killed.pid, signal.SIGKILL)
    for worker in (*workers, killed):
        worker.join()
    rows = pq.read_table(tmp_path / "evidence.parquet").to_pylist()
    by_name = {name: [row["seed"] for row in rows if row["name"] == name] for name in ("one", "other", "killed")}
    assert by_name["one"] == by_name["other"] == [*range(20)]
    assert by_name["killed"] == [*range(len(by_name["killed"]))]


def test_the_same_rows_give_the_same_file(tmp_path: Path) -> None:
    tables = script("_kept")
    for name in ("trials", "evidence"):
        rows = pq.read_table(KEPT / f"{name}.parquet").to_pylist()
        tables.merge(tmp_path, name, reversed(rows))
        assert (tmp_path / f"{name}.parquet").read_bytes() == (KEPT / f"{name}.parquet").read_bytes()


def test_evidence_is_kept_run_by_run(tmp_path: Path) -> None:
    made = script("_evidence")
    recipe = find_recipe("glyphs-small/euclidean-softmax-two-phases")
    values = TINY | {"training.epochs": 2, "second_phase.epochs": 1}
    runs = made.Runs("glyphs-small", "plain", "", recipe, range(2), values, history=True)
    evidence = made.Evidence(tmp_path)
    made.make(evidence, runs, tmp_path / "out", "0123abcd")
    rows = evidence.read("glyphs-small", "plain")
    overrides = {**shared.LEAN, **values, "seed": 1}
    test = train(recipe, tmp_path / "run", overrides=overrides).metrics["test"]
    row = rows["", 1]
    assert all(row[name] == test[name] for name in ("recall@1", "map@r", "ndcg@8", "recall@8"))
    assert (row["commit"], row["diverged"], json.loads(row["values"])) == ("0123abcd", False, {**shared.LEAN, **values})
    assert json.loads(row["versions"]).keys() > {"python", "torch"}
    epochs = script("_kept").read(tmp_path, "epochs", "glyphs-small", "plain")
    assert [(row["seed"], row["epoch"]) for row in epochs] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    # A run that diverges in its second phase has the metrics of the only epoch before, and one that diverges at once
    # those of the network before training.
    too_high = {"second_phase.optim.lr": 1e30, "second_phase.optim.loss_lr": 1e30}
    diverged, _ = made.train_once(made.Runs("glyphs-small", "high", "", recipe, [1], values | too_high), 1, tmp_path)
    assert (diverged["diverged"], diverged["epoch"]) == (True, 1)
    at_once, _ = made.train_once(
        made.Runs("glyphs-small", "higher", "", recipe, [1], values | {"optim.lr": 1e30, "optim.loss_lr": 1e30}),
        1,
        tmp_path,
    )
    assert (at_once["diverged"], at_once["epoch"]) == (True, 0)
    assert 0 < at_once["map@r"] < 1
    # Rows go to another checkout without the keys that are gone.
    target, copy_rows = tmp_path / "target", script("copy_rows").copy_rows
    gone = {"model.width": yaml.safe_load(row["recipe"])["model"]["width"]}
    assert copy_rows(tmp_path, target, gone) == 6
    copied = made.Evidence(target).read("glyphs-small", "plain")["", 1]
    assert json.loads(copied["values"]).keys() == {*shared.LEAN, *values} - {"model.width"}
    assert "width" not in yaml.safe_load(copied["recipe"])["model"]
    assert copied["recall@1"] == row["recall@1"]
    assert copy_rows(tmp_path, target, gone) == 0


COLUMNS = "condition,seed,recall@1,map@r,ndcg@8,recall@8"
MORE = "avg_dtp,epoch,diverged,seconds,recipe,values,commit"
OLD = {
    "mpa.csv": f"""\
{COLUMNS},{MORE}
,5,0.875,0.5,0.25,1.0,0.1,3,yes,2.5,omniglot/searches/mpa.yaml,"{{""optim.lr"": 1, ""vectors.mix"": null}}",b89349d4
identity,0,0.5,0.5,0.25,1.0,,3,,2.5,recipes/omniglot/euclidean-softmax.yaml,{{}},b89349d4
""",
    "mpa-epochs.csv": COLUMNS.replace("seed", "seed,epoch") + "\nidentity,0,2,0.5,0.25,0.125,1.0\n",
}
"""Rows of a loss as commit b89349d4 keeps them."""


def test_rows_are_copied_from_a_checkout_that_keeps_csv_files(tmp_path: Path) -> None:
    tables, copy_rows = script("_kept"), script("copy_rows").copy_rows
    with pytest.raises(UserError, match="holds no runs"):
        copy_rows(tmp_path / "omniglot", tmp_path)
    for name, text in OLD.items():
        (tmp_path / "omniglot" / "evidence").mkdir(parents=True, exist_ok=True)
        (tmp_path / "omniglot" / "evidence" / name).write_text(text)
    (search,) = [row for row in rows_of("searches") if (row["dataset"], row["name"]) == ("omniglot", "mpa")]
    tables.merge(tmp_path / "target", "searches", [search])
    assert copy_rows(tmp_path, tmp_path / "target") == 3
    first, second = tables.read(tmp_path / "target", "evidence", "omniglot", "mpa")
    assert [first[name] for name in ("seed", "recall@1", "avg_dtp", "nmi", "epoch", "diverged")] == [
        *(5, 0.875, 0.1, None, 3, True)
    ]
    assert (first["recipe"], json.loads(first["values"])) == (search["recipe"], {"optim.lr": 1})
    assert yaml.safe_load(second["recipe"]) == in_full("omniglot/euclidean-softmax")
    (epoch,) = tables.read(tmp_path / "target", "epochs", "omniglot", "mpa")
    assert (epoch["condition"], epoch["epoch"], epoch["ndcg@8"]) == ("identity", 2, 0.125)
    assert copy_rows(tmp_path, tmp_path / "target") == 0


def test_every_run_of_the_rule_has_a_recipe(tmp_path: Path) -> None:
    evidence = script("evidence")
    runner = evidence.Runner(KEPT, dict.fromkeys(shared.DATA_SETS), tmp_path)
    needs_features = "few images, small batches, K, α", "cells not tested before"
    for name, row in runner.rows().items():
        for runs in row() if name not in needs_features else ():
            read_recipe(runs.recipe, {**shared.LEAN, **runs.values}, own_code=True)
    assert evidence.status(runner).columns[:2] == ["row", "runs"]
