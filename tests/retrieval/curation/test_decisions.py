"""Decisions of people, beside galleries in folders and in PostgreSQL, and through kill -9."""

import os
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

import warm
from command_line import Here, assert_refused, csv_rows
from galleries import random_vectors
from proxemic.retrieval import Gallery
from proxemic.retrieval.curation import apply_decisions, decisions, list_decisions, write_corrected_table
from proxemic.retrieval.curation.decisions import claim, decide, withdraw
from proxemic.retrieval.galleries.stores import Store, delete_store

ROWS = 12
PATHS = [f"/{n}.jpg" for n in range(ROWS)]


@pytest.fixture(params=["local", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return request.getfixturevalue("postgres").address(f"shop {tmp_path.name}")
    return str(tmp_path / "shop")


@pytest.fixture
def gallery(address: str) -> Iterator[Gallery]:
    """Rows with three labels."""
    gallery = Gallery.create(address, dim=4)
    labels = [f"class {n % 3}" for n in range(ROWS)]
    gallery.add_vectors(random_vectors(ROWS, 4), PATHS, labels, {"split": ["train"] * ROWS})
    yield gallery
    gallery.close()


def labels_of(store: Store) -> dict[str, str | None]:
    rows = [row for _, items in store.iterate() for row in items.to_pylist()]
    return {row["path"]: row["label"] for row in rows}


def vectors_of(store: Store) -> dict[str, np.ndarray]:
    parts = [(items["path"].to_pylist(), vectors) for vectors, items in store.iterate()]
    return {path: vector for paths, vectors in parts for path, vector in zip(paths, vectors, strict=True)}


def test_a_picture_is_shown_to_one_session_at_a_time(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    store = gallery.store
    assert claim(store, PATHS[0], "ann")
    assert claim(store, PATHS[0], "ann")
    assert not claim(store, PATHS[0], "bob")
    monkeypatch.setattr(decisions, "_SHOWN_FOR", timedelta(seconds=-1))
    assert claim(store, PATHS[0], "bob"), "after a time it is free"
    assert decide(store, PATHS[0], "ann", "keep", "class 0", "class 0"), "the first who decides is taken"
    assert not claim(store, PATHS[0], "bob")


def test_the_first_decision_counts_until_it_is_taken_back(gallery: Gallery) -> None:
    store = gallery.store
    first = decide(store, PATHS[0], "ann", "relabel", "class 0", "class 1", "Ann")
    assert first is not None
    assert decide(store, PATHS[0], "bob", "remove", "class 0", None) is None
    (made,) = list_decisions(gallery)
    assert (made.number, made.reviewer, made.action, made.previous, made.label, made.state) == (
        *(first, "Ann", "relabel", "class 0", "class 1", "open"),
    )
    assert made.time.endswith("+00:00")
    assert withdraw(store, first, "ann")
    assert not withdraw(store, first, "ann")
    assert not list_decisions(gallery)
    assert decide(store, PATHS[0], "bob", "remove", "class 0", None) is not None


def test_decisions_are_applied_once(gallery: Gallery, tmp_path: Path) -> None:
    store, before, vectors = gallery.store, labels_of(gallery.store), vectors_of(gallery.store)
    decide(store, PATHS[0], "ann", "relabel", "class 0", "=new")
    decide(store, PATHS[1], "ann", "remove", "class 1", None)
    decide(store, PATHS[2], "ann", "keep", "class 2", "class 2")
    decide(store, PATHS[3], "ann", "relabel", "class 0", "class 1")
    decide(store, PATHS[4], "ann", "keep", "class 1", "class 1")
    decide(store, PATHS[5], "ann", "remove", "class 2", None)
    decide(store, PATHS[6], "ann", "remove", "class 0", None)
    decide(store, PATHS[7], "ann", "remove", "class 1", None)
    # Another process has changed these since.
    store.set_labels({PATHS[3]: None, PATHS[5]: "class 9", PATHS[6]: None})
    store.remove({"path": [PATHS[4], PATHS[7]]})
    after = {path: label for path, label in before.items() if path not in (PATHS[1], PATHS[4], PATHS[7])}
    after |= {PATHS[0]: "=new"}
    after |= {PATHS[3]: None, PATHS[5]: "class 9", PATHS[6]: None}
    labelled = {path: label for path, label in after.items() if label is not None}
    assert write_corrected_table(gallery, tmp_path / "photos.csv") == len(labelled) == ROWS - 5
    assert {row["path"]: row["label"] for row in csv_rows(tmp_path / "photos.csv")} == labelled
    assert {row["split"] for row in csv_rows(tmp_path / "photos.csv")} == {"train"}

    done = apply_decisions(gallery)
    assert (done.relabelled, done.removed, done.kept) == (1, 1, 1)
    assert [item.path for item in done.outdated] == PATHS[3:8]
    assert labels_of(store) == after
    for path, vector in vectors_of(store).items():
        np.testing.assert_array_equal(vector, vectors[path])
    states = [decision.state for decision in list_decisions(gallery)]
    assert states == ["applied"] * 3 + ["outdated"] * 5
    again = apply_decisions(gallery)
    assert (again.relabelled, again.removed, again.kept, again.outdated) == (0, 0, 0, ())
    assert decide(store, PATHS[0], "bob", "keep", "=new", "=new") is not None, "it may be decided about again"


def test_they_go_with_the_gallery(gallery: Gallery, address: str) -> None:
    decide(gallery.store, PATHS[0], "ann", "remove", "class 0", None)
    delete_store(address)
    assert not Path(address).exists()
    assert not list_decisions(Gallery.create(address, dim=4))


def test_killed_in_the_middle_all_are_applied_or_none(tmp_path: Path) -> None:
    shop, many = tmp_path / "shop", 5_000
    paths = [f"/{n}.jpg" for n in range(many)]
    gallery = Gallery.create(shop, dim=4)
    gallery.add_vectors(random_vectors(many, 4), paths, ["wrong"] * many)
    decide(gallery.store, paths[0], "ann", "remove", "wrong", None)
    for path in paths[1:20]:
        decide(gallery.store, path, "ann", "relabel", "wrong", "right")
    process = warm.Process("-m", "proxemic", "gallery", "apply", str(shop))
    while process.poll() is None and not (shop / "gallery.sqlite-journal").exists():
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before, after = {"wrong": many}, {"right": 19, "wrong": many - 20}
    found = gallery.store.count_labels()
    states = {decision.state for decision in list_decisions(shop)}
    assert (found, states) in ((before, {"open"}), (after, {"applied"}))
    apply_decisions(shop)
    assert gallery.store.count_labels() == after
    assert {decision.state for decision in list_decisions(shop)} == {"applied"}


def test_the_commands(tmp_path: Path, here: Here) -> None:
    shop = tmp_path / "shop"
    gallery = Gallery.create(shop, dim=4)
    gallery.add_vectors(random_vectors(ROWS, 4), PATHS, ["x"] * ROWS)
    assert here("gallery", "decisions", shop).stdout.startswith("Nobody has decided anything")
    for path in PATHS:
        decide(gallery.store, path, "ann", "keep", "y", "y", "Ann")
    assert "Ann" in here("gallery", "decisions", shop).stdout
    assert_refused(here("gallery", "decisions", shop, "--out", "all.txt"), ["--out is all.txt", ".csv"])
    said = here("gallery", "apply", shop)
    assert "2 more were not applied" in said.stderr
    assert said.stdout == f"0 relabelled, 0 removed, 0 kept: {ROWS} photos in {shop}\n"
