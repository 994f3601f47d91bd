"""``proxemic gallery``, as it is typed."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import Here, assert_refused, warm_proxemic
from images import write_folder
from ports import free_port
from proxemic.retrieval import Gallery
from proxemic.serve.pictures import Decoding, original
from shelves import CLASSES, EACH, SIZE

ROWS = CLASSES * EACH


def test_the_life_of_a_gallery(shelf: Path, tmp_path: Path) -> None:
    shutil.copytree(shelf / "photos", tmp_path / "photos")
    (tmp_path / "photos" / "class 01" / "torn.png").write_bytes(b"\x89PNG")
    (tmp_path / "photos" / "notes.txt").write_text("ours")
    words = ["gallery", "create", "shop", "photos", "--model", shelf / "model"]
    made = warm_proxemic(*words, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert made.stdout == f"{ROWS} added, {ROWS} in shop\n"
    first, unreadable, ignored, embedded = made.stderr.splitlines()
    assert first == "Creating shop"
    assert unreadable.startswith("1 photo cannot be read: photos/class 01/torn.png (")
    assert ignored == "1 file is ignored, not photos by their names: photos/notes.txt"
    assert re.match(rf"{ROWS} photos were embedded by .*, and 0 are known from before", embedded)


def test_adding_removing_and_looking(shelf: Path, tmp_path: Path, here: Here) -> None:
    shutil.copytree(shelf / "shop", tmp_path / "shop")
    again = here("gallery", "add", "shop", shelf / "photos", cwd=tmp_path)
    assert (again.returncode, again.stdout) == (0, f"0 added, {ROWS} in shop\n")
    assert f"{ROWS} were there already and stay as before" in again.stderr
    gone = here("gallery", "remove", "shop", "--where", "label=class 01", "--where", "label=class 02", cwd=tmp_path)
    assert gone.stdout == f"{2 * EACH} removed, {ROWS - 2 * EACH} in shop\n"
    one = here("gallery", "remove", "shop", "--path", "class 03/0.png", "--path", "x", cwd=tmp_path)
    assert one.stdout.startswith("0 removed")
    (tmp_path / "photos").symlink_to(shelf / "photos")
    one = here("gallery", "remove", "../../shop", "--path", "0.png", cwd=_enter(tmp_path / "a" / "b"))
    assert one.stdout.startswith("0 removed")
    one = here("gallery", "remove", "shop", "--path", shelf / "photos" / "class 03" / "0.png", cwd=tmp_path)
    assert one.stdout.startswith("1 removed")
    told = json.loads(here("gallery", "info", tmp_path / "shop", "--format", "json").stdout)
    assert (told["rows"], told["labels"], told["model_state"]) == (ROWS - 2 * EACH - 1, CLASSES - 2, "there")
    assert here("gallery", "info", tmp_path / "shop").stdout.splitlines()[0] == (
        f"rows     {told['rows']} with {CLASSES - 2} labels"
    )
    assert here("gallery", "verify", tmp_path / "shop").stdout.endswith(f"is sound: {told['rows']} photos\n")


def _enter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_pictures_are_found_where_they_have_moved(shelf: Path, tmp_path: Path, here: Here) -> None:
    shutil.copytree(shelf / "photos", tmp_path / "photos")
    made = here("gallery", "create", "shop", "photos", "--model", shelf / "model", cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    (tmp_path / "photos").rename(tmp_path / "moved")
    query = tmp_path / "moved" / "class 03" / "0.png"
    search = ("search", "shop", query, "--html", "found.html", "-k", "1")
    assert here(*search, cwd=tmp_path).returncode == 0
    assert (tmp_path / "found.html").read_text().count("<img") == 1  # the query
    added = here("gallery", "add", "shop", "--root", "moved", cwd=tmp_path)
    assert added.stdout == f"0 added, {ROWS} in shop\n"
    found = here(*search, cwd=tmp_path)
    assert f"{tmp_path}/photos/class 03/0.png" in found.stdout
    assert (tmp_path / "found.html").read_text().count("<img") == 2
    given = original(f"{tmp_path}/photos/class 03/0.png", Gallery.open(tmp_path / "shop").store.roots, Decoding(2**20))
    assert given == ("image/png", query.read_bytes())
    assert_refused(here("gallery", "add", "shop", cwd=tmp_path), ["There is nothing to add"])


def test_a_gallery_is_deleted_and_its_pictures_stay(shelf: Path, tmp_path: Path, here: Here) -> None:
    shutil.copytree(shelf / "shop", tmp_path / "shop")
    result = here("gallery", "delete", "shop", "--yes", cwd=tmp_path)
    assert (result.returncode, result.stdout, result.stderr) == (0, "shop is deleted\n", "Deleting shop\n")
    assert not (tmp_path / "shop").exists()
    assert len([*(shelf / "photos").rglob("*.png")]) == ROWS


def test_a_gallery_of_vectors_alone(tmp_path: Path, here: Here) -> None:
    np.save(tmp_path / "birds.npy", np.random.default_rng(0).normal(size=(6, 3)))
    words = ["gallery", "create", tmp_path / "birds", tmp_path / "birds.npy", "--distance", "euclidean"]
    assert here(*words).stdout.startswith("6 added")
    assert Gallery.open(tmp_path / "birds").store.info.distance == "euclidean"
    assert "not known: it is searched by vectors" in here("gallery", "info", tmp_path / "birds").stdout
    assert here("gallery", "index", tmp_path / "birds", "exact").stdout == "index    exact\n"


def test_pictures_that_came_as_vectors_are_known(shelf: Path, tmp_path: Path, here: Here) -> None:
    (tmp_path / "photos").symlink_to(shelf / "photos")
    assert (
        here(
            "embed", "photos", "--model", shelf / "model", "--out", "v.parquet", "--workers", "0", cwd=tmp_path
        ).returncode
        == 0
    )
    words = ["gallery", "create", "shop", "v.parquet", "--model", shelf / "model"]
    assert here(*words, "--root", "/elsewhere", cwd=tmp_path).stdout.startswith(f"{ROWS} added")
    assert Gallery.open(tmp_path / "shop").store.roots == ("/elsewhere",)  # not those that the file names
    assert here("gallery", "add", "shop", "photos", cwd=tmp_path).stdout.startswith(f"0 added, {ROWS} in")
    assert (
        f"photos   opened below /elsewhere, {(shelf / 'photos').resolve()}"
        in here("gallery", "info", tmp_path / "shop").stdout
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("create new", ["Nothing says how vectors are made", "--model"]),
        ("create new photos --model photos", ["photos is not a model"]),
        ("create shop photos --model model", ["shop holds a gallery"]),
        ("add photos photos", ["photos is a folder of photos, not a gallery", "proxemic gallery create NAME photos"]),
        ("add shop short.npy", ["vectors have 2 dimensions, but those of shop have 6"]),
        ("remove shop", ["Nothing says which rows to remove"]),
        ("remove shop --where label", ["--where is 'label', but must be COLUMN=VALUE"]),
        ("delete shop", ["shop would be deleted for good: add --yes"]),
        ("info phots", ["phots does not exist (there is photos)"]),
        ("index shop exact --set m=x", ["--set is 'm=x', but must be NAME=NUMBER"]),
    ],
)
def test_bad_input_is_one_sentence(shelf: Path, tmp_path: Path, here: Here, words: str, told: list[str]) -> None:
    for name in ("photos", "model"):
        (tmp_path / name).symlink_to(shelf / name)
    shutil.copytree(shelf / "shop", tmp_path / "shop")
    np.save(tmp_path / "short.npy", np.ones((2, 2)))
    assert_refused(here("gallery", *words.split(), cwd=tmp_path), told)
    assert len(Gallery.open(tmp_path / "shop")) == ROWS
    assert not (tmp_path / "new").exists()


def test_foreign_files_in_the_folder_stay(shelf: Path, tmp_path: Path, here: Here) -> None:
    shop = tmp_path / "shop"
    shutil.copytree(shelf / "shop", shop)
    (shop / "notes").mkdir()
    names = ("notes.txt", "found.html", "items-20261126.parquet", ".notes.txt.999999999.tmp", "notes/.a.999999999.tmp")
    for name in names:
        (shop / name).write_text("ours")
    for words in (
        ["index", shop, "hnsw"],
        ["remove", shop, "--where", "label=class 01", "--where", "label=class 02"],
        ["add", shop, shelf / "photos" / "class 01", shelf / "photos" / "class 02", "--no-labels"],
        ["index", shop, "exact"],
        ["remove", shop, "--where", "label=class 03"],
        ["delete", shop, "--yes"],
    ):
        done = here("gallery", *words)
        assert done.returncode == 0, done.stderr
        assert {name: (shop / name).read_text() for name in names} == dict.fromkeys(names, "ours"), words
    assert {path.name for path in shop.rglob("*")} == {"notes", *(name.rpartition("/")[2] for name in names)}


def test_damage_is_still_found_after_a_change(shelf: Path, tmp_path: Path, here: Here) -> None:
    shop = tmp_path / "shop"
    shutil.copytree(shelf / "shop", shop)
    vector = next(Gallery.open(shop).store.iterate())[0][0].tobytes()
    (path,) = (path for path in shop.iterdir() if vector in path.read_bytes())
    content = bytearray(path.read_bytes())
    content[content.index(vector)] ^= 1
    path.write_bytes(content)
    told = here("gallery", "verify", shop)
    assert told.returncode == 1
    assert told.stdout.startswith(f"{path} is damaged (the checksum of")
    write_folder(tmp_path / "more", classes=10, images=EACH, size=SIZE)
    here("gallery", "add", shop, tmp_path / "more")
    assert here("gallery", "verify", shop).returncode == 1
    here("gallery", "remove", shop, *(word for name in range(1, 6) for word in ("--where", f"label=class {name:02d}")))
    assert here("gallery", "verify", shop).returncode == 1


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:{secret}@127.0.0.1:{port}/db/shop",
        "postgresql://127.0.0.1:{port}/db/shop?user=me&Password={secret}",
        "milvus://127.0.0.1:{port}/shop?token={secret}",
        "s3://me:{secret}@127.0.0.1/shop",
    ],
)
def test_no_command_shows_a_password_or_makes_a_folder_of_an_address(
    address: str, shelf: Path, tmp_path: Path, here: Here
) -> None:
    pytest.importorskip("pymilvus")
    given = address.format(secret="s3cr3t", port=free_port())
    for words in (
        ["gallery", "create", given, shelf / "photos" / "class 00", "--model", shelf / "model"],
        ["gallery", "delete", given, "--yes"],
        ["search", given, shelf / "photos" / "class 00" / "0.png"],
        ["recognize", given, shelf / "photos" / "class 00" / "0.png"],
        ["report", given],
    ):
        result = here(*words, cwd=tmp_path)
        assert_refused(result, ["127.0.0.1"])
        assert "s3cr3t" not in result.stdout + result.stderr
    assert not [*tmp_path.iterdir()]
