"""Which pictures the rows of a gallery may name."""

from pathlib import Path

import pytest
from PIL import Image

from proxemic.data import roots as named
from proxemic.data.remote import UnreachableError
from proxemic.data.roots import as_root, find_picture, is_below, merge_roots, path_and_box, picture_named, roots_of


def test_links_are_resolved(tmp_path: Path) -> None:
    for name in ("photos/a", "private", "linked"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "photos" / "1.jpg").symlink_to(tmp_path / "private" / "1.jpg")
    (tmp_path / "photos" / "b").symlink_to(tmp_path / "private")
    (tmp_path / "also").symlink_to(tmp_path / "photos")
    roots = [as_root(tmp_path / "also")]
    assert roots == [str(tmp_path / "photos")]
    assert is_below(f"{tmp_path}/photos/a/2.jpg", roots)
    assert is_below(f"{tmp_path}/also/a/2.jpg", roots)
    for name in ("photos/1.jpg", "photos/b/1.jpg", "photos/../private/1.jpg", "photos-2/1.jpg", "private/1.jpg"):
        assert not is_below(f"{tmp_path}/{name}", roots), name
    assert not is_below(f"{tmp_path}/photos/1.jpg", [])


def test_addresses_are_not_paths() -> None:
    roots = ["http://host/photos", "/"]
    assert is_below("http://host/photos/a/1.jpg", roots)
    for name in (
        "http://host/photos-2/1.jpg",
        "http://host/photos/../1.jpg",
        "http://host/photos/%2e%2e/1.jpg",
        "http://host/photos/a::http://other/1.jpg",
        "http://host:80/photos/1.jpg",
        "http://127.0.0.1/1.jpg",
        "HTTP://host/photos/1.jpg",
        "file:///dev/zero",
        "s3://host/photos/1.jpg",
    ):
        assert not is_below(name, roots), name


def test_the_folders_of_pictures_are_roots(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "photos").mkdir()
    link = tmp_path / "photos" / "1.jpg"
    link.symlink_to(tmp_path / "store" / "abc")
    paths = [tmp_path / "photos" / "a" / "2.jpg", link, "s3://bucket/a/1.jpg", "http://host/1.jpg", "http://host"]
    found = roots_of(paths)
    assert {*found} == {f"{tmp_path}/photos", f"{tmp_path}/store", "s3://bucket/a", "http://host"}
    assert all(is_below(str(path), found) for path in paths)


def test_many_folders_are_named_by_their_parents(tmp_path: Path) -> None:
    paths = [tmp_path / "photos" / f"class {number}" / "1.jpg" for number in range(101)]
    assert roots_of(paths) == (f"{tmp_path}/photos",)
    assert len(roots_of(paths[:100])) == 100
    assert roots_of(paths, [f"{tmp_path}/photos"]) == (f"{tmp_path}/photos",)
    hosts = [f"http://host{number}/a/1.jpg" for number in range(101)]
    assert len(roots_of([*hosts, Path("/a.jpg")])) == 102  # neither the whole network nor the whole disk


def test_roots_below_others_are_left_out() -> None:
    assert merge_roots(["/b/c", "/a", "/a b", "/a/b", "/b"]) == ("/a b", "/a", "/b")


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
    assert (cut.size, cut.getcolors()) == ((10, 5), [(50, (255, 0, 0))])
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
    monkeypatch.setattr(named, "read_small", lambda *_: pytest.fail("it is opened"))
    for name in (str(photo), f"{photo} (0, 0, 9, 9)", f"{photo.parent}/link.png", f"file://{photo}", "http://[::1]/"):
        assert picture_named(name, 10, [f"{photo.parent}/below"]) is None
        assert picture_named(name, 10, []) is None


def test_an_address_that_cannot_be_reached_is_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: object) -> None:
        raise UnreachableError("s3://bucket/a.jpg cannot be reached")

    monkeypatch.setattr(named, "read_small", read)
    assert picture_named("s3://bucket/a.jpg", 10, ["s3://bucket"]) is None


def test_a_moved_picture_is_found_below_the_roots_alone(tmp_path: Path) -> None:
    for name in ("old", "new/a", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("new/a/1.jpg", "secret.jpg"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "new" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    roots = [f"{tmp_path}/{name}" for name in ("old", "other", "new")]
    assert find_picture(f"{tmp_path}/old/a/1.jpg", roots) == f"{tmp_path}/new/a/1.jpg"
    assert find_picture(f"{tmp_path}/new/a/1.jpg", roots) == f"{tmp_path}/new/a/1.jpg"
    for name in ("old/../secret.jpg", "old/link.jpg", "old/2.jpg", "secret.jpg"):
        assert find_picture(f"{tmp_path}/{name}", roots) is None
    assert find_picture("s3://bucket/a/1.jpg", roots) is None
