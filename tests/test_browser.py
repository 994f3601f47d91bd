"""That the browser notices what it is there to notice."""

from pathlib import Path

import pytest

from browser import PHONE, Opened, faults_of_access

GOOD = (
    '<!DOCTYPE html><html lang="en"><head><title>A page</title><meta name="viewport" content="width=device-width">'
    "</head><body><main><h1>A page</h1>{}</main></body></html>"
)


def write(folder: Path, body: str) -> str:
    page = folder / "page.html"
    page.write_text(GOOD.format(body), encoding="utf-8")
    return page.as_uri()


def test_a_good_page_passes(browse: Opened, tmp_path: Path) -> None:
    with browse(write(tmp_path, "<p>Text.</p>"), **PHONE) as page:
        assert page.title() == "A page"
        assert page.evaluate("innerWidth") == 390
        assert faults_of_access(page) == []


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("<script>console.error('oh')</script>", "oh"),
        ("<script>undefined.x</script>", "undefined"),
        ("<img alt='' src='http://127.0.0.1:9/x.png'>", "asks http://127.0.0.1:9/x.png"),
    ],
)
def test_faults_are_noticed(browse: Opened, tmp_path: Path, body: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said), browse(write(tmp_path, body)):
        pass


def test_what_a_screen_reader_cannot_read_is_noticed(browse: Opened, tmp_path: Path) -> None:
    with browse(write(tmp_path, "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACw='>")) as page:
        assert [each.split(":")[0] for each in faults_of_access(page)] == ["image-alt"]
