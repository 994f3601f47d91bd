"""Commands with models that were not trained here: an ONNX file stands for all, as the least of them is known of it."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from command_line import Here, assert_refused
from onnx_files import network
from proxemic.data.embeddings import read_embeddings
from proxemic.metrics import retrieval_metrics
from proxemic.retrieval import Embedder, Gallery, improve_gallery
from proxemic.retrieval.improving.improvement import Improvement, whitened_head
from shelves import CLASSES, EACH

pytestmark = pytest.mark.cpu


@pytest.fixture
def onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "net.onnx").write_bytes(network())
    (tmp_path / "net.json").write_text(json.dumps({"preprocessing": {"size": 16, "resize": None}}))
    return tmp_path / "net.onnx"


def test_an_onnx_file_is_evaluated(onnx: Path, shelf: Path, tmp_path: Path, here: Here) -> None:
    photos, kept = shelf / "photos", tmp_path / "v.parquet"
    result = here("evaluate", onnx, "--data.root", photos, "--save-embeddings", kept, "--format", "json")
    assert result.returncode == 0, result.stderr
    paths = sorted(photos.rglob("*.png"))
    vectors, labels = Embedder.load(onnx).embed(paths), torch.arange(CLASSES).repeat_interleave(EACH)
    expected = retrieval_metrics(vectors, labels, recall_at=(1,))["recall@1"]
    assert re.search(rf'"recall@1": {expected:.6f}', result.stdout)
    written = read_embeddings(kept)
    torch.testing.assert_close(written.embeddings, vectors)


def test_a_report_by_a_model_is_about_a_folder(onnx: Path, shelf: Path, tmp_path: Path, here: Here) -> None:
    page = tmp_path / "page.html"
    result = here("report", onnx, "--data.root", shelf / "photos", "--out", page)
    assert result.returncode == 0, result.stderr
    assert "gives no gradients" in page.read_text()  # why pictures are near cannot be told
    assert_refused(here("report", onnx), "give --data.root DIR")


def test_a_gallery_of_an_onnx_file_is_improved(
    onnx: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Gallery.create(tmp_path / "shop", onnx, shelf / "photos")
    vectors = torch.from_numpy(np.array(next(shop.store.iterate())[0]))
    kept = Improvement(whitened_head(vectors, 3), "whitened", {}, {}, per_class=4)
    monkeypatch.setattr("proxemic.retrieval.improving.improved_gallery.improve", lambda *_, **__: kept)  # takes seconds
    improve_gallery(shop, tmp_path / "better")
    better, items = next(Gallery.open(tmp_path / "better").store.iterate())
    embedded = Embedder.load(tmp_path / "better").embed([Path(path) for path in items["path"].to_pylist()])
    np.testing.assert_allclose(embedded.numpy(), better, atol=1e-5)
