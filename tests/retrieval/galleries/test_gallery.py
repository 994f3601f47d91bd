"""Galleries from Python: refusals, metadata of rows, and hits by definition."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from images import forbid
from proxemic.data import Rows
from proxemic.data.embeddings import write_embeddings
from proxemic.data.reading import UnreadableImageError
from proxemic.errors import Interrupted, UserError
from proxemic.models import ModelConfig, build_model, load_model, save_model
from proxemic.retrieval import Embedder, Gallery, summarize_store
from proxemic.retrieval.galleries import adding
from proxemic.retrieval.galleries.items import further_columns
from proxemic.retrieval.galleries.stores import local
from proxemic.retrieval.galleries.stores.local import LocalStore
from shelves import CLASSES, DIM, EACH, write_model
from vectors import some_vectors, write_table


@pytest.fixture
def shop(shelf: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(shelf / "shop", tmp_path / "shop")
    return tmp_path / "shop"


def test_hits_are_those_of_the_definition(shelf: Path) -> None:
    """The nearest by the angle of embeddings that the model makes picture by picture."""
    shop = Gallery.open(shelf / "shop")
    paths = sorted((shelf / "photos").rglob("*.png"))
    made = Embedder.load(shelf / "model")
    vectors = np.concatenate([made.embed(path).double().numpy() for path in paths])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    for number in (0, 5, 20):
        distances = 1 - vectors @ vectors[number]
        order = np.argsort(distances, kind="stable")[:4]
        (hits,) = shop.search(paths[number], k=4)
        assert [hit.path for hit in hits] == [str(paths[place]) for place in order]
        assert [hit.label for hit in hits] == [paths[place].parent.name for place in order]
        assert [hit.distance for hit in hits] == pytest.approx(distances[order], abs=1e-5)
        assert [hit.id for hit in hits] == [*order]


def test_one_picture_several_and_arrays(shelf: Path) -> None:
    shop = Gallery.open(shelf / "shop", shelf / "model")
    path = shelf / "photos" / "class 02" / "1.png"
    with Image.open(path) as picture:
        array = np.asarray(picture)
        found = [shop.search(query, k=2) for query in (path, str(path), [path], picture, array, path.read_bytes())]
    assert found == [found[0]] * 6
    assert found[0][0][0].path == str(path)
    assert shop.search([], k=2) == []
    with pytest.raises(UnreadableImageError, match=r"no\.png cannot be read"):
        shop.search([path, "no.png"])


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "3"])
def test_k_is_a_number_of_hits(shelf: Path, k: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number of 1 or more"):
        Gallery.open(shelf / "shop").search_vectors(torch.ones(1, DIM), k=k)


def test_more_hits_than_there_are_rows(shelf: Path) -> None:
    shop = Gallery.open(shelf / "shop")
    assert len(shop.search_vectors(torch.ones(2, DIM), k=100)[1]) == CLASSES * EACH
    # No memory is asked for as many.
    assert len(shop.search_vectors(torch.ones(2, DIM), k=10**15)[1]) == CLASSES * EACH
    assert len(shop.search_vectors(torch.ones(2, DIM), where={"label": "class 01"})[0]) == EACH


def test_adding_again_changes_nothing_from_any_folder(shelf: Path, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = CLASSES * EACH
    assert Gallery.open(shop).add(shelf / "photos").known == rows
    monkeypatch.chdir(shelf / "photos" / "class 01")
    for source in ("..", "../../photos", "../*/*.png", [".", "../class 02", "."]):
        added = Gallery.open(shop).add(source)
        assert (added.rows, added.known) == (0, rows if isinstance(source, str) else 2 * EACH)
    assert len(Gallery.open(shop)) == rows


def test_odd_names(shelf: Path, tmp_path: Path) -> None:
    names = ["Zoë – 猫 🐈.png", " blank .png", "a,b;\"c'.png", "[x]*?.png", "--flag.png", "line\nbreak.png", "50%.png"]
    folder = tmp_path / "odd" / "label = 'x'"
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        Image.new("RGB", (16, 16), (30 * number, 200 - 20 * number, 99)).save(folder / name)
    made = Gallery.create(tmp_path / "shop", shelf / "model", tmp_path / "odd")
    assert made.added.rows == len(names)
    for name in names:
        hit = made.search(folder / name, k=1, where={"label": folder.name})[0][0]
        assert (hit.path, hit.label) == (str(folder / name), folder.name)
        assert made.remove({"path": str(folder / name)}) == 1


def test_labels_of_folders_for_splits_and_none(shelf: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(shelf / "photos" / "class 01", tmp_path / "photos" / part / "hat")
    made = Gallery.create(tmp_path / "shop", shelf / "model", tmp_path / "photos")
    assert made.store.count_labels() == {"hat": 2 * EACH}
    without = Gallery.create(tmp_path / "other", shelf / "model", tmp_path / "photos", labels=False)
    assert without.store.count_labels() == {None: 2 * EACH}


def test_columns_and_boxes_of_tables(shelf: Path, tmp_path: Path) -> None:
    picture = np.zeros((16, 32, 3), np.uint8)
    picture[:, :16] = (250, 40, 40)
    picture[:, 16:] = (30, 60, 240)
    Image.fromarray(picture).save(tmp_path / "two.png")
    table = tmp_path / "stock.csv"
    lines = ["path,label,shop,price,x_1,y_1,x_2,y_2", "two.png,red,Köln,10,0,0,16,16", "two.png,,Köln,20,16,0,32,16"]
    table.write_text("\n".join(lines) + "\n")
    made = Gallery.create(tmp_path / "gallery", shelf / "model", table)
    made.add(shelf / "photos")
    assert further_columns(made.store.columns) == ["shop", "price"]
    hit = made.search(picture[:, 16:], k=3)[0][0]
    assert hit.path == f"{tmp_path}/two.png (16, 0, 32, 16)"
    assert (hit.label, hit.columns) == (None, {"shop": "Köln", "price": "20"})
    assert hit.distance == pytest.approx(0, abs=1e-6)
    found = [made.search(picture[:, 16:], where=where)[0] for where in ({"shop": "Köln"}, {"price": ["10", "30"]})]
    assert [[hit.columns["price"] for hit in hits] for hits in found] == [["20", "10"], ["10"]]
    assert len(made.search(picture[:, 16:], k=99, where={"shop": None})[0]) == CLASSES * EACH
    assert made.remove({"shop": "Köln", "price": ["20", "99"]}) == 1


@pytest.mark.parametrize("name", ["distance", "file_stamp"])
def test_columns_that_are_taken(shelf: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "stock.csv").write_text(f"path,{name}\n{shelf}/photos/class 01/1.png,5\n")
    with pytest.raises(ValueError, match=f"named '{name}', but id, distance, file_stamp are taken"):
        Gallery.create(tmp_path / "gallery", shelf / "model", tmp_path / "stock.csv")


def test_what_cannot_be_read_is_named_and_the_rest_added(shelf: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(shelf / "photos" / "class 01", photos / "hat")
    (photos / "hat" / "torn.png").write_bytes((photos / "hat" / "0.png").read_bytes()[:99])
    (photos / "hat" / "note.txt").write_text("not a picture")
    made = Gallery.create(photos / "shop", shelf / "model", photos)  # within the source
    assert made.added.rows == EACH
    assert [*made.added.unreadable] == [str(photos / "hat" / "torn.png")]
    assert made.added.ignored == (str(photos / "hat" / "note.txt"),)
    again = made.add(photos)
    assert (again.rows, again.known, again.ignored) == (0, EACH, made.added.ignored)


def test_folders_that_cannot_be_listed_are_named(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, shelf / "photos" / "class 02")
    made = Gallery.create(tmp_path / "shop", shelf / "model", shelf / "photos")
    assert made.added.rows == (CLASSES - 1) * EACH
    ((name, _),) = made.added.unreadable.items()
    assert name == str(shelf / "photos" / "class 02")


@pytest.mark.parametrize("at_once", [1, 4096])
def test_a_picture_that_changed_is_said_and_embedded_again(
    shelf: Path, tmp_path: Path, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adding, "_PICTURES_AT_ONCE", at_once)
    shutil.copytree(shelf / "photos" / "class 01", tmp_path / "photos" / "hat")
    first, second = (tmp_path / "photos" / "hat" / name for name in ("0.png", "1.png"))
    table = tmp_path / "stock.csv"
    table.write_text(f"path,label,shop\n{first},cap,Köln\n{second},cap,Bonn\n")
    made = Gallery.create(tmp_path / "shop", shelf / "model", table)
    before = {hit.path: hit for hit in made.search(first, k=9)[0]}
    assert [hit.columns for hit in before.values()] == [{"shop": "Köln"}, {"shop": "Bonn"}]
    assert made.add(tmp_path / "photos").changed == 0
    shutil.copy(shelf / "photos" / "class 05" / "3.png", first)
    with monkeypatch.context() as patch:
        patch.setattr(local, "append", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made.add(tmp_path / "photos", update=True)
    assert len(made) == EACH  # nothing is lost in between
    again = made.add(tmp_path / "photos")
    assert (again.rows, again.known, again.changed, again.updated) == (0, EACH, 1, 0)
    assert made.search(first, k=1)[0][0].distance > 1e-3
    again = made.add(tmp_path / "photos", labels=False, update=True)
    assert (again.rows, again.known, again.changed, again.updated) == (0, EACH - 1, 0, 1)
    (hit,) = made.search(first, k=1)[0]
    assert (hit.path, hit.label, hit.columns, len(made)) == (str(first), "cap", {"shop": "Köln"}, EACH)
    assert hit.distance < 1e-5
    assert made.search(second, k=1)[0][0].id == before[str(second)].id
    # Another file of equal size and time.
    status = first.stat()
    content = (shelf / "photos" / "class 04" / "2.png").read_bytes()
    first.write_bytes(content.ljust(status.st_size, b"\0")[: status.st_size])
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (first.stat().st_size, first.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert made.add(tmp_path / "photos", update=True).updated == 1
    # A file that is being written, say, keeps its vector.
    first.write_bytes(first.read_bytes()[:99])
    again = made.add(first, update=True)
    assert (again.updated, [*again.unreadable], len(made)) == (0, [str(first)], EACH)
    assert made.add(tmp_path / "photos", update=True).updated == 0


class Faulty(nn.Module):
    """Map dark pictures to zero, and bright ones to NaN."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        mean = images.mean((2, 3))
        return torch.where(mean > 0.9, torch.nan, torch.where(mean < 0.1, 0.0, mean))


