"""The whole server over HTTP in front of a database that goes away and comes back."""

import time
from collections.abc import Callable
from pathlib import Path

import httpx

from proxemic.retrieval import Gallery
from proxemic.retrieval.curation import list_decisions
from servers import Postgres
from servings import Serving

PHOTO = "photos/class 03/2.png"


def search(serving: Serving, shelf: Path) -> httpx.Response:
    return serving.client.post("/search", files={"picture": (shelf / PHOTO).read_bytes()}, params={"k": 3})


def wait_for(found: Callable[[], httpx.Response], status: int) -> httpx.Response:
    """The first answer of a status; a database that is started again does not take connections at once."""
    until = time.monotonic() + 60
    while (answer := found()).status_code != status:
        assert time.monotonic() < until, answer.text
        time.sleep(0.2)
    return answer


def test_a_database_that_is_gone_is_told_and_waited_for(shelf: Path, tmp_path: Path) -> None:
    server = Postgres()
    serving = None
    try:
        gallery = Gallery.create(server.address("my shop"), shelf / "model", shelf / "photos")
        (hits,) = gallery.search(shelf / PHOTO, 3)
        serving = Serving(tmp_path, server.address("my shop"), "--threshold", "0.0001", "--review")
        ann = {"session": "that of Ann"}
        doubt = serving.client.post("/review/next", params=ann).json()["doubt"]
        choice = {"action": "keep", **ann}
        assert serving.client.post(f"/review/{doubt['number']}", params=choice).json() == {"decision": 1, "note": None}
        assert [hit["id"] for hit in search(serving, shelf).json()["hits"]] == [hit.id for hit in hits]
        assert gallery.remove({"label": "class 00"}) == 4
        gallery.close()
        assert serving.client.get("/gallery").json()["rows"] == 24
        server.kill()
        for answer in (search(serving, shelf), serving.client.get("/gallery"), serving.client.get("/items/14/picture")):
            assert answer.status_code == 503
            assert "cannot be searched at the moment" in answer.json()["detail"]
            assert str(server.socket) not in answer.text, "where it is, is nobody's business"
        assert "cannot be reached" in serving.log.read_text()
        server.start()
        wait_for(lambda: search(serving, shelf), 200)
        (made,) = list_decisions(server.address("my shop"))
        assert (made.action, made.label, made.state) == ("keep", doubt["row"]["label"], "open")
    finally:
        if serving is not None:
            assert serving.end() == 0
        server.stop()
    assert serving is not None
    assert "Traceback" not in serving.log.read_text()
