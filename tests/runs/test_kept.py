"""Vectors that are kept in the user's cache: no command embeds a picture again, and nothing false is found."""

import os
import resource
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

import warm
from command_line import Here
from images import write_folder
from proxemic.data import ImageSet
from proxemic.data.pixels import FilePixels
from proxemic.errors import UserNote
from proxemic.models import read_checksum
from proxemic.retrieval import Embedder, Gallery, list_pictures, open_gallery
from proxemic.retrieval.curation.clustering import cluster
from proxemic.runs import kept
from proxemic.runs.embed import embed_images, load_embedder
from shelves import write_model

pytestmark = pytest.mark.cpu


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("PROXEMIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PROXEMIC_CACHE_GB", "10")
    monkeypatch.setattr(kept, "_SECONDS", 0)  # each batch is a block
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", classes=3, images=2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


def pictures(folder: Path) -> FilePixels:
    return FilePixels(sorted(folder.rglob("*.png")))


def embed(model: Path, folder: Path) -> tuple[np.ndarray, int]:
    """Return all vectors, and how many were computed."""
    embedder = Embedder.load(model)
    parts = [*embedder.embed_readable(pictures(folder), batch_size=2)]
    assert [place for part in parts for place in part.places] == [*range(len(pictures(folder)))]
    return torch.cat([part.embeddings for part in parts]).numpy(), embedder.computed


def test_every_command_uses_what_another_has_embedded(cache: Path, photos: Path, model: Path, tmp_path: Path) -> None:
    said: list[str] = []
    gallery = open_gallery(photos, model, report=said.append)
    assert said == [f"{photos}: 6 photos were embedded by {model}, and 0 are known from before"]
    query = photos / "class 01" / "0.png"
    expected = [(hit.path, hit.label) for hit in gallery.search(query, k=3)[0]]

    def computed(work: Callable[[Embedder], object]) -> int:
        embedder = Embedder.load(model)
        work(embedder)
        return embedder.computed

    made: list[Gallery] = []
    assert computed(lambda embedder: made.append(Gallery.create(tmp_path / "shop", embedder, photos))) == 0
    assert [(hit.path, hit.label) for hit in made[0].search(query, k=3)[0]] == expected
    assert computed(lambda embedder: cluster(photos, embedder)) == 0
    cut = Embedder.load(model).first(2)
    vectors = torch.cat([part.embeddings for part in cut.embed_readable(pictures(photos))])
    assert (vectors.shape, cut.source.computed) == ((6, 2), 0), "whole outputs are kept"
    torch.testing.assert_close(vectors, cut.embed(list(pictures(photos).paths)))


@pytest.mark.parametrize("command", ["gallery create shop PHOTOS", "clean PHOTOS", "cluster PHOTOS", "calibrate"])
def test_a_command_says_how_many_photos_it_has_embedded(
    command: str, cache: Path, photos: Path, model: Path, here: Here
) -> None:
    embed(model, photos)
    words = [str(photos) if word == "PHOTOS" else word for word in command.split()]
    given = [model, "--data.root", photos] if command == "calibrate" else ["--model", model]
    done = here(*words, *given, cwd=cache.parent)
    assert done.returncode == 0, done.stderr
    assert "0 photos were embedded by the model, and 6 are known from before" in done.stderr


def test_pictures_are_known_after_they_were_moved_or_copied(cache: Path, photos: Path, model: Path) -> None:
    vectors, computed = embed(model, photos)
    assert computed == 6
    moved = photos.rename(photos.with_name("moved"))
    copied = Path(shutil.copytree(moved, photos.with_name("copied")))
    for path in moved.rglob("*.png"):
        path.chmod(0o600)  # which changes the time of change
    for folder in (moved, copied, copied):
        again, computed = embed(model, folder)
        assert computed == 0
        np.testing.assert_array_equal(again, vectors)


def test_a_replaced_picture_of_equal_size_and_time_is_embedded_again(cache: Path, photos: Path, model: Path) -> None:
    vectors, _ = embed(model, photos)
    first, other = photos / "class 00" / "0.png", photos / "class 02" / "1.png"
    size = max(first.stat().st_size, other.stat().st_size)
    first.write_bytes(first.read_bytes().ljust(size, b"\0"))
    vectors, _ = embed(model, photos)
    status = first.stat()
    first.write_bytes(other.read_bytes().ljust(size, b"\0"))
    os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    again, computed = embed(model, photos)
    assert computed == 1
    np.testing.assert_allclose(again[0], vectors[5], atol=1e-6)
    np.testing.assert_array_equal(again[1:], vectors[1:])


def test_boxes_of_a_file_are_pictures_of_their_own(cache: Path, photos: Path, model: Path) -> None:
    path = pictures(photos).paths[0]
    boxed = FilePixels([path] * 3, [None, (0, 0, 8, 8), (8, 8, 16, 16)])
    parts = [torch.cat([part.embeddings for part in Embedder.load(model).embed_readable(boxed)]) for _ in range(2)]
    assert torch.equal(*parts)
    assert len({tuple(row) for row in parts[0].tolist()}) == 3


def test_what_cannot_be_read_is_tried_again(cache: Path, photos: Path, model: Path) -> None:
    torn = photos / "class 00" / "0.png"
    sound = torn.read_bytes()
    torn.write_bytes(sound[:50])
    for _ in range(2):
        (part,) = Embedder.load(model).embed_readable(pictures(photos), at_least=9)
        assert ([*part.unreadable], part.places) == ([0], [1, 2, 3, 4, 5])
    torn.write_bytes(sound)
    assert embed(model, photos)[1] == 1


