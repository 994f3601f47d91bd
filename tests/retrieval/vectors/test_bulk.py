import csv
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import together
import warm
from command_line import TERMINAL, Here, assert_refused
from images import write_folder
from proxemic.data import ImageSet, Preprocessing
from proxemic.data.embeddings import read_embeddings
from proxemic.errors import UserError
from proxemic.models import ModelConfig, build_model, load_model, read_checksum, save_model
from proxemic.retrieval import embed_to_file
from proxemic.runs.kept import kept_embeddings
from together import finish, start_together
from vectors import some_vectors, write_table

SIZE = 16
# It keeps each batch, which takes a while.
SLOWLY = """
import sys, time
from proxemic.cli import main
from proxemic.retrieval.vectors import bulk
from proxemic.runs import kept

bulk._TOGETHER, kept._SECONDS = 8, 0
add = kept.KeptVectors.add

def slowly(*words):
    add(*words)
    time.sleep(0.1)

kept.KeptVectors.add = slowly
sys.exit(main())
"""
PROGRAM = ("-c", SLOWLY)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bulk")
    write_folder(folder / "photos", classes=7, images=9, size=SIZE)
    Image.new("L", (20, 30), 99).save(folder / "photos" / "alone.png")
    torch.manual_seed(0)
    model = build_model(ModelConfig("convnet", 4, width=8, image_size=SIZE)).eval()
    save_model(folder / "model", model, vars(Preprocessing(size=SIZE, resize=None)))
    return folder


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("PROXEMIC_CACHE", str(folder))
    monkeypatch.setenv("PROXEMIC_CACHE_GB", "1")
    return folder


@pytest.fixture(scope="module")
def whole(photos: Path) -> Path:
    """The file of an uninterrupted command in one process."""
    embed_to_file(photos / "photos", photos / "whole.parquet", photos / "model", batch_size=4, workers=0)
    return photos / "whole.parquet"


def words(photos: Path, out: Path) -> list[str | Path]:
    return [
        "embed",
        photos / "photos",
        "--model",
        photos / "model",
        "--out",
        out,
        "--batch-size",
        "4",
        "--workers",
        "0",
    ]


def environment(cache: Path) -> dict[str, str]:
    return {**TERMINAL, "PROXEMIC_CACHE": str(cache), "PROXEMIC_CACHE_GB": "1"}


def wait_for(process: warm.Process, count: int) -> None:
    """Wait until so many embeddings are kept."""
    while sum(rows for rows, _ in kept_embeddings().values()) < count:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def same(one: Path, other: Path) -> None:
    """Two files have the same rows, and embeddings equal up to rounding in other batches."""
    first, second = read_embeddings(one), read_embeddings(other)
    assert first.names == second.names
    torch.testing.assert_close(first.embeddings, second.embeddings, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("name", ["v.parquet", "v.npy"])
def test_the_vectors_are_those_of_the_model_with_what_is_known(photos: Path, tmp_path: Path, name: str) -> None:
    written = embed_to_file(photos / "photos", tmp_path / name, photos / "model", batch_size=4, workers=2)
    assert written is not None
    assert (written.rows, written.dim, written.embedded, written.unreadable) == (64, 4, 64, {})
    paths = sorted(map(str, (photos / "photos").rglob("*.png")))
    paths = [*(path for path in paths if "alone" in path), *(path for path in paths if "class" in path)]
    content = read_embeddings(tmp_path / name)
    if name == "v.npy":
        assert written.others == (tmp_path / "v.paths.csv", tmp_path / "v.json")
        metadata = json.loads((tmp_path / "v.json").read_text())
        assert metadata == {"made_by": read_checksum(photos / "model"), "precision": "32-true"}
        with (tmp_path / "v.paths.csv").open() as file:
            rows = [(row["path"], row["label"] or None) for row in csv.DictReader(file)]
    else:
        assert written.others == ()
        rows = [*zip(content.names, content.labels, strict=True)]
    assert rows == [(path, None if "alone" in path else Path(path).parent.name) for path in paths]
    expected = _by_hand(photos / "model", paths)
    torch.testing.assert_close(content.embeddings, expected, atol=1e-5, rtol=1e-4)
    if name == "v.parquet":
        schema = pyarrow.parquet.read_schema(tmp_path / name)
        assert schema.field("embedding").type.list_size == 4
        assert schema.metadata[b"made_by"].decode() == read_checksum(photos / "model")
        assert schema.metadata[b"precision"] == b"32-true"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [name, *(Path(path).name for path in written.others)]
    )


