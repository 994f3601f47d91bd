"""The whole server over HTTP in front of databases: PostgreSQL, Milvus, and a file of Milvus Lite."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxemic.retrieval import Gallery
from servers import Milvus, Postgres
from servings import Serving

PHOTO = "photos/class 03/2.png"


@contextmanager
def running(store: str, folder: Path) -> Iterator[tuple[str, Postgres | Milvus | None]]:
    """The address of a gallery that is to be, and the server that it will live in, if it is one."""
    if store == "postgres":
        server = Postgres()
        try:
            yield server.address("my shop"), server
        finally:
            server.stop()
        return
    pytest.importorskip("milvus_lite", reason="Milvus Lite has no Windows")
    if store == "milvus-lite":
        yield f"milvus-lite:{folder / 'shop'}", None
        return
    server = Milvus(folder / "data")
    try:
        yield server.address("shop"), server
    finally:
        server.kill()


def search(serving: Serving, shelf: Path, **parameters: Any) -> httpx.Response:
    files = {"picture": (shelf / PHOTO).read_bytes()}
    return serving.client.post("/search", files=files, params={"k": 3, **parameters})


def wait_for(found: Callable[[], httpx.Response], status: int) -> httpx.Response:
    """The first answer of a status; a database that is started again does not take connections at once."""
    until = time.monotonic() + 60
    while (answer := found()).status_code != status:
        assert time.monotonic() < until, answer.text
        time.sleep(0.2)
    return answer


@pytest.mark.parametrize("store", ["postgres", "milvus", "milvus-lite"])
def test_a_gallery_in_a_database_is_served(store: str, shelf: Path, tmp_path: Path) -> None:
    with running(store, tmp_path) as (address, server):
        gallery = Gallery.create(address, shelf / "model", shelf / "photos")
        (hits,) = gallery.search(shelf / PHOTO, 3)
        gallery.close()  # a file of Milvus Lite is of one process
        serving = Serving(tmp_path, address, "--threshold", "0.0001")
        try:
            answers_as_the_gallery(serving, shelf, [hit.id for hit in hits])
            if server is not None:
                changes_are_seen(serving, shelf, address)
                a_database_that_is_gone_is_told_and_waited_for(serving, shelf, server)
        finally:
            assert serving.end() == 0
        assert "Traceback" not in serving.log.read_text()


def answers_as_the_gallery(serving: Serving, shelf: Path, ids: list[int]) -> None:
    found = search(serving, shelf).json()
    assert [hit["id"] for hit in found["hits"]] == ids
    assert found["recognition"]["label"] == "class 03"
    some = search(serving, shelf, k=100, where=["label=class 01", "label=class 02"]).json()
    assert sorted({hit["label"] for hit in some["hits"]}) == ["class 01", "class 02"]
    assert search(serving, shelf, where="price=3").json() == {
        "detail": "the gallery has no column 'price': its columns are path, label."
    }
    page = serving.client.get("/items", params={"after": 3, "count": 5}).json()
    assert ([row["id"] for row in page["items"]], page["more"]) == ([4, 5, 6, 7, 8], True)
    assert serving.client.get("/items/14/picture").content == (shelf / PHOTO).read_bytes()
    assert serving.client.get("/items/14/thumbnail").headers["content-type"] == "image/jpeg"
    assert serving.client.get("/items/28").status_code == 404
    near = serving.client.get("/search", params={"item": 14, "k": 2}).json()["hits"]
    assert [hit["id"] for hit in near] == [each for each in ids if each != 14]


def changes_are_seen(serving: Serving, shelf: Path, address: str) -> None:
    gallery = Gallery.open(address)
    assert gallery.remove({"label": "class 00"}) == 4
    gallery.close()
    assert serving.client.get("/gallery").json()["rows"] == 24
    assert serving.client.get("/items/0").status_code == 404


def a_database_that_is_gone_is_told_and_waited_for(serving: Serving, shelf: Path, server: Postgres | Milvus) -> None:
    place = server.socket if isinstance(server, Postgres) else str(server.port)
    server.kill()
    for answer in (search(serving, shelf), serving.client.get("/gallery"), serving.client.get("/items/14/picture")):
        assert answer.status_code == 503
        assert "cannot be searched for now" in answer.json()["detail"]
        assert str(place) not in answer.text, "where it is, is nobody's business"
    assert "cannot be reached" in serving.log.read_text()
    server.start()
    wait_for(lambda: search(serving, shelf), 200)
