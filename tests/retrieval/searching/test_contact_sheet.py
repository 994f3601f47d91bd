"""Contact sheets: their content, and hostile names as text."""

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from browser import PHONE, Opened, faults_of_access
from proxemic.errors import UserError
from proxemic.retrieval import Gallery, SearchResult, search_gallery, write_contact_sheet
from proxemic.retrieval.searching import contact_sheet

RED, BLUE = (250, 30, 30), (30, 30, 250)
GREEN, DARK_RED = (26, 127, 55), (207, 34, 46)
HOSTILE = "<script>alert(1)</script>\"'&"


class Tags(HTMLParser):
    """All tags of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def result(tmp_path: Path) -> SearchResult:
    """A query of two halves, its red half found by its box, a blue picture, and one that is not there."""
    picture = np.full((20, 40, 3), BLUE, np.uint8)
    picture[:, :20] = RED
    Image.fromarray(picture).save(tmp_path / "two.png")
    Image.new("RGB", (30, 30), BLUE).save(tmp_path / "blue <b>.png")
    paths = [f"{tmp_path}/two.png (0, 0, 20, 20)", str(tmp_path / "blue <b>.png"), HOSTILE]
    made = Gallery.create(tmp_path / "shop", dim=2, roots=[tmp_path])
    made.add_vectors([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], paths, ["hat", HOSTILE, None], {"note": [HOSTILE] * 3})
    np.save(tmp_path / "new.npy", np.array([[1.0, 0.1]]))
    found = search_gallery(made, tmp_path / "new.npy")
    answer = type(found.answers[0])(str(tmp_path / "two.png"), "hat", found.answers[0].hits)
    return SearchResult("shop", [answer, answer], found.columns, {}, found.roots)


def test_only_pictures_that_the_gallery_was_given_are_opened(
    result: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {"path": [str(tmp_path / "two.png"), "http://127.0.0.1/a.png"], "embedding": [[1.0, 0.0], [0.0, 1.0]]}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    monkeypatch.setattr("proxemic.data.reading.read_address", lambda _: pytest.fail("an address is fetched"))
    for roots, count in (((), 0), ((tmp_path,), 2)):
        made = Gallery.create(tmp_path / f"gallery {count}", source=tmp_path / "rows.parquet", roots=roots)
        # The query is a row of the same file, which names its picture, too.
        write_contact_sheet(search_gallery(made, tmp_path / "rows.parquet", k=1), tmp_path / "sheet.html")
        page = (tmp_path / "sheet.html").read_text(encoding="utf-8")
        assert (page.count("data:image/jpeg"), page.count("no image")) == (count, 4 - count)


def test_the_page(result: SearchResult, tmp_path: Path) -> None:
    write_contact_sheet(result, tmp_path / "sheet.html")
    page = (tmp_path / "sheet.html").read_text(encoding="utf-8")
    tags = Tags(page).found
    assert {"script", "b", "link", "iframe"}.isdisjoint(tag for tag, _ in tags)
    assert page.count("&lt;script&gt;") > 3
    assert re.search(r"src=\"(?!data:image/jpeg;base64,)", page) is None, "it needs no other file"
    links = [attributes["href"] for tag, attributes in tags if tag == "a"][1:]
    assert links[:3] == [(tmp_path / name).as_uri() for name in ("two.png", "two.png", "blue <b>.png")]
    assert len(links) == 6, "what may not be opened has no link"
    assert "The first hit has the same label for 2 of 2 queries (100.0 %)." in page
    pictures = [attributes for tag, attributes in tags if tag == "img"]
    assert [picture["alt"] for picture in pictures[:3]] == [
        f"query: {tmp_path}/two.png",
        "hit 1: hat",
        f"hit 2: {HOSTILE}",
    ]
    assert len(pictures) == 6
    colours = []
    for picture in pictures[:3]:
        with Image.open(io.BytesIO(base64.b64decode(str(picture["src"]).partition(",")[2]))) as thumbnail:
            assert max(thumbnail.size) == 160
            colours.append(np.asarray(thumbnail)[20, 20])
    np.testing.assert_allclose(colours, [RED, RED, BLUE], atol=6)
    assert (page.count("✓ hat"), page.count("✗")) == (2, 4)
    assert page.count("no image") == 2
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_the_page_in_a_browser(browse: Opened, result: SearchResult, tmp_path: Path, look: dict[str, Any]) -> None:
    write_contact_sheet(result, tmp_path / "sheet.html")
    with browse((tmp_path / "sheet.html").as_uri(), **look) as page:
        assert page.title() == "Nearest photos in shop"
        assert faults_of_access(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_picture(result: SearchResult, tmp_path: Path) -> None:
    write_contact_sheet(result, tmp_path / "sheet.png")
    with Image.open(tmp_path / "sheet.png") as sheet:
        pixels = np.asarray(sheet.convert("RGB"))
        assert sheet.height > 2 * 160
        assert sheet.width > 4 * 160
    for colour in (RED, BLUE):
        assert (np.abs(pixels.astype(int) - colour).max(2) < 6).sum() > 2 * 160 * 160
    # Of the three hits, the first has the label of the query.
    right, wrong = (
        np.nonzero((np.abs(pixels.astype(int) - colour).max(2) < 12).any(0))[0] for colour in (GREEN, DARK_RED)
    )
    assert 160 < right.min() <= right.max() < 2 * 180 < wrong.min() <= wrong.max()


@pytest.mark.parametrize("ending", ["html", "png"])
def test_of_very_many_queries_the_first_are_shown(
    result: SearchResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    for most in ("_MOST_SHOWN", "_MOST_DRAWN"):
        monkeypatch.setattr(contact_sheet, most, 1)
    write_contact_sheet(result, tmp_path / f"sheet.{ending}")
    if ending == "html":
        assert "the first 1 of 2 queries" in (tmp_path / "sheet.html").read_text(encoding="utf-8")
    else:
        with Image.open(tmp_path / "sheet.png") as sheet:
            assert sheet.height < 2 * 160 + 60


def test_what_is_refused(result: SearchResult, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"must end in \.html or \.png"):
        write_contact_sheet(result, tmp_path / "sheet.gif")
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="could not be written"):
        write_contact_sheet(result, tmp_path / "file" / "sheet.html")
    write_contact_sheet(SearchResult("shop", [], [], {}), tmp_path / "none.png")
    write_contact_sheet(SearchResult("shop", [], [], {}), tmp_path / "none.html")
