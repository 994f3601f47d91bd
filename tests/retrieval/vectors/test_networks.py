"""Networks that are converted for ONNX Runtime: when, what they embed, and what may happen to their files."""

import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warm
from command_line import Here
from images import write_folder
from proxemic.data.pixels import FilePixels
from proxemic.errors import UserNote
from proxemic.models import load_model, save_model
from proxemic.models.model import without_head
from proxemic.retrieval import Embedder, Gallery, open_gallery
from proxemic.retrieval.exporting import graphs
from proxemic.retrieval.improving.improvement import whitened_head
from proxemic.retrieval.vectors import networks
from proxemic.retrieval.vectors.heads import with_head
from proxemic.retrieval.vectors.networks import ONNX_RUNTIME, TORCH, LinearHead
from shelves import SIZE, write_model

# Importing it here would start threads, and the tests are forked.
is_installed = find_spec("onnxruntime") is not None
pytestmark = [pytest.mark.cpu, pytest.mark.skipif(not is_installed, reason="onnxruntime is not installed")]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("PROXEMIC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PROXEMIC_CACHE_GB", "10")
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Enough to convert a network."""
    return write_folder(tmp_path / "photos", classes=6, images=6, size=SIZE)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The seconds that each engine is said to take."""
    seconds = {TORCH: 2.0, ONNX_RUNTIME: 1.0}
    monkeypatch.setattr(networks, "_fastest", lambda network, _: seconds[network.engine])
    return seconds


def embed(model: Path, folder: Path, **options: Any) -> tuple[np.ndarray, dict[str, int]]:
    """Return all vectors, and how many each engine has computed."""
    embedder = Embedder.load(model, **options)
    parts = [*embedder.embed_readable(FilePixels(sorted(folder.rglob("*.png"))))]
    return np.concatenate([part.vectors for part in parts]), dict(embedder.source.computed_by)


