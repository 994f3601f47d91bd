"""Better galleries by labels, corrected labels, and rankings that look twice."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import warm
from command_line import Here, assert_refused
from images import write_folder
from proxemic.data import Preprocessing
from proxemic.models import ModelConfig, build_model, save_model
from proxemic.models.model import without_head
from proxemic.retrieval import Embedder, Gallery, improve_gallery, relabel, search_gallery
from shelves import SIZE, write_model

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module", autouse=True)
def _few_steps() -> Iterator[None]:
    """Of a training in seven heads, which takes seconds; `test_improvement` tells what it is worth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.retrieval.improvement._LEAST_STEPS", 40)
        yield


def write_network(folder: Path) -> Path:
    """A network without a head, as pretrained ones are."""
    torch.manual_seed(0)
    network = without_head(build_model(ModelConfig("convnet", width=8, image_size=SIZE)).eval())
    save_model(folder, network, Preprocessing(size=SIZE, resize=None).as_dict())
    return folder


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with photos, a network and a gallery of both."""
    root = tmp_path_factory.mktemp("improve")
    rng = np.random.default_rng(1)
    for path in sorted(write_folder(root / "photos", classes=12, images=8, size=SIZE).rglob("*.png")):
        pixels = np.asarray(Image.open(path)) * 0.4 + rng.integers(0, 150, (1, 1, 3))  # most of all, light differs
        Image.fromarray(pixels.astype(np.uint8)).save(path)
    Gallery.create(root / "shop", write_network(root / "network"), root / "photos")
    return root


@pytest.fixture(scope="module")
def better(shop: Path) -> Path:
    found = improve_gallery(shop / "shop", shop / "better")
    assert found.improvement.kept != "stock"
    assert (found.labelled, found.classes, found.address) == (96, 12, str(shop / "better"))
    return shop / "better"


def test_the_better_gallery_has_the_rows_of_the_first(shop: Path, better: Path) -> None:
    first, second = Gallery.open(shop / "shop"), Gallery.open(better)
    assert len(first) == len(second) == 96
    (_, before), (_, after) = next(first.store.iterate()), next(second.store.iterate())
    assert before.equals(after)
    assert second.store.roots == first.store.roots
    assert not second.verify()


def test_its_folder_is_a_model_that_makes_its_vectors(shop: Path, better: Path) -> None:
    gallery = Gallery.open(better)
    vectors, items = next(gallery.store.iterate())
    embedded = Embedder.load(better).embed([Path(path) for path in items["path"].to_pylist()]).numpy()
    np.testing.assert_allclose(embedded, vectors, atol=2e-5)
    hit = gallery.search(shop / "photos" / "class 03" / "2.png", k=1)[0][0]
    assert (hit.path, round(hit.distance, 4)) == (str(shop / "photos" / "class 03" / "2.png"), 0)


def test_vectors_without_a_model_are_improved_too(shop: Path, tmp_path: Path, here: Here) -> None:
    first = Gallery.open(shop / "shop")
    vectors, items = next(first.store.iterate())
    names, labels = items["path"].to_pylist(), items["label"].to_pylist()
    plain = Gallery.create(tmp_path / "plain", dim=first.store.info.dim)
    plain.add_vectors(vectors, names, labels)
    made = here("improve", tmp_path / "plain", "--out", tmp_path / "better")
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines()[-1].startswith(f"Made {tmp_path / 'better'}")
    assert Gallery.open(tmp_path / "better").store.info.dim == first.store.info.dim
    np.save(tmp_path / "query.npy", vectors[:1])
    found = search_gallery(Gallery.open(tmp_path / "better"), tmp_path / "query.npy", k=1)
    assert found.answers[0].hits[0].path == names[0]


def test_without_a_place_it_only_measures(shop: Path, here: Here) -> None:
    before = sorted(shop.rglob("*"))
    told = here("improve", shop / "shop").stdout
    assert told.startswith("96 labelled pictures of 12 classes\n")
    assert "whitened, without labels" in told
    assert sorted(shop.rglob("*")) == before


def test_what_cannot_be_improved_is_refused(shop: Path, better: Path, tmp_path: Path, here: Here) -> None:
    trained = Gallery.create(tmp_path / "trained", write_model(tmp_path / "model"), shop / "photos").store.address
    alone = Gallery.create(tmp_path / "alone", shop / "network", shop / "photos", labels=False).store.address
    empty = Gallery.create(tmp_path / "empty", shop / "network").store.address
    for words, said in (
        ((trained,), "has a trained head of its own"),
        ((better,), "has a trained head of its own"),
        ((alone,), "fewer than two classes have two labelled rows each: label more of them"),
        ((empty,), "is empty: add pictures first"),
        ((shop / "shop", "--out", shop / "photos"), "is not empty: give a new folder"),
        ((shop / "shop", "--out", "postgresql://host/base/better"), "is no new or empty folder"),
    ):
        assert_refused(here("improve", *words), [said])


def test_killed_in_the_middle_it_leaves_no_gallery(shop: Path, tmp_path: Path) -> None:
    process = warm.Process("-m", "proxemic", "improve", str(shop / "shop"), "--out", str(tmp_path / "better"))
    while not list(tmp_path.glob(".better.*.work")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    if not (tmp_path / "better").exists():
        improve_gallery(shop / "shop", tmp_path / "better")
    assert not Gallery.open(tmp_path / "better").verify()
    assert [path.name for path in tmp_path.iterdir()] == ["better"]


def test_labels_are_corrected_by_a_table(shop: Path, tmp_path: Path, here: Here) -> None:
    address = Gallery.create(tmp_path / "shop", shop / "network", shop / "photos").store.address
    photos = shop / "photos"
    table = shop / "fixed.csv"
    rows = ["photos/class 00/0.png,other", "photos/class 01/1.png,", "photos/class 02/2.png,class 02"]
    table.write_text("\n".join(["path,label", *rows]))
    said = here("gallery", "relabel", address, table)
    assert said.stdout == f"2 of 96 pictures of {address} have another label\n"
    gallery = Gallery.open(address)
    known = [items for _, items in gallery.store.iterate()]
    labels = {row["path"]: row["label"] for items in known for row in items.to_pylist()}
    assert labels[str(photos / "class 00" / "0.png")] == "other"
    assert labels[str(photos / "class 01" / "1.png")] is None
    assert len(labels) == 96
    assert relabel(gallery, table) == 0
    table.write_text("path,label\nphotos/no.png,x\n")
    assert_refused(here("gallery", "relabel", address, table), ["no.png is not in", "add it first"])


def test_a_query_is_left_out_and_hits_are_ranked_again(shop: Path) -> None:
    gallery, query = Gallery.open(shop / "shop"), shop / "photos" / "class 05" / "3.png"
    with_self = search_gallery(gallery, query, k=4).answers[0].hits
    without = search_gallery(gallery, query, k=4, without_self=True).answers[0].hits
    assert with_self[0].path == str(query)
    assert [hit.path for hit in without][:3] == [hit.path for hit in with_self][1:]
    assert len(without) == 4
    again = search_gallery(gallery, query, k=96, rerank=True).answers[0].hits
    assert {hit.id for hit in again} == {hit.id for hit in search_gallery(gallery, query, k=96).answers[0].hits}
    assert again[0].path == str(query)
    assert [hit.distance for hit in again] != sorted(hit.distance for hit in again)
