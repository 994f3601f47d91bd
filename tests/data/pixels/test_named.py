"""Pictures by the names of rows."""

from pathlib import Path

import pytest
from PIL import Image

from proxemic.data.pixels import named
from proxemic.data.pixels.named import path_and_box, picture_named
from proxemic.data.remote import UnreachableError


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    picture = Image.new("RGB", (40, 20), "white")
    picture.paste((255, 0, 0), (10, 5, 30, 15))
    picture.save(path)
    return path


def test_a_box_is_cut_out(photo: Path) -> None:
    cut = picture_named(f"{photo} (10, 5, 30, 15)", 4, ["/"])
    assert cut is not None
    assert (cut.size, cut.getcolors()) == ((20, 10), [(200, (255, 0, 0))])
    assert picture_named(f"{photo} (10, 5, 41, 15)", 4, ["/"]) is None


def test_a_file_may_have_a_name_like_that_of_a_box(photo: Path) -> None:
    name = f"{photo} (0, 0, 1, 1)"
    assert path_and_box(name) == (str(photo), (0, 0, 1, 1))
    photo.rename(name)
    assert path_and_box(name) == (name, None)
    whole = picture_named(name, 10, ["/"])
    assert whole is not None
    assert whole.size == (20, 10)


def test_no_picture(tmp_path: Path) -> None:
    assert picture_named(str(tmp_path / "none.jpg"), 10, ["/"]) is None
    assert picture_named("row 3", 10, ["/"]) is None


def test_only_what_lies_below_the_roots_is_opened(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert picture_named(str(photo), 10, [str(photo.parent)]) is not None
    (photo.parent / "link.png").symlink_to(photo)
    (photo.parent / "below").mkdir()
    monkeypatch.setattr(named, "read_image", lambda *_: pytest.fail("it is opened"))
    for name in (str(photo), f"{photo} (0, 0, 9, 9)", f"{photo.parent}/link.png", f"file://{photo}", "http://[::1]/"):
        assert picture_named(name, 10, [f"{photo.parent}/below"]) is None
        assert picture_named(name, 10, []) is None


def test_an_address_that_cannot_be_reached_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise UnreachableError("s3://bucket/a.jpg cannot be reached")

    monkeypatch.setattr(named, "read_image", read)
    assert picture_named("s3://bucket/a.jpg", 10, ["s3://bucket"]) is None
