"""Galleries of the first numbers of embeddings, and what these cost."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from command_line import Here, assert_refused
from proxemic.metrics import retrieval_metrics
from proxemic.retrieval import Embedder, Gallery, embed_to_file
from shelves import CLASSES, DIM, EACH

pytestmark = pytest.mark.cpu


def test_a_gallery_keeps_the_first_numbers(shelf: Path, tmp_path: Path, here: Here) -> None:
    made = here("gallery", "create", tmp_path / "small", "--model", shelf / "model", "--dim", "3", shelf / "photos")
    assert made.returncode == 0, made.stderr
    small = Gallery.open(tmp_path / "small")
    vectors, items = next(small.store.iterate())
    paths = [Path(path) for path in items["path"].to_pylist()]
    expected = normalize(Embedder.load(shelf / "model").embed(paths)[:, :3])
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    torch.testing.assert_close(small.embedder.embed(paths), expected)
    assert small.search(paths[5], k=1)[0][0].path == str(paths[5])
    assert here("search", tmp_path / "small", paths[5], "--model", shelf / "model").returncode == 0
    assert "changed" not in here("gallery", "info", tmp_path / "small").stdout
    # Vectors and thresholds of all numbers are not its own.
    written = embed_to_file(shelf / "photos", tmp_path / "all.parquet", shelf / "model", workers=0)
    assert written is not None
    assert_refused(here("search", tmp_path / "small", written.path), "were made by another model")
    with pytest.raises(ValueError, match=f"dim is 9, but must be from 1 to {DIM}"):
        Gallery.create(tmp_path / "large", shelf / "model", dim=9)


def test_what_the_first_numbers_cost_is_a_table(shelf: Path, here: Here) -> None:
    words = ["evaluate", shelf / "model", "--data.root", shelf / "photos", "--dims", "2,4", "--resamples", "0"]
    paths = sorted((shelf / "photos").rglob("*.png"))
    embeddings, labels = Embedder.load(shelf / "model").embed(paths), torch.arange(CLASSES).repeat_interleave(EACH)
    content = json.loads(here(*words, "--format", "json").stdout)
    shown = here(*words).stdout.partition("By the first dimensions of the embeddings only, in percent")[2]
    for dim in (2, 4):
        expected = retrieval_metrics(embeddings[:, :dim], labels, recall_at=(1,))["recall@1"]
        assert content["dims"][str(dim)][f"first {dim}"]["recall@1"] == pytest.approx(expected)
        row = next(line for line in shown.splitlines() if f"first {dim}" in line)
        assert f"{100 * expected:.2f}" in row
    assert f"all {DIM}" in shown
    assert_refused(
        here(*words[:-4], "--dims", "7"), f"--dims has 7, but the embeddings of {shelf / 'model'} have {DIM}"
    )