def _by_hand(model: Path, paths: list[str]) -> torch.Tensor:
    """Embed picture by picture; pictures of another size than the network's have a single colour."""
    network, rows = load_model(model)[0], []
    for path in paths:
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"))[:SIZE, :SIZE]
        numbers = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
        rows.append(network(torch.from_numpy(numbers).float().permute(2, 0, 1)[None]))
    return torch.cat(rows).detach()


def test_a_killed_command_goes_on(photos: Path, whole: Path, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "v.parquet"
    for count in (16, 32):
        process = warm.Process(*PROGRAM, *words(photos, out), environment=environment(cache))
        wait_for(process, count)
        process.kill()
        process.communicate()
        assert not out.exists()
    done = warm.run(*PROGRAM, *words(photos, out), environment=environment(cache))
    assert done.returncode == 0, done.stderr
    before = int(done.stderr.split(" of 64 photos were embedded before")[0].split()[-1])
    assert 32 <= before < 64
    same(out, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["v.parquet"]


def test_ctrl_c_says_how_to_go_on(photos: Path, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "v.parquet"
    process = warm.Process(*PROGRAM, *words(photos, out), environment=environment(cache))
    wait_for(process, 4)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(60)
    assert process.returncode == 2
    assert err.splitlines()[-1] == "proxemic: Stopped: what was embedded is kept, and the same command continues."


def test_processes_of_torchrun_share_the_work_and_one_may_be_killed(
    photos: Path, whole: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "TERMINAL", environment(cache))
    out = tmp_path / "v.parquet"
    processes = start_together(2, *words(photos, out), program=PROGRAM)
    wait_for(processes[0], 16)
    processes[1].kill()
    results = finish(processes)
    assert results[0].returncode == 2
    assert "Start the same command again, and it goes on." in results[0].stderr
    assert not out.exists()
    results = finish(start_together(2, *words(photos, out), program=PROGRAM))
    assert [result.returncode for result in results] == [0, 0], results
    assert [result.stdout.startswith("64 x 4 in") for result in results] == [True, False]
    assert "of 64 photos were embedded before" in results[0].stderr
    same(out, whole)
    assert [path.name for path in tmp_path.iterdir()] == ["v.parquet"]
    results = finish(start_together(2, "embed", photos / "none", "--model", photos / "model", "--out", out))
    assert [result.returncode for result in results] == [2, 2]
    assert all("none does not exist" in result.stderr for result in results)


def test_only_a_picture_that_changes_is_embedded_again(photos: Path, tmp_path: Path, cache: Path) -> None:
    folder = write_folder(tmp_path / "p", classes=4, images=8, size=SIZE)
    counts = []
    for name in ("v.npy", "w.npy"):
        written = embed_to_file(folder, tmp_path / name, photos / "model", batch_size=4, workers=0)
        assert written is not None
        counts.append(written.embedded)
        Image.new("RGB", (SIZE, SIZE), "red").save(folder / "class 01" / "3.png")
    written = embed_to_file(folder, tmp_path / "w.npy", photos / "model", batch_size=4, workers=0)
    assert written is not None
    assert (counts, written.embedded) == ([32, 1], 0), "written again with the same content, it is known"
    before, after = (read_embeddings(tmp_path / name).embeddings for name in ("v.npy", "w.npy"))
    assert ((before != after).any(1).nonzero()[:, 0]).tolist() == [11]


def test_pictures_that_cannot_be_read_are_listed(photos: Path, tmp_path: Path, here: Here) -> None:
    folder, out = write_folder(tmp_path / "p", classes=3, images=4, size=SIZE), tmp_path / "v.parquet"
    (folder / "class 00" / "0.png").write_bytes(b"no image")
    for number in range(4):  # a whole batch
        (folder / "class 01" / f"{number}.png").write_bytes(b"")
    (folder / "notes.txt").write_text("")
    said: list[str] = []
    written = embed_to_file(folder, out, photos / "model", batch_size=4, workers=0, report=said.append)
    assert written is not None
    content, readable = read_embeddings(out), [f"class 00/{number}.png" for number in (1, 2, 3)]
    readable += [f"class 02/{number}.png" for number in range(4)]
    assert content.names == [f"{folder}/{name}" for name in readable]
    torch.testing.assert_close(content.embeddings, _by_hand(photos / "model", content.names))
    names = [str(folder / "class 00" / "0.png"), *(str(folder / "class 01" / f"{number}.png") for number in range(4))]
    assert [*written.unreadable] == names
    assert "5 of 12 photos cannot be read, listed in" in said[1]
    assert "notes.txt" in said[0]
    with (tmp_path / "v.unreadable.csv").open() as file:
        assert [row["path"] for row in csv.DictReader(file)] == names
    flags = ["--batch-size", "4", "--workers", "0", "--strict"]
    assert_refused(
        here("embed", folder / "class 01", "--model", photos / "model", "--out", out, *flags), ["None of 4 photos"]
    )
    folder.joinpath("notes.txt").unlink()
    result = here("embed", folder, "--model", photos / "model", "--out", tmp_path / "strict.npy", *flags)
    assert_refused(result, ["5 of 12 photos cannot be read", "strict.unreadable.csv"])
    assert not (tmp_path / "strict.npy").exists()
    for name in names:
        Image.new("RGB", (SIZE, SIZE)).save(name)
    assert here("embed", folder, "--model", photos / "model", "--out", out, *flags).returncode == 0
    assert not (tmp_path / "v.unreadable.csv").exists()


def test_a_head_alone_embeds_a_file_of_vectors(photos: Path, tmp_path: Path, here: Here) -> None:
    vectors, labels = some_vectors(classes=3, each=4)
    head = build_model(ModelConfig("none", 4, input_size=vectors.shape[1])).eval()
    save_model(tmp_path / "head", head, {})
    paths = [f"{number}.jpg" for number in range(len(labels))]
    source = write_table(tmp_path / "in.parquet", vectors, label=[None, *labels[1:]], path=paths)
    written = embed_to_file(source, tmp_path / "out.parquet", tmp_path / "head")
    assert written is not None
    content = read_embeddings(written.path)
    assert content.names == paths
    assert content.labels == [None, *labels[1:]]
    with torch.no_grad():
        torch.testing.assert_close(content.embeddings, head(torch.from_numpy(vectors)))
    np.save(tmp_path / "in.npy", vectors)
    assert embed_to_file(tmp_path / "in.npy", tmp_path / "out.npy", tmp_path / "head") is not None
    np.testing.assert_array_equal(read_embeddings(tmp_path / "out.npy").embeddings, content.embeddings)
    assert_refused(
        here("embed", photos / "photos", "--model", tmp_path / "head", "--out", tmp_path / "v.npy"),
        ["takes vectors", "photos"],
    )
    assert_refused(
        here("embed", source, source, "--model", tmp_path / "head", "--out", tmp_path / "v.npy"), ["2 sources"]
    )


def test_a_table_gives_roles_sequences_and_categories(photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    folder = photos / "photos" / "class 00"
    table.write_text(
        "path,is_query,is_gallery,sequence,category,x_1,y_1,x_2,y_2\n"
        f"{folder}/0.png,1,0,a,,0,0,8,8\n{folder}/1.png,0,1,,b,,,,\n"
    )
    embed_to_file(table, tmp_path / "v.parquet", photos / "model")
    rows = ImageSet.of(read_embeddings(tmp_path / "v.parquet"))
    assert rows.names == (f"{folder}/0.png (0, 0, 8, 8)", f"{folder}/1.png")
    assert not rows.class_names
    assert rows.is_query is not None
    assert rows.is_query.tolist() == [True, False]
    assert rows.sequences is not None
    assert rows.sequences.tolist() == [0, -1]
    assert rows.categories is not None
    assert rows.category_names == ("b",)
    assert rows.categories.tolist() == [-1, 0]


def test_what_cannot_be_done_is_one_sentence(photos: Path, tmp_path: Path, here: Here) -> None:
    model, images = photos / "model", photos / "photos"
    for name, command in {
        "is not a model": [images, "--model", tmp_path, "--out", "v.npy"],
        "does not exist": [tmp_path / "none", "--model", model, "--out", "v.npy"],
        "ends in .txt": [images, "--model", model, "--out", "v.txt"],
        "batch_size is 0": [images, "--model", model, "--out", "v.npy", "--batch-size", "0"],
        "workers is -1": [images, "--model", model, "--out", "v.npy", "--workers", "-1"],
        "The device nonsense": [images, "--model", model, "--out", "v.npy", "--device", "nonsense"],
    }.items():
        assert_refused(here("embed", *command, cwd=tmp_path), [name])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="precision is 'auto'"):
        embed_to_file(images, tmp_path / "v.npy", model, precision="auto")  # type: ignore[arg-type]


def test_numbers_that_are_not_finite_are_refused(photos: Path, tmp_path: Path) -> None:
    model = build_model(ModelConfig("convnet", 4, width=8, image_size=SIZE)).eval()
    with torch.no_grad():
        next(model.head.parameters()).fill_(torch.nan)
    save_model(tmp_path / "model", model, vars(Preprocessing(size=SIZE, resize=None)))
    with pytest.raises(ValueError, match=r"alone.png: the model's embedding has numbers that are not finite"):
        embed_to_file(photos / "photos", tmp_path / "v.npy", tmp_path / "model", workers=0)


@pytest.fixture
def bucket(photos: Path) -> Iterator[str]:
    """The same pictures in fsspec's file system in memory, with others beside."""
    memory: Any = fsspec.filesystem("memory")
    memory.put(f"{photos / 'photos'}/", "/bucket/photos/", recursive=True)
    memory.pipe_file("/bucket/photos/.hidden/1.png", b"")
    memory.pipe_file("/bucket/photos/notes.txt", b"")
    yield "memory://bucket"
    memory.rm("/bucket", recursive=True)


def test_pictures_and_vectors_may_be_behind_addresses(
    photos: Path, whole: Path, bucket: str, tmp_path: Path, cache: Path
) -> None:
    memory: Any = fsspec.filesystem("memory")
    out, expected = f"{bucket}/out/v.parquet", read_embeddings(whole)
    memory.pipe_file("/bucket/photos/class 00/bad.png", b"no image")
    for number in range(4):
        memory.mv(f"/bucket/photos/class 01/{number}.png", f"/bucket/kept{number}.png")
        memory.pipe_file(f"/bucket/photos/class 01/{number}.png", b"")
    with pytest.raises(UserError, match="5 of 65 photos cannot be read"):
        embed_to_file(f"{bucket}/photos", out, photos / "model", batch_size=4, workers=0, strict=True)
    assert memory.cat_file("/bucket/out/v.unreadable.csv").count(b"\n") == 6
    memory.rm("/bucket/photos/class 00/bad.png")
    for number in range(4):
        memory.mv(f"/bucket/kept{number}.png", f"/bucket/photos/class 01/{number}.png")
    written = embed_to_file(f"{bucket}/photos", out, photos / "model", batch_size=4, workers=2)
    assert written is not None
    assert written.path == out
    assert not memory.exists("/bucket/out/v.unreadable.csv")
    assert not list(cache.rglob("embedding/*"))
    (tmp_path / "v.parquet").write_bytes(memory.cat_file("/bucket/out/v.parquet"))
    found = read_embeddings(tmp_path / "v.parquet")
    assert found.labels == expected.labels
    assert found.names == [name.replace(str(photos), "memory:///bucket") for name in expected.names]
    torch.testing.assert_close(found.embeddings, expected.embeddings)
    embed_to_file(f"file://{photos}/photos", f"file://{tmp_path}/w.parquet", photos / "model", batch_size=4, workers=0)
    same(tmp_path / "w.parquet", whole)


def test_addresses_that_cannot_be_reached_are_one_sentence(photos: Path, tmp_path: Path, here: Here) -> None:
    words = ["--out", tmp_path / "v.npy", "--workers", "1"]
    for source, said in {
        "nonsense://bucket/photos": "nonsense://bucket/photos cannot be reached: Protocol not known",
        "memory://nowhere/photos": "memory://nowhere/photos does not exist",
        "memory://nowhere/*.png": "has no images",
    }.items():
        assert_refused(here("embed", source, "--model", photos / "model", *words), [said])
    table = tmp_path / "t.csv"
    table.write_text("path\nnonsense://bucket/a.jpg\n")
    result = here("embed", table, "--model", photos / "model", *words)  # said by a process that reads
    assert_refused(result, ["nonsense://bucket/a.jpg cannot be reached"])
    assert "Traceback" not in result.stderr