def test_pictures_whose_vectors_are_useless_are_named(tmp_path: Path) -> None:
    for name, colour in (("dark", 0), ("grey", 128), ("white", 255)):
        Image.new("RGB", (8, 8), (colour,) * 3).save(tmp_path / f"{name}.png")
    faulty = Embedder(Faulty(), lambda image: torch.tensor(np.asarray(image)).permute(2, 0, 1) / 255, checksum="x")
    made = Gallery.create(tmp_path / "shop", faulty, tmp_path)
    assert {Path(name).stem: why for name, why in made.added.unreadable.items()} == {
        "dark": "its vector is zero, which has no direction",
        "white": "its vector has a number that is not finite",
    }
    assert made.added.rows == 1
    by_length = Gallery.create(tmp_path / "other", faulty, tmp_path / "dark.png", distance="euclidean")
    assert by_length.added.rows == 1


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, np.nan, 0.0]], "vector 0 has a number that is not finite"),
        ([[0.0, 0.0, 0.0]], "vector 0 is zero, which has no direction"),
        ([[1e300, 0.0, 0.0]], "vector 0 has a number that is not finite"),
        ([[1.0, 2.0]], r"float64 of shape \[1, 2\], but those of .* are floats \[rows, 3\]"),
        ([[1, 2, 3]], r"int64 of shape \[1, 3\]"),
    ],
)
def test_vectors_that_are_refused(tmp_path: Path, vectors: Any, message: str) -> None:
    made = Gallery.create(tmp_path / "shop", dim=3)
    for use in (made.search_vectors, lambda given: made.add_vectors(given, [f"{n}.jpg" for n in range(len(given))])):
        with pytest.raises(ValueError, match=message):
            use(np.array(vectors))
    np.save(tmp_path / "new.npy", np.atleast_2d(np.array(vectors, np.float64)))
    if "shape" not in message:
        with pytest.raises(ValueError, match="vector"):
            Gallery.create(tmp_path / "never", source=tmp_path / "new.npy")
        assert not (tmp_path / "never").exists()
    assert len(made) == 0


