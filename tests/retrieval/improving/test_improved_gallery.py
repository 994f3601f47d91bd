"""Better galleries by labels, corrected labels, and rankings that look twice."""

import csv
import os
import shutil
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
from proxemic.errors import UserError
from proxemic.models import ModelConfig, build_model, save_model
from proxemic.models.model import without_head
from proxemic.retrieval import (
    Embedder,
    Gallery,
    export_gallery,
    improve_gallery,
    relabel,
    search_gallery,
    suggest_labels,
    whitened_head,
)
from shelves import SIZE, write_model

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module", autouse=True)
def _few_steps() -> Iterator[None]:
    """Train seven heads for few steps, as many take seconds; `test_improvement` measures the gain."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.retrieval.improving.improvement._LEAST_STEPS", 40)
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


def test_it_keeps_the_precision_of_the_vectors(shop: Path, tmp_path: Path) -> None:
    half = Embedder.load(shop / "network", precision="bf16-mixed")
    made = Gallery.create(tmp_path / "half", half, shop / "photos")
    assert improve_gallery(made, tmp_path / "better").address
    assert Gallery.open(tmp_path / "better").store.info.precision == "bf16-mixed"


def test_its_folder_is_a_model_that_makes_its_vectors(shop: Path, better: Path) -> None:
    gallery = Gallery.open(better)
    vectors, items = next(gallery.store.iterate())
    embedded = Embedder.load(better).embed([Path(path) for path in items["path"].to_pylist()]).numpy()
    np.testing.assert_allclose(embedded, vectors, atol=2e-5)
    hit = gallery.search(shop / "photos" / "class 03" / "2.png", k=1)[0][0]
    assert (hit.path, round(hit.distance, 4)) == (str(shop / "photos" / "class 03" / "2.png"), 0)


def test_it_keeps_the_features_of_all_its_pictures(shop: Path, better: Path, tmp_path: Path, here: Here) -> None:
    shutil.copytree(better, tmp_path / "moved")  # with its model
    gallery, first = Gallery.open(tmp_path / "moved"), Gallery.open(shop / "shop")
    new = tmp_path / "new.png"
    shutil.copy(shop / "photos" / "class 01" / "0.png", new)
    assert gallery.add(new, labels=False).rows == 1
    assert relabel(gallery, _table(tmp_path / "labels.csv", new, "class 01")) == 1
    stock = first.embedder.embed([new]).numpy()
    ids = gallery.store.next_ids(after=95, count=9)
    np.testing.assert_allclose(features_of(gallery, ids), stock, atol=1e-5)
    np.testing.assert_allclose(gallery.store.rows(ids)[0], gallery.embedder.embed([new]).numpy(), atol=2e-5)
    vectors, items = next(first.store.iterate())
    np.testing.assert_array_equal(features_of(gallery, items["id"].to_numpy()), vectors)
    said = here("improve", tmp_path / "moved", "--out", tmp_path / "again")
    assert "97 labelled photos of 12 classes" in said.stdout
    assert "learn them by proxemic calibrate" in said.stderr
    np.testing.assert_allclose(
        features_of(Gallery.open(tmp_path / "again"), items["id"].to_numpy()), vectors, atol=1e-6
    )
    with pytest.raises(UserError, match="keeps the features"):
        gallery.add_vectors(np.eye(gallery.store.info.dim, dtype=np.float32)[:1], ["x"])


def features_of(gallery: Gallery, ids: np.ndarray) -> np.ndarray:
    features = gallery.store.features(ids)
    assert features is not None
    return features


def _table(path: Path, picture: Path, label: str) -> Path:
    path.write_text(f"path,label\n{picture},{label}\n")
    return path


def test_what_to_label_next_is_typical_of_a_group(shop: Path, tmp_path: Path, here: Here) -> None:
    gallery = Gallery.create(tmp_path / "shop", dim=4)
    rng = np.random.default_rng(0)
    vectors = np.concatenate([np.eye(4)[[group] * 10] for group in range(4)]) + rng.normal(scale=0.1, size=(40, 4))
    names = [f"{row}.jpg" for row in range(40)]
    gallery.add_vectors(vectors.astype(np.float32), names, ["known"] * 10 + [None] * 30)
    said = here("gallery", "suggest", tmp_path / "shop", "--count", "3")
    rows = list(csv.DictReader(said.stdout.splitlines()))
    assert sorted(int(row["path"].split(".")[0]) // 10 for row in rows) == [1, 2, 3]
    assert suggest_labels(gallery, count=3) == [row["path"] for row in rows]
    (tmp_path / "labels.csv").write_text(said.stdout.replace(",\n", ",new\n"))
    assert relabel(gallery, tmp_path / "labels.csv") == 3
    assert_refused(here("gallery", "suggest", shop / "shop"), ["All photos of", "have a label"])


def test_the_features_of_a_pretrained_network_are_whitened(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: Here
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=2, image_size=16, patch_size=8
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path / "vit")
    for module in ("galleries.gallery", "improving.improvement"):
        monkeypatch.setattr(f"proxemic.retrieval.{module}.ENOUGH_TO_WHITEN", 90)
    monkeypatch.setattr("proxemic.retrieval.galleries.gallery.SAMPLE", 60)  # from which whitening is learnt
    with monkeypatch.context() as patch:
        patch.setattr(Gallery, "add", lambda *_, **__: 1 / 0)  # as one that is killed before its first rows
        with pytest.raises(ZeroDivisionError):
            Gallery.create(tmp_path / "shop", f"hf:{tmp_path / 'vit'}", shop / "photos")
    assert len(Gallery.open(tmp_path / "shop")) == 0
    words = "gallery", "create", tmp_path / "shop", shop / "photos", "--no-labels", "--model", f"hf:{tmp_path / 'vit'}"
    said = here(*words)
    assert said.stdout == f"96 added, 96 in {tmp_path / 'shop'}\n"
    assert "The vectors are whitened to 24 dimensions" in said.stderr
    gallery = Gallery.open(tmp_path / "shop")
    assert gallery.store.roots == (str(shop / "photos"),)
    vectors, items = next(gallery.store.iterate())
    stock = Embedder.load(f"hf:{tmp_path / 'vit'}").embed([Path(path) for path in items["path"].to_pylist()])
    np.testing.assert_allclose(features_of(gallery, items["id"].to_numpy()), stock.numpy(), atol=1e-5)
    head = whitened_head(stock[:60])
    with torch.no_grad():
        np.testing.assert_allclose(vectors, torch.nn.functional.normalize(head(stock)).numpy(), atol=1e-3)
    assert improve_gallery(gallery).text().startswith("0 labelled photos of 0 classes: whitened without labels")
    assert here("gallery", "delete", tmp_path / "shop", "--yes").returncode == 0
    assert not (tmp_path / "shop").exists()  # nor the model in it
    assert here(*words[:2], tmp_path / "plain", *words[3:], "--no-whiten").returncode == 0
    assert Gallery.open(tmp_path / "plain").store.info.features is None


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
    assert told.startswith("96 labelled photos of 12 classes\n")
    assert "whitened, without labels" in told
    assert sorted(shop.rglob("*")) == before


def test_what_cannot_be_improved_is_refused(shop: Path, tmp_path: Path, here: Here) -> None:
    trained = Gallery.create(tmp_path / "trained", write_model(tmp_path / "model"), shop / "photos").store.address
    alone = Gallery.create(tmp_path / "alone", shop / "network", shop / "photos", labels=False).store.address
    empty = Gallery.create(tmp_path / "empty", shop / "network").store.address
    for words, said in (
        ((trained,), "has a trained head of its own"),
        ((alone,), "fewer than two classes have two labelled samples each: label more of them"),
        ((empty,), "is empty: add photos first"),
        ((shop / "shop", "--out", shop / "photos"), "is not a new or empty folder"),
        (
            (shop / "shop", "--out", "postgresql://host/base/better"),
            "is not a folder: improve into one",
        ),
    ):
        assert_refused(here("improve", *words), [said])


FAST = """
import sys, time
import proxemic.retrieval.improving.improved_gallery as improved
import proxemic.retrieval.improving.improvement as improvement
improvement._LEAST_STEPS = 1
features = improved.iterate_features
def slowly(gallery):
    time.sleep(0.3)  # in which the process is killed
    yield from features(gallery)
