"""The page of `clean` as text: what is escaped, what is in it, and that it needs nothing else."""

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from browser import PHONE, Opened, faults_of_access
from proxemic.data import FilePixels
from proxemic.retrieval.curation import Cleaning, Duplicate, Outlier, Suspect
from proxemic.retrieval.curation.page import SHOWN

HOSTILE = '<script>alert("1")</script>&.png'


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def cleaning(tmp_path: Path) -> Cleaning:
    name = HOSTILE.replace("/", "")
    path = tmp_path / name
    Image.new("RGB", (400, 100), "red").save(path)
    gone = tmp_path / "gone.png"
    pixels = FilePixels([path, gone])
    names = {str(path): (pixels, 0), str(gone): (pixels, 1)}
    duplicate = Duplicate(1, str(path), str(gone), "near", 0.001, 0.1, "<b>", "shoe", "test", "train")
    suspects = (Suspect(str(path), "<i>hat</i>", "{{ 7 * 7 }}", 0.9),) * (SHOWN + 1)
    return Cleaning(5000, suspects, (duplicate,), (Outlier(str(path), None, 7.0),), {"<u>": "damaged"}, names)


def test_names_are_text_and_pictures_are_in_the_page(cleaning: Cleaning, tmp_path: Path) -> None:
    page = cleaning.write(tmp_path).read_text()
    reader = Reader()
    reader.feed(page)
    assert not {"script", "b ", "i", "u", "link", "iframe"} & set(reader.tags)
    for text in ('<script>alert("1")<script>&.png', "<i>hat</i>", "{{ 7 * 7 }}", "test repeats train", "<b> and shoe"):
        assert text in reader.text
    assert "<u>: damaged" in reader.text
    assert f"The first {SHOWN} of {SHOWN + 1}" in reader.text
    sources = [value or "" for name, value in reader.attributes if name == "src"]
    assert len(sources) == SHOWN + 2  # of the duplicates one is gone
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert not re.search(r"https?://|url\(|@import", page)
    with Image.open(io.BytesIO(base64.b64decode(sources[0].partition(",")[2]))) as image:
        assert image.format == "JPEG"
        assert image.size == (96, 24)
    assert len(page) < 3000 * SHOWN


def test_the_page_of_nothing(tmp_path: Path) -> None:
    page = Cleaning(3, (), (), (), {}, {}).write(tmp_path).read_text()
    assert page.count("<p>None.</p>") == 3
    assert "Unreadable" not in page


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_the_page_in_a_browser(browse: Opened, cleaning: Cleaning, tmp_path: Path, look: dict[str, Any]) -> None:
    with browse(cleaning.write(tmp_path).as_uri(), **look) as page:
        assert faults_of_access(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("#content img").count() == SHOWN + 2