def test_tiny_and_huge_vectors_keep_their_direction(tmp_path: Path) -> None:
    made = Gallery.create(tmp_path / "shop", dim=2)
    made.add_vectors(np.array([[1e-30, 0.0], [3e30, 3e30]]), ["tiny", "huge"])
    ((first, second),) = made.search_vectors([[0.0, 1e-40]])
    assert [first.path, second.path] == ["huge", "tiny"]
    assert [first.distance, second.distance] == pytest.approx([1 - 0.5**0.5, 1])


def test_rows_and_names_must_fit(tmp_path: Path) -> None:
    made = Gallery.create(tmp_path / "shop", dim=2)
    with pytest.raises(ValueError, match="vectors has 2 entries, but there are 1 paths"):
        made.add_vectors(np.eye(2), ["a"])
    with pytest.raises(ValueError, match="a path comes twice"):
        made.add_vectors(np.eye(2), ["a", "a"])
    with pytest.raises(ValueError, match="a path is empty"):
        made.add_vectors(np.eye(2), ["a", ""])
    with pytest.raises(ValueError, match="label has 1 entries, but there are 2"):
        made.add_vectors(np.eye(2), ["a", "b"], ["one"])
    with pytest.raises(ValueError, match="rows have no paths"):
        made.add(Rows.of(torch.eye(2)))