def by_torch(model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    with monkeypatch.context() as patch:
        patch.setenv("PROXEMIC_CACHE_GB", "0")
        vectors, made = embed(model, folder)
    assert made == {TORCH: len(vectors)}
    return vectors


def forget_vectors(cache: Path) -> None:
    for path in (cache / "vectors").iterdir():
        path.unlink()


def test_many_pictures_convert_the_network_and_few_use_it(
    cache: Path, photos: Path, model: Path, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = by_torch(model, photos, monkeypatch)
    few = write_folder(photos.with_name("few"), classes=1, images=3, size=SIZE, noise=20)
    assert embed(model, few)[1] == {TORCH: 3}
    assert not (cache / "networks").exists(), "a few pictures convert nothing"
    vectors, made = embed(model, photos)
    assert made == {ONNX_RUNTIME: 36}
    np.testing.assert_allclose(vectors, expected, atol=2e-6)
    again, made = embed(model, photos)
    assert made == {}, "both engines share a file"
    np.testing.assert_array_equal(again, vectors)
    forget_vectors(cache)
    embedder = Embedder.load(model)
    found = embedder.embed([str(path) for path in sorted(photos.rglob("*.png"))[:3]])
    np.testing.assert_allclose(found.numpy(), expected[:3], atol=2e-6)
    assert "model" not in vars(embedder), "torch's network is not even loaded"


def test_the_faster_engine_embeds_many_pictures(
    cache: Path, photos: Path, model: Path, times: dict[str, float]
) -> None:
    times[TORCH] = 0.5
    assert embed(model, photos)[1] == {TORCH: 36}
    assert [*(cache / "networks").glob("*.onnx")], "a query without torch still needs it"


def test_heads_are_matrices_over_the_converted_network(
    cache: Path, photos: Path, tmp_path: Path, times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, preprocessing = load_model(write_model(tmp_path / "network"))
    size = network.backbone.num_features
    rows = torch.randn(99, size, generator=torch.Generator().manual_seed(0))
    head = whitened_head(rows, 5)
    joined = tmp_path / "joined"
    save_model(joined, with_head(without_head(network), head), preprocessing, features_by="0" * 64)
    with torch.no_grad():
        expected = head(rows).numpy()
    for read in (LinearHead.read(joined), LinearHead.whiten(rows.numpy(), 5)):
        np.testing.assert_allclose(read(rows.numpy()), expected, atol=1e-6)
    expected = by_torch(joined, photos, monkeypatch)
    vectors, made = embed(joined, photos)
    assert (vectors.shape, made) == ((36, 5), {ONNX_RUNTIME: 36})
    np.testing.assert_allclose(vectors, expected, atol=5e-6)


@pytest.mark.parametrize("damage", [lambda content: content[:999], lambda content: content[:-9] + b"\1" * 9])
def test_a_damaged_file_is_noted_once_and_converted_again(
    cache: Path, photos: Path, model: Path, times: dict[str, float], damage: Callable[[bytes], bytes]
) -> None:
    vectors, _ = embed(model, photos)
    (file,) = (cache / "networks").glob("*.onnx")
    sound = file.read_bytes()
    file.write_bytes(damage(sound))
    picture = next(photos.rglob("*.png"))
    with pytest.warns(UserNote, match="cannot be used"):
        Embedder.load(model).embed(picture)
    Embedder.load(model).embed(picture)  # a warning is an error in these tests
    forget_vectors(cache)
    again, made = embed(model, photos)
    assert made == {ONNX_RUNTIME: 36}
    np.testing.assert_array_equal(again, vectors)
    assert file.read_bytes() == sound


@pytest.mark.parametrize("cause", ["the network", "parity"])
def test_what_cannot_be_converted_is_noted_once_and_embedded_by_torch(
    cache: Path, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    expected = by_torch(model, photos, monkeypatch)

    def fail(*_: object) -> bytes:
        raise RuntimeError("Unsupported: aten::unheard_of")

    wrong = write_model(model.with_name("wrong"), seed=1)
    sound = graphs.trace_onnx
    other = Embedder.load(wrong).network
    made_wrong = fail if cause == "the network" else lambda _, images: sound(other, images)
    monkeypatch.setattr(graphs, "trace_onnx", made_wrong)
    with pytest.warns(UserNote, match="cannot be run by ONNX Runtime"):
        vectors, made = embed(model, photos)
    assert made == {TORCH: 36}
    np.testing.assert_array_equal(vectors, expected)
    forget_vectors(cache)
    assert embed(model, photos)[1] == {TORCH: 36}, "without a note: a warning is an error in these tests"
    monkeypatch.setattr(networks, "_versions", lambda: {"onnxruntime": "99"})
    monkeypatch.setattr(graphs, "trace_onnx", sound)
    forget_vectors(cache)
    embed(model, photos)
    assert [*(cache / "networks").glob("*.onnx")], "another version tries again"


def test_without_onnx_runtime_torch_embeds(
    cache: Path, photos: Path, model: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(networks, "_are_installed", lambda *_: False)
    assert embed(model, photos)[1] == {TORCH: 36}
    assert not recwarn.list
    assert not (cache / "networks").exists()


def test_another_precision_or_preprocessing_keeps_torch(cache: Path, photos: Path, model: Path) -> None:
    assert embed(model, photos, precision="bf16-mixed")[1] == {TORCH: 36}
    assert not (cache / "networks").exists()


def test_prepared_tensors_of_any_size_are_embedded(
    cache: Path, photos: Path, model: Path, times: dict[str, float]
) -> None:
    embed(model, photos)
    embedder = Embedder.load(model)
    for side in (SIZE, 2 * SIZE):
        batch = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            expected = Embedder.load(model).network(batch)
        torch.testing.assert_close(embedder.embed(batch), expected, atol=2e-6, rtol=0)


KILLED = """
import sys, time
from pathlib import Path
from proxemic import files
from proxemic.data.pixels import FilePixels
from proxemic.retrieval import Embedder
from proxemic.retrieval.vectors import networks

write = networks.write_{what}
def slow(path, *content):
    print("writing", flush=True)
    if {late}:
        with write(path) as temporary:
            temporary.write_bytes(b"half of it")
            time.sleep(600)
    time.sleep(600)
networks.write_{what} = slow
for _ in Embedder.load(sys.argv[1]).embed_readable(FilePixels(sorted(Path(sys.argv[2]).rglob("*.png")))):
    pass
"""


@pytest.mark.parametrize(("what", "late"), [("atomically", True), ("json", False)])
def test_a_kill_while_the_network_is_written_leaves_nothing_in_the_way(
    cache: Path, photos: Path, model: Path, times: dict[str, float], what: str, late: bool
) -> None:
    code = KILLED.format(what=what, late=late)
    process = warm.Process("-c", code, model, photos, environment={**os.environ, "PROXEMIC_CACHE": str(cache)})
    deadline = time.monotonic() + 120
    while not (there := [path for path in (cache / "networks").glob("*") if path.stat().st_size]):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert there
    assert embed(model, photos)[1] == {ONNX_RUNTIME: 36}
    assert sorted(path.suffix for path in (cache / "networks").iterdir()) == [".json", ".onnx"]


def test_two_at_once_do_no_harm(cache: Path, photos: Path, model: Path) -> None:
    code = """
import sys
from proxemic.retrieval import open_gallery
open_gallery(sys.argv[1], sys.argv[2], report=print)
"""
    environment = {**os.environ, "PROXEMIC_CACHE": str(cache)}
    both = [warm.Process("-c", code, photos, model, environment=environment) for _ in range(2)]
    for process in both:
        out, err = process.communicate()
        assert process.returncode == 0, err
        assert "36 photos" in out or "known from before" in out
    embedder = Embedder.load(model)
    assert embedder.source.converted.network is not None  # type: ignore[attr-defined]
    assert not [*(cache / "networks").glob(".*")]


def test_the_command_shows_and_clears_networks(
    cache: Path, photos: Path, model: Path, times: dict[str, float], here: Here
) -> None:
    embed(model, photos)
    assert "1 network for ONNX Runtime, " in here("cache").stdout
    here("cache", "--clear")
    assert "0 networks for ONNX Runtime, " in here("cache").stdout
    assert embed(model, photos)[1] == {ONNX_RUNTIME: 36}


def test_commands_say_by_what_pictures_were_embedded(
    cache: Path, photos: Path, model: Path, times: dict[str, float]
) -> None:
    said: list[str] = []
    gallery = open_gallery(photos, model, report=said.append)
    assert "36 photos were embedded by" in said[0]
    assert ONNX_RUNTIME in said[0]
    query = sorted(photos.rglob("*.png"))[7]
    assert gallery.search(query, k=1)[0][0].path == str(query)
    made = Gallery.create(photos.with_name("shop"), model, photos)
    assert made.search(query, k=1)[0][0].path == str(query)
    assert "model" not in vars(made.embedder)


def test_a_server_uses_the_converted_network(
    cache: Path, photos: Path, model: Path, times: dict[str, float], tmp_path: Path
) -> None:
    pytest.importorskip("fastapi")
    from proxemic.serve.engine import Engine

    Gallery.create(tmp_path / "shop", model, photos)
    engine = Engine(str(tmp_path / "shop"))
    engine.close()
    assert engine.takes_pictures
    assert "model" not in vars(engine.gallery.embedder), "torch's network is not even loaded"
