"""A real server, asked over HTTP by those who mean well and by those who do not."""

import io
import os
import re
import shutil
import socket
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from command_line import Here, assert_refused
from ports import free_port
from proxemic.retrieval import Embedder, Gallery
from servings import Serving

PHOTO = "photos/class 03/2.png"


def photo(stall: Path, name: str = PHOTO) -> bytes:
    return (stall / name).read_bytes()


def files(content: bytes) -> dict[str, Any]:
    return {"picture": ("../../a picture.png", content)}


def png(width: int, height: int, rows: bytes = b"") -> bytes:
    """A PNG file whose header says what it likes."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = chunk(b"IDAT", zlib.compress(rows or bytes((width + 1) * height)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + body + chunk(b"IEND", b"")


def test_connections_send_small_answers_at_once(shelf: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[int] = []

    def run(_: object, sockets: list[socket.socket]) -> None:
        options.append(sockets[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))  # which connections inherit

    monkeypatch.setattr("uvicorn.Server.run", run)
    assert here("serve", shelf / "shop", "--port", "0").returncode == 0
    assert options == [1]


def assert_serves(serving: Serving, stall: Path) -> None:
    found = serving.client.post("/search", files=files(photo(stall)), params={"k": 1})
    assert found.status_code == 200, found.text


def test_a_search_is_that_of_the_gallery(serving: Serving, stall: Path) -> None:
    answer = serving.client.post("/search", files=files(photo(stall)), params={"k": 5}).json()
    gallery = Gallery.open(stall / "shop")
    (hits,) = gallery.search(stall / PHOTO, 5)
    assert [item["id"] for item in answer["hits"]] == [hit.id for hit in hits]
    assert [item["name"] for item in answer["hits"]] == [Path(hit.path).name for hit in hits]
    assert [item["label"] for item in answer["hits"]] == [hit.label for hit in hits]
    assert [item["distance"] for item in answer["hits"]] == pytest.approx([hit.distance for hit in hits], abs=1e-6)
    assert answer["recognition"] == {
        "label": "class 03",
        "distance": answer["hits"][0]["distance"],
        "nearest": answer["hits"][0]["id"],
        "threshold": 0.0001,
    }
    assert str(stall) not in str(answer), "folders of this machine"


def test_conditions_and_unknown_ones(serving: Serving, stall: Path) -> None:
    where = {"where": ["label=class 01", "label=class 02"], "k": 100}
    answer = serving.client.post("/search", files=files(photo(stall)), params=where).json()
    assert {item["label"] for item in answer["hits"]} == {"class 01", "class 02"}
    assert len(answer["hits"]) == 8
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "BMP")
    answer = serving.client.post("/search", files=files(file.getvalue())).json()
    assert answer["recognition"]["label"] is None
    assert answer["recognition"]["distance"] > 0.0001


def test_a_picture_of_the_gallery_is_searched_for(serving: Serving, stall: Path) -> None:
    answer = serving.client.get("/search", params={"item": 7, "k": 3}).json()
    gallery = Gallery.open(stall / "shop")
    vector, _ = gallery.store.rows(np.array([7]))
    (hits,) = gallery.search_vectors(vector, 4)
    assert [item["id"] for item in answer["hits"]] == [hit.id for hit in hits if hit.id != 7][:3]
    assert answer["recognition"] is None


def test_a_vector_is_the_embedders(serving: Serving, stall: Path) -> None:
    answer = serving.client.post("/embed", files=files(photo(stall))).json()
    embedder = Embedder.load(stall / "model")
    np.testing.assert_allclose(answer["vector"], embedder.embed(stall / PHOTO)[0], atol=1e-5)
    assert answer["model"] == embedder.checksum


def test_the_gallery_is_gone_through(serving: Serving, stall: Path) -> None:
    client = serving.client
    about = client.get("/gallery").json()
    assert about.pop("columns") in ([], ["colour"])  # which a test of the page leaves in the same gallery
    assert about == {
        "name": "shop",
        "rows": 28,
        "distance": "cosine",
        "dim": 6,
        "labels": [f"class {number:02}" for number in range(7)],
        "label_count": 7,
        "takes_pictures": True,
        "takes_texts": False,
        "threshold": 0.0001,
        "rate": None,
        "notes": [],
    }
    seen, after, more = [], -1, True
    while more:
        page = client.get("/items", params={"after": after, "count": 11}).json()
        seen += page["items"]
        after, more = page["items"][-1]["id"], page["more"]
    assert [item["id"] for item in seen] == [*range(28)]
    assert client.get("/items/5").json() == seen[5]
    some = client.get("/items", params={"where": "label=class 04"}).json()
    assert [item["label"] for item in some["items"]] == ["class 04"] * 4
    assert not some["more"]


def test_pictures_are_given_out(serving: Serving, stall: Path) -> None:
    row = serving.client.get("/items/9").json()
    answer = serving.client.get("/items/9/picture")
    assert answer.content == photo(stall, f"photos/{row['label']}/{row['name']}")
    assert answer.headers["content-type"] == "image/png"
    for path in ("/", "/gallery", "/items/9/picture", "/items/9/thumbnail", "/items/99"):
        headers = serving.client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
    answer = serving.client.get("/items/9/thumbnail")
    assert answer.headers["content-type"] == "image/jpeg"
    assert Image.open(io.BytesIO(answer.content)).size == (256, 256)


def test_the_interface_is_described(serving: Serving) -> None:
    described = serving.client.get("/openapi.json").json()
    paths = {
        "/health",
        "/gallery",
        "/search",
        "/search/text",
        "/embed",
        "/items",
        "/items/{id}",
        "/items/{id}/picture",
        "/items/{id}/thumbnail",
    }
    assert described["paths"].keys() == paths
    assert [serving.client.get(path).status_code for path in ("/docs", "/redoc")] == [404, 404]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/items/28", 404),
        ("/items/99999999999/thumbnail", 404),
        ("/items/-1", 422),
        ("/items/99999999999999999999999", 422),
        ("/items/..%2f..%2f..%2fetc%2fpasswd/picture", 404),
        ("/page.html", 404),
        ("/..%2fpage.html", 404),
        ("/search?item=99", 404),
        ("/search?item=1&k=0", 422),
        ("/search?item=1&where=label", 422),
        ("/items?where=id=5", 422),
        ("/items?count=1000000000", 422),
        ("/embed", 405),
    ],
)
def test_what_is_not_there_is_refused(serving: Serving, path: str, status: int) -> None:
    answer = serving.client.get(path)
    assert answer.status_code == status, answer.text
    assert re.fullmatch(r"[^\n]{20,}\.", answer.json()["detail"]), "one sentence"


def test_what_is_amiss_in_a_request_is_one_sentence(serving: Serving) -> None:
    client = serving.client
    for answer, said in (
        (client.get("/search?item=x"), "item is 'x', but should be a valid integer, unable to parse string as an int"),
        (client.get("/search"), "item is missing: the request must have it."),
        (client.post("/search"), "picture is missing: send a file by this name, as multipart/form-data."),
        (client.post("/search", data={"picture": "a"}), "picture is missing: send a file by this name"),
        (client.get("/nowhere"), "There is nothing at /nowhere: /openapi.json lists all paths."),
        (client.put("/search"), "/search does not take PUT: /openapi.json lists its methods."),
    ):
        assert answer.json()["detail"].startswith(said), answer.text
    assert "allow" in client.put("/search").headers


def test_head_is_answered_as_get_without_the_content(serving: Serving) -> None:
    for path in ("/", "/health", "/gallery", "/items/9/picture"):
        asked, told = serving.client.get(path), serving.client.head(path)
        assert (told.status_code, told.content) == (200, b"")
        assert told.headers["content-length"] == str(len(asked.content))
        assert told.headers["content-type"] == asked.headers["content-type"]
    assert serving.client.head("/items/99").status_code == 404


def truncated(stall: Path) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((90, 90), 50).save(file, "PNG")
    return file.getvalue()[:-2000]


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (lambda _: b"", 415, "not an image"),
        (lambda _: b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "not an image"),
        (lambda _: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", 415, "not an image"),
        (lambda _: png(60_000, 60_000, b"x"), 413, "pixels"),
        (lambda _: png(501, 500), 413, "501 x 500 pixels, and 250,500 in memory, but the limit is 250,000"),
        (lambda _: png(500, 500), 200, ""),
        (lambda _: os.urandom(400_001), 413, "more than 400,000 bytes"),
        (truncated, 422, "cannot be read"),
    ],
)
def test_what_is_no_picture_is_refused(serving: Serving, stall: Path, content: Any, status: int, words: str) -> None:
    for path in ("/search", "/embed"):
        answer = serving.client.post(path, files=files(content(stall)))
        assert answer.status_code == status, answer.text
        assert words in answer.text
    assert_serves(serving, stall)


def test_a_body_without_a_length_is_measured(serving: Serving, stall: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a.png"\r\n\r\n'
        for _ in range(100):
            yield bytes(10_000)

    answer = httpx.post(
        f"{serving.address}search", content=parts(), headers={"Content-Type": "multipart/form-data; boundary=x"}
    )
    assert answer.status_code == 413
    assert answer.headers["connection"] == "close"
    assert_serves(serving, stall)


def test_those_who_do_not_end_do_no_harm(serving: Serving, stall: Path) -> None:
    head = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=x\r\n"
    beginnings = (
        b"",
        b"GET / HT",
        head,
        head + b"Content-Length: 5000\r\n\r\n",
        head + b"\r\n",
        b"\x16\x03\x01 no HTTP",
    )
    slow = [socket.create_connection(("127.0.0.1", serving.port)) for _ in range(60)]
    for number, item in enumerate(slow):
        item.sendall(beginnings[number % len(beginnings)])
    assert_serves(serving, stall)
    for item in slow[::2]:  # truncated: the others stay
        item.close()
    assert_serves(serving, stall)
    for item in slow:
        item.close()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80@localhost"}, 421),
        ({"Host": "192.168.0.7"}, 421),
        ({"Host": ""}, 421),
        ({"Host": "LOCALHOST:9"}, 200),
        ({"Host": "[::1]"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
    ],
)
def test_pages_of_others_learn_nothing(serving: Serving, headers: dict[str, str], status: int) -> None:
    assert serving.client.get("/gallery", headers=headers).status_code == status


def test_a_form_of_another_page_is_refused(serving: Serving, stall: Path) -> None:
    own = {"Origin": serving.address.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    other = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    for headers, status in ((own, 200), (other, 403), ({"Origin": "http://127.0.0.1:1"}, 403)):
        answer = serving.client.post("/search", files=files(photo(stall)), headers=headers)
        assert answer.status_code == status


def test_only_pictures_that_are_still_there_leave(serving: Serving, stall: Path) -> None:
    secret = stall / "secret.txt"
    secret.write_text("a secret")
    kept = serving.client.get("/items/27").json()
    path = stall / "photos" / kept["label"] / kept["name"]
    content = path.read_bytes()

    def answers() -> list[int]:
        return [serving.client.get(f"/items/27/{what}").status_code for what in ("picture", "thumbnail")]

    try:
        assert answers() == [200, 200]
        for change in (
            path.unlink,
            lambda: path.symlink_to(secret),
            lambda: (path.unlink(), path.symlink_to(stall / PHOTO)),
            lambda: (path.unlink(), shutil.copy(secret, path)),
            lambda: (path.unlink(), path.mkdir()),
            lambda: (path.rmdir(), os.mkfifo(path)),
        ):
            change()
            assert answers() == [404, 404]
    finally:
        path.unlink()
        path.write_bytes(content)
    assert answers() == [200, 200]


def test_what_others_change_is_seen(serving: Serving, stall: Path) -> None:
    gallery = Gallery.open(stall / "shop")
    new = stall / "more" / "class 00" / "0.png"
    assert gallery.add([new]).rows == 1
    (number,) = gallery.store.next_ids(27)
    assert serving.client.get("/gallery").json()["rows"] == 29
    answer = serving.client.post("/search", files=files(new.read_bytes()), params={"k": 2}).json()
    assert number in [item["id"] for item in answer["hits"]]
    assert serving.client.get(f"/items/{number}/picture").content == new.read_bytes()
    assert gallery.remove({"path": str(new)}) == 1
    assert serving.client.get(f"/items/{number}/picture").status_code == 404
    assert serving.client.get("/gallery").json()["rows"] == 28


def test_what_cannot_be_served(here: Here, shelf: Path) -> None:
    def refused(words: str, *said: str) -> None:
        assert_refused(here("serve", *words.split(), cwd=shelf), said)

    with socket.create_server(("127.0.0.1", free_port())) as taken:
        refused(f"shop --port {taken.getsockname()[1]}", "cannot listen on port", "give another --port")
    refused("shop --host 0.0.0.0", "--host 0.0.0.0 lets other machines in", "--token")
    refused("shop --token short", "16 or more characters")
    refused("milvus-lite:shop --workers 2", "Only one process", "--workers 1")
