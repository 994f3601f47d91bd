"""docs/experiments/centres.py: classes of cars joined, and tables of cells that are finished."""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from proxemic.data import OwnVectors
from proxemic.files import write_csv
from proxemic.recipes import list_recipes

FOLDER = Path(__file__).parents[1] / "docs" / "experiments"
MODELS = [
    *("Audi TT Coupe 2012", "Audi S4 Sedan 2007", "Audi R8 2012", "BMW X5 SUV 2007", "BMW M3 Coupe 2012"),
    *(
        "Aston Martin Virage Coupe 2012",
        "Aston Martin Virage Sedan 2012",
        "Ford GT Coupe 2006",
        "Ford Focus Sedan 2007",
    ),
    *("Fiat 500 Coupe 2012", "Honda Civic Sedan 2007", "Kia Rio Coupe 2012", "Lada Niva SUV 1999"),
    *("Mini Cooper Sedan 2012", "Opel Corsa Coupe 2012", "Seat Leon Sedan 2012"),
]


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        return importlib.import_module("centres")


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("centres") / "features.parquet"
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(4.0 * 3 * len(MODELS), dtype=np.float32)), 4)
    labels = [model for model in MODELS for _ in range(3)]
    table = {"embedding": vectors, "label": labels, "path": [f"{row}.jpg" for row in range(len(labels))]}
    pq.write_table(pa.table(table), path)
    return path


def test_makers_are_held_out_and_models_are_the_centres(script: Any, features: Path, tmp_path: Path) -> None:
    note = script.join_classes(features, "makers", tmp_path / "makers.parquet")
    assert note.startswith("makers: train: 21 photographs of 7 models in 4 classes; validation: ")
    splits = OwnVectors(tmp_path / "makers.parquet").load()
    assert splits.validation is not None
    parts = [{*part.class_names} for part in (splits.train, splits.validation, splits.test_images)]
    assert "Aston Martin" in set.union(*parts)
    assert sum(map(len, parts)) == len(set.union(*parts)) == 11
    models = [
        model
        for part in (splits.train, splits.validation, splits.test_images)
        for model in part.attributes["subclass"].texts()
    ]
    assert {*models} == {*MODELS}


def test_bodies_are_those_of_other_makers(script: Any, features: Path, tmp_path: Path) -> None:
    note = script.join_classes(features, "bodies", tmp_path / "bodies.parquet")
    assert note.endswith("; 1 models whose names say no body are left out.")
    splits = OwnVectors(tmp_path / "bodies.parquet", hold_out="images").load()
    parts = [splits.train, splits.test_images]
    assert all({"Coupe", "Sedan"} & {*part.class_names} for part in parts)
    makers = [{script.maker_of(str(model)) for model in part.attributes["subclass"].texts()} for part in parts]
    assert not makers[0] & makers[1]


@pytest.mark.parametrize(("name", "reason"), [("nothing.parquet", "nothing"), ("a page.md", "not a parquet file")])
def test_what_is_no_file_of_features_is_one_sentence(script: Any, tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "a page.md").write_text("# A page\n" * 10)
    out = tmp_path / "makers.parquet"
    with pytest.raises(
        SystemExit, match=rf"{name} is no file of features \(.*{reason}.*: python docs/experiments/cars"
    ):
        script.run_script(lambda: script.join_classes(tmp_path / name, "makers", out))
    assert not out.exists()


def test_tables_of_what_is_finished(script: Any, tmp_path: Path) -> None:
    known = script.kept("makers", tmp_path)
    values = {("mpa", 1, "drawn"): 0.5, ("mpa", 2, "drawn"): 0.4, ("mpa", 2, "clusters"): 0.6}
    for (loss, k, start), value in values.items():
        row = dict.fromkeys(script.COLUMNS, 0.25) | {"loss": loss, "k": k, "start": start}
        row |= {"map@r": value, "validation": value, "bits": 0.75, "chance": 0.25, "most": 1.0, "used": 2.0}
        rows = [list((row | {"seed": seed}).values()) for seed in (0, 1)]
        write_csv(script.rows_of(known, (loss, k, start)), script.COLUMNS, rows)
    cells = script.read_cells(known)
    shown = script.by_start(cells, "map@r").rows
    assert shown == [["mpa", 1, "50.00 ± 0.00", "–", "–", "–"], ["mpa", 2, "40.00 ± 0.00", "60.00 ± 0.00", "–", "–"]]
    bits = "0.50 ± 0.00 of 1.00 (2.0)"
    assert script.by_start(cells, "bits").rows[1] == ["mpa", 2, bits, bits, "–", "–"]
    assert script.differences(cells).rows == [["mpa", 2, "clusters", "10.00 ± 0.00", "20.00 ± 0.00", "–", "–"]]
    script.write_tables("makers", cells, tmp_path / "tables")
    assert [file.name for file in sorted((tmp_path / "tables").iterdir())] == [
        f"centres-makers-{name}.csv" for name in ("bits", "differences", "map")
    ]


def test_a_cell_that_is_kept_is_not_made_again(
    script: Any, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined, known, cell = tmp_path / "bodies.parquet", script.kept("bodies", tmp_path / "kept"), ("mpa", 2, "drawn")
    script.join_classes(features, "bodies", joined)
    values = {"model.embedding_size": 2, "data.hold_out": "images", "batches.size": 6}
    small = script.Experiment("cars-features", "subclass", epochs=1, budget=1, seeds=1, values=values)
    data = {"data.root": str(joined)}
    script.run_cell(small, cell, data, tmp_path / "runs", known)
    ((found,),) = script.read_cells(known).values()
    assert (found["loss"], found["k"], found["seed"]) == ("mpa", "2", "0")
    assert 0 < float(found["map@r"]) <= 1
    assert "root" not in known.recipe("mpa-k2-drawn").read_text()
    monkeypatch.setattr(script.proxemic, "tune", None, raising=False)
    script.run_cell(small, cell, data, tmp_path / "again", known)
    assert not (tmp_path / "again").exists()


def test_its_recipes_are_there(script: Any) -> None:
    recipes = {experiment.recipes for experiment in script.EXPERIMENTS.values()}
    assert {f"{folder}/{loss}" for folder in recipes for loss in script.LOSSES} <= {*list_recipes()}
