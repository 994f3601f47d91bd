"""Searching by words: over HTTP, and in a browser where the page has a text box."""

import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import uvicorn
from playwright.sync_api import expect
from starlette.testclient import TestClient

from browser import PHONE, Opened, faults_of_access
from images import write_folder
from proxemic.retrieval import Gallery
from proxemic.serve.access import Access
from proxemic.serve.app import make_app
from proxemic.serve.engine import Engine
from proxemic.serve.limits import Limits
from towers import SIDE, write_towers

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Gallery]]:
    """A server in this process, which has transformers imported, and its gallery."""
    root = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        photos = write_folder(root / "photos", classes=5, images=2, size=SIDE)
        gallery = Gallery.create(root / "shop", f"hf:{write_towers(root / 'clip')}", photos)
        app = make_app(Engine(str(root / "shop"), threshold=0.0001), Access("localhost", None), Limits())
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield f"http://localhost:{server.servers[0].sockets[0].getsockname()[1]}", gallery
        server.should_exit = True
        thread.join(30)


def test_texts_over_http(address: tuple[str, Gallery], shelf: Path) -> None:
    import httpx

    place, gallery = address
    with httpx.Client(base_url=place) as client:
        assert client.get("/gallery").json()["takes_texts"]
        answer = client.post("/search/text?k=3&where=label=class 01", data={"text": "a red car"}).json()
        hits = gallery.search(text="a red car", k=3, where={"label": "class 01"})[0]
        assert [hit["id"] for hit in answer["hits"]] == [hit.id for hit in hits]
        assert [hit["distance"] for hit in answer["hits"]] == pytest.approx([hit.distance for hit in hits], abs=1e-6)
        assert answer["recognition"] is None
        for data, sentence in (
            ({"text": " \n"}, "text is empty: describe in words what to look for."),
            ({"text": "x" * 1001}, "but should have at most 1000 characters."),
            ({}, "text is missing: the request must have it."),
        ):
            refused = client.post("/search/text", data=data)
            assert refused.status_code == 422
            assert sentence in refused.json()["detail"]
        other = client.post("/search/text", data={"text": "hat"}, headers={"Origin": "http://example.org"})
        assert other.status_code == 403
    app = make_app(Engine(str(shelf / "shop")), Access("localhost", None), Limits())
    with TestClient(app, "http://localhost") as client:
        assert not client.get("/gallery").json()["takes_texts"]
        assert "Or say what it shows" not in client.get("/").text
        refused = client.post("/search/text", data={"text": "hat"})
        assert (refused.status_code, "no text tower" in refused.json()["detail"]) == (422, True)


def test_the_page_has_a_box_for_words(address: tuple[str, Gallery], browse: Opened) -> None:
    place, gallery = address
    hits = gallery.search(text="blue hat", k=12)[0]
    for options in ({}, {**PHONE, "color_scheme": "dark"}):
        with browse(place, **options) as page:
            expect(page.locator("#items li")).to_have_count(10)
            page.get_by_label("Or say what it shows").fill("blue hat")
            page.get_by_label("Or say what it shows").press("Enter")
            expect(page.locator("#status")).to_have_text("10 found")
            expect(page.locator("#verdict")).to_have_text("blue hat, and the photos nearest to these words")
            expect(page.locator("#query")).to_be_hidden()
            assert page.locator("#hits b").all_inner_texts() == [hit.label for hit in hits]
            assert "beyond the threshold" not in page.locator("#hits").inner_text()
            assert faults_of_access(page) == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.locator("#hits button").first.click()
            expect(page.locator("#query")).to_be_visible()
