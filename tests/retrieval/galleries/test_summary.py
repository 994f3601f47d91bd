"""Summaries of galleries."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np

from proxemic.retrieval import Gallery, summarize_store
from shelves import CLASSES, DIM, EACH, write_model


def test_a_gallery_of_pictures(shelf: Path, tmp_path: Path) -> None:
    shutil.copytree(shelf / "model", tmp_path / "model")
    made = Gallery.create(tmp_path / "shop", tmp_path / "model", shelf / "photos")
    Gallery.open(tmp_path / "shop").add(_unlabelled(shelf, tmp_path))
    told = summarize_store(made.store)
    assert (told.rows, told.labels, told.unlabelled, told.dim) == (CLASSES * EACH + 1, CLASSES, 1, DIM)
    assert (told.model, told.model_state) == (str(tmp_path / "model"), "there")
    assert told.bytes == sum(path.stat().st_size for path in (tmp_path / "shop").iterdir())
    assert json.loads(json.dumps(told.as_dict()))["index"] == {"kind": "exact", "rows": told.rows}
    lines = "\n".join(told.lines())
    assert f"rows     {told.rows} with {CLASSES} labels, 1 of them without one" in lines
    write_model(tmp_path / "model", seed=1)
    assert summarize_store(made.store).model_state == "changed"
    (tmp_path / "model" / "model.json").write_text("{")
    assert "another model now" in "\n".join(summarize_store(made.store).lines())
    shutil.rmtree(tmp_path / "model")
    assert summarize_store(made.store).model_state == "missing"
    assert made.remove({"label": ["class 00", None]}) == EACH + 1
    assert summarize_store(made.store).labels == CLASSES - 1


def _unlabelled(shelf: Path, folder: Path) -> Path:
    shutil.copy(shelf / "photos" / "class 00" / "0.png", folder / "alone.png")
    return folder / "alone.png"


def test_a_gallery_of_vectors(tmp_path: Path) -> None:
    made = Gallery.create(tmp_path / "shop", dim=2, distance="euclidean")
    assert summarize_store(made.store).lines()[0] == "rows     0"
    made.add_vectors(np.eye(2), ["a", "b"], columns={"price": ["1", "2"]})
    told = summarize_store(made.store)
    assert (told.labels, told.unlabelled, told.columns, told.model_state) == (0, 2, ["price"], "unknown")
    assert "2 dimensions, euclidean distance" in "\n".join(told.lines())
    assert "photos   none is opened" in told.lines()
    assert f"photos   opened below {tmp_path}" in replace(told, roots=[str(tmp_path)]).lines()
    index = {"kind": "hnsw", "rows": 1, "m": 32, "ef_search": 64, "recall@10": 0.97123}
    line = replace(told, index=index, bytes=None).lines()[-2]
    assert line == "index    hnsw (m 32, ef_search 64) of 1 rows; the others are searched exactly, recall@10 0.971"