@pytest.mark.parametrize("ending", ["npy", "parquet"])
def test_files_of_vectors_need_no_model(tmp_path: Path, ending: str) -> None:
    vectors, labels = some_vectors(classes=4, each=3, dim=5)
    file = tmp_path / f"birds.{ending}"
    write_embeddings(file, Rows.of(torch.tensor(vectors), path=[f"{n}.jpg" for n in range(12)], label=labels))
    made = Gallery.create(tmp_path / "birds", source=file, distance="euclidean")
    hit = made.search_vectors(vectors[7:8], k=1)[0][0]
    expected = (f"{file}, row 7", None) if ending == "npy" else ("7.jpg", labels[7])
    assert (hit.path, hit.label, hit.distance) == (*expected, 0)
    assert (made.add(file).known, len(made)) == (12, 12)
    made.remove({"path": hit.path})
    assert made.add(file).rows == 1
    with pytest.raises(UserError, match=r"does not know the model of its vectors: give it \(--model\)"):
        made.search("a.jpg")


def test_all_columns_of_parquet_are_kept(tmp_path: Path) -> None:
    vectors, _ = some_vectors(classes=3, each=1, dim=5)
    file = write_table(
        tmp_path / "stock.parquet",
        vectors,
        path=["a", "b", "c"],
        label=["hat", None, "shoe"],
        price=[1.5, None, float("nan")],
    )
    made = Gallery.create(tmp_path / "stock", source=file)
    rows = {hit.path: hit for hit in made.search_vectors(vectors)[0]}
    assert [rows[name].label for name in "abc"] == ["hat", None, "shoe"]
    assert [rows[name].columns for name in "abc"] == [{"price": "1.5"}, {"price": None}, {"price": None}]