improved.iterate_features = slowly
improved.improve_gallery(*sys.argv[1:])
"""


def test_killed_in_the_middle_it_leaves_no_gallery(shop: Path, tmp_path: Path) -> None:
    process = warm.Process("-c", FAST, shop / "shop", tmp_path / "better")
    while not list(tmp_path.glob(".better.*.work")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    if not (tmp_path / "better").exists():
        improve_gallery(shop / "shop", tmp_path / "better")
    assert not Gallery.open(tmp_path / "better").verify()
    assert [path.name for path in tmp_path.iterdir()] == ["better"]


def test_damaged_features_are_never_copied(better: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(better, tmp_path / "copy")
    (file,) = copy.glob("features-*")
    content = bytearray(file.read_bytes())
    content[40] ^= 4
    file.write_bytes(content)
    for work in (improve_gallery, export_gallery):
        with pytest.raises(UserError, match=f"{file} is damaged"):
            work(copy, tmp_path / "again.parquet")
    assert str(file) in Gallery.open(copy).verify()[0]
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_labels_are_corrected_by_a_table(shop: Path, tmp_path: Path, here: Here) -> None:
    address = Gallery.create(tmp_path / "shop", shop / "network", shop / "photos").store.address
    photos = shop / "photos"
    table = shop / "fixed.csv"
    rows = ["photos/class 00/0.png,other", "photos/class 01/1.png,", "photos/class 02/2.png,class 02"]
    table.write_text("\n".join(["path,label", *rows]))
    said = here("gallery", "relabel", address, table)
    assert said.stdout == f"2 of 96 photos of {address} have a new label\n"
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


def test_a_query_is_expanded_by_its_first_hits_without_itself(shop: Path) -> None:
    gallery, query = Gallery.open(shop / "shop"), shop / "photos" / "class 05" / "3.png"
    found = search_gallery(gallery, query, k=96, expand=3).answers[0].hits
    vectors, items = next(gallery.store.iterate())
    rows = dict(zip(items["path"].to_pylist(), vectors.astype(np.float64), strict=True))
    own = rows[str(query)]
    first = sorted({*rows} - {str(query)}, key=lambda path: float(-rows[path] @ own))[:3]
    mean = own + sum((rows[path] @ own) ** 3 * rows[path] for path in first)
    mean /= np.linalg.norm(mean)
    assert [hit.path for hit in found][:5] == sorted(rows, key=lambda path: float(-rows[path] @ mean))[:5]
    np.testing.assert_allclose([hit.distance for hit in found], [1 - rows[hit.path] @ mean for hit in found], atol=1e-5)
