"""Searching for many queries, from Python."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest

from proxemic.errors import UserError
from proxemic.retrieval import Gallery, list_pictures, search_gallery
from shelves import DIM, EACH


@pytest.fixture(scope="module")
def shop(shelf: Path) -> Gallery:
    return Gallery.open(shelf / "shop")


def test_every_source_of_queries_finds_the_same(shelf: Path, shop: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shelf / "photos" / "class 02"
    alone = [search_gallery(shop, folder / f"{number}.png", k=3).answers[0] for number in range(EACH)]
    monkeypatch.chdir(shelf / "photos")
    for queries in ([folder], ["class 02/*.png"], [f"{folder}/{n}.png" for n in range(EACH)], [list_pictures(folder)]):
        found = search_gallery(shop, *queries, k=3, batch_size=3)
        for answer, one in zip(found.answers, alone, strict=True):
            assert [hit.id for hit in answer.hits] == [hit.id for hit in one.hits]
            assert [hit.distance for hit in answer.hits] == pytest.approx([hit.distance for hit in one.hits], abs=1e-6)
    shelves = search_gallery(shop, ".", k=1)
    assert {answer.label for answer in shelves.answers} == {hit.label for hit in (a.hits[0] for a in shelves.answers)}
    assert (
        search_gallery(shop, ".", k=2, where={"label": ["class 01", "class 03"]}).answers[0].hits[0].label != "class 00"
    )


def test_vectors_as_queries(shelf: Path, shop: Gallery, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(3, DIM))
    np.save(tmp_path / "new.npy", vectors)
    found = search_gallery(shop, tmp_path / "new.npy", shelf / "photos" / "class 01" / "0.png", k=2)
    assert [Path(answer.query).name for answer in found.answers] == ["0.png", *(f"new.npy, row {n}" for n in range(3))]
    assert [answer.hits for answer in found.answers[1:]] == shop.search_vectors(vectors, k=2)


def test_queries_that_cannot_be_read_are_left_out(shelf: Path, shop: Gallery, tmp_path: Path) -> None:
    (tmp_path / "bad.jpg").write_text("no picture")
    good = shelf / "photos" / "class 01" / "0.png"
    found = search_gallery(shop, tmp_path / "bad.jpg", good, tmp_path / "missing.png", k=1)
    assert [answer.query for answer in found.answers] == [str(good)]
    assert {Path(name).name: why for name, why in found.unreadable.items()} == {
        "bad.jpg": "its content is not JPEG, PNG, WebP, BMP, GIF or TIFF",
        "missing.png": "no such file",
    }
    with pytest.raises(UserError, match=r"bad\.jpg cannot be read as a photo \(.*\), nor any of 1 more"):
        search_gallery(shop, tmp_path / "bad.jpg", tmp_path / "missing.png")


def test_k_and_conditions_are_checked_before_queries_are_read(shop: Gallery) -> None:
    with pytest.raises(ValueError, match="k is 0"):
        search_gallery(shop, "missing.png", k=0)
    with pytest.raises(ValueError, match="no column 'color'"):
        search_gallery(shop, "missing.png", where={"color": "red"})


def test_layouts(tmp_path: Path) -> None:
    made = Gallery.create(tmp_path / "shop", dim=2)
    made.add_vectors([[1.0, 0.0], [0.6, 0.8]], ["a,b.jpg", "[red]c.jpg"], ["hat", None], {"price": ["10", None]})
    np.save(tmp_path / "new.npy", np.eye(2))
    found = search_gallery(made, tmp_path / "new.npy", k=2)
    content = json.loads(found.text("json"))
    assert [item["query"] for item in content] == [f"{tmp_path}/new.npy, row {number}" for number in range(2)]
    assert content[0]["hits"] == [
        {"id": 0, "path": "a,b.jpg", "label": "hat", "distance": 0, "price": "10"},
        {"id": 1, "path": "[red]c.jpg", "label": None, "distance": pytest.approx(0.4), "price": None},
    ]
    rows = [*csv.DictReader(io.StringIO(found.text("csv")))]
    assert [(row["rank"], row["path"], row["price"]) for row in rows] == [
        ("1", "a,b.jpg", "10"),
        ("2", "[red]c.jpg", ""),
        ("1", "[red]c.jpg", ""),
        ("2", "a,b.jpg", "10"),
    ]
    assert float(rows[2]["distance"]) == pytest.approx(0.2)
    table = found.text()
    assert "0.4000" in table
    assert "[red]c.jpg" in table
    assert re.findall(r"\w+", table.splitlines()[1]) == ["query", "distance", "label", "price", "path"]
    unlabelled = search_gallery(made, tmp_path / "new.npy", where={"label": [None]}).text()
    assert re.findall(r"\w+", unlabelled.splitlines()[1]) == ["query", "distance", "price", "path"]
    assert search_gallery(made, tmp_path / "new.npy", where={"label": "none"}).text() == "nothing found"
    assert json.loads(search_gallery(made, tmp_path / "new.npy", where={"label": "none"}).text("json"))[0]["hits"] == []