def test_vectors_of_another_model_are_refused(shelf: Path, shop: Path, tmp_path: Path) -> None:
    vectors = Rows.of(torch.rand(3, DIM))
    write_embeddings(tmp_path / "a.parquet", replace(vectors, made_by="0123456789abcdef"))
    own = Gallery.open(shop)
    with pytest.raises(UserError, match=r"another model \(checksum 0123456789ab\)"):
        own.add(tmp_path / "a.parquet")
    write_embeddings(tmp_path / "b.parquet", replace(vectors, made_by=own.store.info.embedder))
    assert own.add(tmp_path / "b.parquet").rows == 3
    # A gallery of vectors knows who has made them, where the file says so.
    made = Gallery.create(tmp_path / "c", source=tmp_path / "a.parquet")
    with pytest.raises(UserError, match="is not the model of"):
        Gallery.open(tmp_path / "c", shelf / "model")
    assert made.store.info.model is None


def test_a_gallery_says_in_which_precision_its_vectors_were_computed(shelf: Path, shop: Path, tmp_path: Path) -> None:
    assert Gallery.open(shop).store.info.precision == "32-true"
    half = Embedder.load(shelf / "model", precision="bf16-mixed")
    with pytest.raises(UserError, match=r"computes in bf16-mixed, but the vectors of .* were computed in 32-true"):
        Gallery.open(shop, half)
    one = _one_picture(tmp_path)
    rows = replace(Rows.of(half.embed([one])), made_by=half.checksum, precision=half.precision)
    write_embeddings(tmp_path / "half.parquet", rows)
    with pytest.raises(UserError, match=r"computed in bf16-mixed, but those of .* in 32-true: .* --precision 32-true"):
        Gallery.open(shop).add(tmp_path / "half.parquet")
    for name, made in (("a", Gallery.create(tmp_path / "a", half)), ("b", None)):
        Gallery.create(tmp_path / "b", source=tmp_path / "half.parquet") if made is None else made.add(one)
        told = summarize_store(Gallery.open(tmp_path / name).store)
        assert told.precision == "bf16-mixed"
        assert "computed in bf16-mixed" in "\n".join(told.lines())
    # Queries are embedded as the gallery was.
    assert Gallery.open(tmp_path / "a").search(one)[0][0].distance == pytest.approx(0, abs=1e-6)
    assert Gallery.open(tmp_path / "a", shelf / "model").embedder.precision == "bf16-mixed"


def test_a_model_that_takes_vectors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_model(ModelConfig("none", 3, input_size=5)).eval()
    save_model(tmp_path / "model", model, {})
    vectors, _ = some_vectors(classes=3, each=4, dim=5)
    np.save(tmp_path / "raw.npy", vectors)
    made = Gallery.create(tmp_path / "shop", tmp_path / "model", tmp_path / "raw.npy")
    loaded, _ = load_model(tmp_path / "model")
    with torch.no_grad():
        expected = nn.functional.normalize(loaded(torch.tensor(vectors)))
    stored = np.concatenate([item for item, _ in made.store.iterate()])
    np.testing.assert_allclose(stored, expected, atol=1e-6)
    with pytest.raises(UserError, match="takes vectors, not photos"):
        made.add(_one_picture(tmp_path))
    own = replace(Rows.of(torch.rand(2, 3)), made_by=made.store.info.embedder)
    write_embeddings(tmp_path / "made.parquet", own)
    assert made.add(tmp_path / "made.parquet").rows == 2
    before = len(made.store)
    given = nn.functional.normalize(torch.rand(2, 3))
    assert made.add_vectors(given, ["a", "b"]).rows == 2  # as they are, not through the head
    added = np.concatenate([item for item, _ in made.store.iterate()])[before:]
    np.testing.assert_allclose(added, given, atol=1e-6)


def _one_picture(folder: Path) -> Path:
    Image.new("RGB", (16, 16), "red").save(folder / "one.png")
    return folder / "one.png"


