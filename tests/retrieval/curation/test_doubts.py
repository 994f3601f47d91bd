from pathlib import Path

import numpy as np
import pyarrow as pa
from PIL import Image

from images import write_folder
from proxemic.retrieval import Gallery, clean
from proxemic.retrieval.curation import find_doubts
from proxemic.retrieval.galleries.stores import GalleryInfo, create_store
from shelves import SIZE, write_model


def test_doubts_are_what_clean_finds_worst_first(tmp_path: Path) -> None:
    photos = write_folder(tmp_path / "photos", classes=4, images=6, size=SIZE)
    (photos / "class 00" / "5.png").rename(photos / "class 01" / "wrong.png")
    copy = photos / "class 02" / "copy.png"
    copy.write_bytes((photos / "class 02" / "0.png").read_bytes())
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), np.uint8)).save(photos / "noise.png")
    gallery = Gallery.create(tmp_path / "shop", write_model(tmp_path / "model"), photos)
    said: list[str] = []
    doubts = find_doubts(gallery, report=said.append)
    found = clean(photos, tmp_path / "model", report=str)
    assert said == [found.summary()]
    findings = [(item.path, item.label, item.suggested) for item in found.labels]
    assert [(doubt.path, doubt.label, doubt.suggested) for doubt in doubts[: len(findings)]] == findings
    paths = [item.path for kind in (found.labels, found.duplicates, found.outliers) for item in kind]
    assert [doubt.path for doubt in doubts] == [*dict.fromkeys(paths)], "each once"
    by_path = {doubt.path: doubt for doubt in doubts}
    assert by_path[str(photos / "class 01" / "wrong.png")].suggested == "class 00"
    repeated = [doubt.repeats for doubt in doubts if doubt.repeats]
    assert {str(copy), str(photos / "class 02" / "0.png")} & {*repeated}
    assert sum(len(doubt.reasons) for doubt in doubts) == len(paths)


def test_pictures_elsewhere_are_not_opened(tmp_path: Path) -> None:
    """A row of a stranger's database may name any file."""
    photos = write_folder(tmp_path / "photos", classes=1, images=2, size=SIZE)
    gallery = Gallery.create(tmp_path / "shop", dim=2)
    same = (photos / "class 00" / "0.png").read_bytes()
    (photos / "class 00" / "1.png").write_bytes(same)
    gallery.add_vectors([[1.0, 0.0], [0.0, 1.0]], [str(photos / "class 00" / f"{n}.png") for n in range(2)])
    assert find_doubts(gallery, report=str) == ()
    gallery.store.add_roots([str(photos)])
    (doubt,) = find_doubts(gallery, report=str)
    assert doubt.reasons == ("It has the same pixels as another photo.",)


def test_doubts_come_from_features_where_a_gallery_keeps_them(tmp_path: Path) -> None:
    """Vectors that were improved by labels hide wrong ones."""
    features = np.array([[1, 0], [1, 0.1], [1, 0.2], [0, 1], [0.1, 1], [0.2, 1]], np.float32)
    labels = ["hat", "hat", "shoe", "shoe", "shoe", "shoe"]  # the third is wrong
    vectors = np.array([[1, 0]] * 2 + [[0, 1]] * 4, np.float32)  # as if improved by it
    items = pa.table({"path": [*"abcdef"], "label": labels})
    store = create_store(str(tmp_path / "better"), GalleryInfo(2, "cosine", None, None, features=2))
    store.add(vectors, items, features)
    assert [(doubt.path, doubt.suggested) for doubt in find_doubts(Gallery(store), report=str)] == [("c", "hat")]