def test_another_precision_or_model_has_its_own(cache: Path, photos: Path, model: Path, tmp_path: Path) -> None:
    embed(model, photos)
    assert embed(write_model(tmp_path / "other", seed=1), photos)[1] == 6
    half = Embedder.load(model, precision="bf16-mixed")
    assert len([*half.embed_readable(pictures(photos))])
    assert half.computed == 6


def database_of_another_program() -> bytes:
    with closing(sqlite3.connect(":memory:")) as db:
        db.execute("CREATE TABLE blocks(name)")
        return db.serialize()


@pytest.mark.parametrize(
    "content", [b"", b"no database", b"SQLite format 3\0" + bytes(4000), database_of_another_program()]
)
def test_a_damaged_file_is_replaced(cache: Path, photos: Path, model: Path, content: bytes) -> None:
    vectors, _ = embed(model, photos)
    (file,) = (cache / "vectors").glob("*.sqlite")
    file.write_bytes(content)
    again, computed = embed(model, photos)
    assert computed == 6
    np.testing.assert_allclose(again, vectors, atol=1e-6)
    assert embed(model, photos)[1] == 0


def test_damaged_pages_are_embedded_again(cache: Path, photos: Path, model: Path) -> None:
    vectors, _ = embed(model, photos)
    (file,) = (cache / "vectors").glob("*.sqlite")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("DELETE FROM blocks WHERE number = 2")
    again, computed = embed(model, photos)
    assert 0 < computed < 6
    np.testing.assert_allclose(again, vectors, atol=1e-6)


def test_without_a_folder_it_works_and_says_so_once(cache: Path, photos: Path, model: Path) -> None:
    cache.write_text("not a folder")
    embedder = Embedder.load(model)
    with pytest.warns(UserNote, match="Vectors are not kept in") as said:
        parts = [len([*embedder.embed_readable(pictures(photos), batch_size=2)]) for _ in range(2)]
    assert (parts, len(said), embedder.computed) == ([3, 3], 1, 12)


@pytest.mark.full_disk
def test_on_a_full_disk_it_works_and_says_so_once(cache: Path, photos: Path, model: Path) -> None:
    embed(model, photos)
    write_folder(photos / "more", classes=1, images=3)
    embedder, limits = Embedder.load(model), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))  # the kernel refuses every write
    try:
        with pytest.warns(UserNote, match="Vectors are not kept in") as said:
            parts = [*embedder.embed_readable(pictures(photos), batch_size=2)]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (sum(len(part.places) for part in parts), len(said)) == (9, 1)
    assert embedder.source.computed == 1, "what was kept before is read, and two of the three are copies"
    kept._opened.cache_clear()  # as another process does
    assert embed(model, photos)[1] == 1, "what was kept before is sound, and two of the three are copies"


def test_what_was_not_used_for_long_goes_first(
    cache: Path, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed(model, photos)
    (file,) = (cache / "vectors").glob("*.sqlite")

    def open_again() -> None:
        kept._opened.cache_clear()  # as another process does

    monkeypatch.setenv("PROXEMIC_CACHE_GB", "1e-9")
    open_again()
    assert embed(model, photos)[1] == 0, "what was used within a day stays"
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE blocks SET used = used - 100000 WHERE number = 1")
    open_again()
    assert 0 < embed(model, photos)[1] < 6
    assert embed(model, photos)[1] == 0


def test_the_evaluation_of_a_run_takes_part(cache: Path, photos: Path, model: Path) -> None:
    images = ImageSet.of(list_pictures(photos))
    network, preprocessing = load_embedder(model)
    first, again = (embed_images(network, images, preprocessing, checksum=read_checksum(model)) for _ in range(2))
    assert torch.equal(first, again)
    vectors, computed = embed(model, photos)
    assert computed == 0
    torch.testing.assert_close(torch.from_numpy(vectors), first)
    next(photos.rglob("*.png")).unlink()
    left = embed_images(network, ImageSet.of(list_pictures(photos)), preprocessing, checksum=read_checksum(model))
    assert len(left) == 5
    assert {*map(tuple, left.tolist())} < {*map(tuple, first.tolist())}


KILLED = """
import sys, time
from pathlib import Path
from proxemic.retrieval import Embedder
embedder = Embedder.load(sys.argv[1])
embedder.network  # loaded
from proxemic.data import ImageSet
from proxemic.data.pixels import FilePixels
pictures = FilePixels(sorted(Path(sys.argv[2]).rglob("*.png")))
for number, _ in enumerate(embedder.embed_readable(pictures, batch_size=1)):
    time.sleep(0.4 if number < 4 else 600)
"""


def test_a_killed_command_loses_a_second_of_work(cache: Path, photos: Path, model: Path) -> None:
    process = warm.Process("-c", KILLED, model, photos, environment={**os.environ, "PROXEMIC_CACHE": str(cache)})
    while not (file := next((cache / "vectors").glob("*.sqlite"), None)) or not kept.kept_embeddings()[file.stem][0]:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    (there,) = (rows for rows, _ in kept.kept_embeddings().values())
    assert 0 < there < 6
    assert embed(model, photos)[1] == 6 - there


def test_the_command(cache: Path, photos: Path, model: Path, here: Here) -> None:
    assert here("cache").stdout.startswith("0 embeddings")
    embed(model, photos)
    assert "\n6 embeddings by 1 model, " in here("cache").stdout
    assert f"removed from {cache / 'vectors'}" in here("cache", "--clear").stdout
    assert embed(model, photos)[1] == 6