def test_models_that_are_not_those_of_the_gallery(shelf: Path, shop: Path, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other", seed=1)
    with pytest.raises(UserError, match=rf"{other} \(checksum \w{{12}}\) is not the model of {shop}"):
        Gallery.open(shop, other)
    vectors = Gallery.create(tmp_path / "vectors", dim=DIM + 1)
    with pytest.raises(UserError, match=f"vectors of {DIM} dimensions, but those of .* have {DIM + 1}"):
        Gallery(vectors.store, Embedder.load(other))


def test_a_model_that_has_moved(shelf: Path, tmp_path: Path) -> None:
    shutil.copytree(shelf / "model", tmp_path / "model")
    Gallery.create(tmp_path / "shop", tmp_path / "model", _one_picture(tmp_path))
    (tmp_path / "model").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=rf"{tmp_path}/model, the model of .*, is not there: say where it is now"):
        Gallery.open(tmp_path / "shop").search(tmp_path / "one.png")
    moved = Gallery.open(tmp_path / "shop", tmp_path / "elsewhere")
    assert moved.search(tmp_path / "one.png")[0][0].distance == pytest.approx(0, abs=1e-6)
    # Another one is put where it was: trained again, say.
    write_model(tmp_path / "model", seed=1)
    with pytest.raises(UserError, match="is not the model of"):
        Gallery.open(tmp_path / "shop").search(tmp_path / "one.png")


def test_nothing_is_made_of_a_source_that_cannot_be_read(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.csv").write_text("name\nx.png\n")
    for source in ("nowhere", "no*.png", tmp_path / "bad.csv", tmp_path / "no.npy"):
        with pytest.raises((UserError, ValueError)):
            Gallery.create(tmp_path / "shop", shelf / "model", source)
    assert not (tmp_path / "shop").exists()


def test_a_creation_that_was_killed_goes_on(shelf: Path, tmp_path: Path) -> None:
    Gallery.create(tmp_path / "shop", shelf / "model").close()  # as one that was killed while it embedded
    made = Gallery.create(tmp_path / "shop", shelf / "model", shelf / "photos")
    assert made.added.rows == len(made) == CLASSES * EACH
    with pytest.raises(UserError, match="holds a gallery: add to it"):
        Gallery.create(tmp_path / "shop", shelf / "model", shelf / "photos")
    Gallery.create(tmp_path / "other", dim=3).close()
    with pytest.raises(UserError, match="holds a gallery"):
        Gallery.create(tmp_path / "other", shelf / "model", shelf / "photos")


@pytest.mark.parametrize("error", [UserError("The disk is full."), KeyboardInterrupt()])
def test_an_addition_that_stops_in_the_middle_goes_on(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(adding, "_PICTURES_AT_ONCE", 8)
    calls, add = [], LocalStore.add

    def fail(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise error
        return add(*arguments)

    monkeypatch.setattr(LocalStore, "add", fail)
    expected = Interrupted if isinstance(error, KeyboardInterrupt) else UserError
    with pytest.raises(expected, match=r"has 8 of the \d+ new rows: proxemic gallery add goes on from there"):
        Gallery.create(tmp_path / "shop", shelf / "model", shelf / "photos", batch_size=4)
    made = Gallery.open(tmp_path / "shop")
    assert len(made) == 8
    added = made.add(shelf / "photos")
    assert (added.known, added.rows) == (8, CLASSES * EACH - 8)
    whole = Gallery.open(shelf / "shop")
    for (vectors, items), (expected_vectors, expected_items) in zip(
        made.store.iterate(), whole.store.iterate(), strict=True
    ):
        np.testing.assert_allclose(vectors, expected_vectors, atol=1e-6)
        assert items.equals(expected_items)


def test_hits_that_were_removed_in_the_meantime(shop: Path) -> None:
    made = Gallery.open(shop)
    found = made.neighbours(torch.ones(1, DIM), k=5)
    table = made.store.items(np.unique(found.ids)).slice(1)

    class Changed(LocalStore):
        def items(self, ids: Any) -> Any:
            return table

    left = Gallery(Changed(shop)).search_vectors(torch.ones(1, DIM), k=5)[0]
    gone = int(np.unique(found.ids)[0])
    assert [hit.id for hit in left] == [id_ for id_ in found.ids[0] if id_ != gone]
