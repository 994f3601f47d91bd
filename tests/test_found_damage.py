"""Damaged and hostile state files, and numbers beyond all reason: one sentence each, and nothing is used unnoticed."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from command_line import Here, assert_refused, run_here
from hostile import unreadable
from images import write_folder, write_recipe
from onnx_files import network
from proxemic.data import Preprocessing
from proxemic.data.embeddings import read_embeddings
from proxemic.data.formats.tables import read_table
from proxemic.errors import UserError
from proxemic.models import EmbeddingModel
from proxemic.studies.comparison import compare
from proxemic.studies.reality_check import reality_check
from proxemic.studies.tuning import tune

STUDIES = {
    "comparison.json": ["compare", "--resume"],
    "tuning.json": ["tune", "--resume"],
    "reality-check.json": ["reality-check", "--resume"],
}
"""The command that resumes a study, by its file."""
NESTED = "[" * 100_000 + "]" * 100_000
DIGITS = "9" * 400


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    recipe = write_recipe(folder / "small.yaml", write_folder(folder / "images", classes=9, images=3, size=16))
    recipe.write_text(recipe.read_text().replace("size: 28", "size: 16"))
    return recipe


@pytest.fixture(scope="module")
def studies(small: Path) -> Iterator[dict[str, Path]]:
    """A finished comparison, search and reality check of one to three trainings, without processes."""
    flags = {"training.epochs": 1, "training.loggers": []}
    out = small.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.studies.jobs.Workers.run", run_here)
        patch.setattr("matplotlib.figure.Figure.savefig", lambda _, file, **__: file.touch())
        compare([str(small)], out=out / "c", seeds=[0], overrides=flags, report=str)
        tune(small, out=out / "t", trials=1, overrides=flags, report=str)
        reality_check([small], out=out / "r", trials=1, repeats=1, folds=2, embedding_size=4, overrides=flags)
        yield {"comparison.json": out / "c", "tuning.json": out / "t", "reality-check.json": out / "r"}


@contextmanager
def changed(file: Path, text: str) -> Iterator[None]:
    """Replace the content of a file in the block, in which it must not change."""
    sound = file.read_text()
    file.write_text(text)
    try:
        yield
        assert file.read_text() == text
    finally:
        file.write_text(sound)


def refused(result: Any, name: str) -> None:
    """Assert that the last line is a sentence that names the file."""
    assert result.returncode == 2, result.stdout
    assert "Traceback" not in result.stderr
    assert name in result.stderr.splitlines()[-1]


def damages(sound: str) -> Iterator[str]:
    """Text that is no JSON, or no object; and each value in turn replaced by one that it cannot be."""
    content = json.loads(sound)
    yield from ("", sound[: len(sound) // 2], "null", "[1, 2]", NESTED, json.dumps({**content, "another": 1}))
    for value in ('{"a": {}}', "true", DIGITS):
        yield from (json.dumps({**content, name: "@"}).replace('"@"', value) for name in content)


@pytest.mark.parametrize("name", STUDIES)
def test_what_is_studied_is_checked(name: str, studies: dict[str, Path], here: Here) -> None:
    file = studies[name] / name
    for bad in damages(file.read_text()):
        with changed(file, bad):
            refused(here(*STUDIES[name], studies[name]), name)


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_may_not_be_read_is_not_called_damaged(name: str, studies: dict[str, Path], here: Here) -> None:
    with unreadable(studies[name] / name):
        result = here(*STUDIES[name], studies[name])
    refused(result, name)
    assert "ermission denied" in result.stderr
    assert "damaged" not in result.stderr


RUN_FILES: list[Any] = [
    ("evaluate", "model.json", NESTED),
    ("train --resume", "metrics.json", None),
    ("report", "metrics.json", None),
    ("report", "environment.json", None),
]


@pytest.mark.parametrize(("command", "name", "text"), RUN_FILES, ids=lambda item: str(item)[:20])
def test_the_files_of_a_run_are_checked(command: str, name: str, text: str | None, copy: Path, here: Here) -> None:
    each = json.dumps(dict.fromkeys(json.loads((copy / name).read_text()), "@")).replace('"@"', DIGITS)
    with changed(copy / name, text or each):
        refused(here(*command.split(), copy), name)


@contextmanager
def as_pipe(file: Path) -> Iterator[None]:
    """The file is a named pipe for a while, at which whoever opens it would wait for ever."""
    content = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it waits for a pipe"))
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        file.unlink()
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("evaluate", "model.json"),
        ("evaluate", "classes.json"),
        ("evaluate", "split.arrow"),
        ("analyze local-centers", "loss.safetensors"),
        ("train --resume", "metrics.json"),
    ],
)
def test_a_pipe_in_a_run_is_refused(command: str, name: str, copy: Path, here: Here) -> None:
    with as_pipe(copy / name):
        refused(here(*command.split(), copy), name)


@pytest.mark.parametrize("name", STUDIES)
def test_a_pipe_in_a_study_is_refused(name: str, studies: dict[str, Path], here: Here) -> None:
    with as_pipe(studies[name] / name):
        refused(here(*STUDIES[name], studies[name]), name)


def test_a_pipe_beside_an_exported_model_is_refused(tmp_path: Path, here: Here) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.onnx").write_bytes(network())
    (tmp_path / "net.json").write_text(json.dumps({"preprocessing": vars(Preprocessing(size=8, resize=None))}))
    photos = write_folder(tmp_path / "photos", classes=1, images=1, size=8)
    with as_pipe(tmp_path / "net.json"):
        refused(here("embed", photos, "--model", tmp_path / "net.onnx", "--out", tmp_path / "v.npy"), "net.json")


@pytest.mark.parametrize(
    "words",
    [
        "embed {photos} --model {model} --out {out}/v.npy --batch-size",
        "gallery create {out}/shop {photos} --model {model} --batch-size",
        "gallery add {out}/copy {more} --batch-size",
        "search {shop} {photos} --batch-size",
        "recognize {shop} {photos} --threshold 0.1 --batch-size",
        "cluster {photos} --model {model} --batch-size",
        "clean {photos} --model {model} --batch-size",
        "calibrate {run} --batch-size",
        "evaluate {run} --evaluation.batch_size",
    ],
    ids=lambda words: " ".join(words.split()[:2]),
)
def test_no_batch_has_so_many_pictures(
    words: str, run: Path, folder: Path, shelf: Path, tmp_path: Path, here: Here
) -> None:
    shutil.copytree(shelf / "shop", tmp_path / "copy")
    before = sorted(tmp_path.rglob("*"))
    places = {name: shelf / name for name in ("model", "photos", "shop")} | {
        "more": folder,
        "run": run,
        "out": tmp_path,
    }
    result = here(*(word.format(**places) for word in words.split(" ")), "99999999999999999999")
    assert_refused(result, [words.split()[-1].lstrip("-"), "9999"])
    assert sorted(tmp_path.rglob("*")) == before


def test_the_device_meta_computes_nothing(shelf: Path, tmp_path: Path, here: Here) -> None:
    words = ["embed", shelf / "photos", "--model", shelf / "model", "--out", tmp_path / "v.npy"]
    assert_refused(here(*words, "--device", "meta"), ["meta"])


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("command", ["evaluate", "embed"])
def test_too_little_memory_is_one_sentence(
    command: str, library: str, run: Path, folder: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: object, **__: object) -> object:
        return torch.empty(1 << 60) if library == "torch" else np.empty(1 << 60, np.uint8)

    monkeypatch.setattr(EmbeddingModel, "forward", forward)
    words = [run] if command == "evaluate" else [folder, "--model", run, "--out", tmp_path / "v.npy"]
    assert_refused(here(command, *words), ["memory"])


def test_more_folds_than_training_classes_are_refused_at_once(small: Path, tmp_path: Path, here: Here) -> None:
    result = here("reality-check", small, "--folds", "9999", "--out", tmp_path / "out")
    assert_refused(result, ["--folds", "9999"])
    assert not (tmp_path / "out").exists()


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x40
    file.write_bytes(content)


def test_changed_bytes_are_noticed(copy: Path, tiny: Path, tmp_path: Path, here: Here) -> None:
    checkpoint = copy / "checkpoints" / "last.ckpt"
    flip(checkpoint, checkpoint.stat().st_size // 2)
    (copy / "metrics.json").unlink()  # as if its evaluation were left
    refused(here("train", "--resume", copy), "last.ckpt")
    flip(copy / "loss.safetensors", -3)
    words = ["train", "--recipe", tiny, "--out", tmp_path / "next", "--training.epochs", "1"]
    refused(here(*words, "--training.start_from", copy), "loss.safetensors")


@pytest.mark.parametrize("command", ["evaluate", "calibrate", "train --resume"])
def test_half_a_recipe_is_noticed(command: str, copy: Path, here: Here) -> None:
    text = (copy / "recipe.yaml").read_text()
    with changed(copy / "recipe.yaml", text[: text.index("evaluation:")]):  # the rest is a valid recipe
        refused(here(*command.split(), copy), "recipe.yaml")


@pytest.mark.parametrize("name", ["tuning.json", "reality-check.json"])
def test_studies_print_percent(name: str, studies: dict[str, Path], here: Here) -> None:
    result = here(*STUDIES[name], studies[name])
    assert result.returncode == 0, result.stderr
    printed = [line for line in result.stdout.splitlines() if "Best" in line or "test map@r" in line.lower()]
    assert printed
    for line in printed:
        assert not re.search(r"\b[01]\.\d{4}\b", line)
        assert re.search(r"\b\d{1,3}\.\d\d\b", line)


@pytest.mark.parametrize(
    "value",
    ["null", '"abc"', '["a", "b", "c"]', f"[{DIGITS}, {DIGITS}, {DIGITS}]"],
    ids=["null", "text", "texts", "digits"],
)
@pytest.mark.parametrize("name", ["mean", "std"])
def test_a_preprocessing_of_no_numbers_is_refused(name: str, value: str, copy: Path, here: Here) -> None:
    content = json.loads((copy / "model.json").read_text())
    content["preprocessing"][name] = "@"
    with changed(copy / "model.json", json.dumps(content).replace('"@"', value)):
        refused(here("embed", copy, "--model", copy, "--out", copy / "v.npy"), "model.json")


def test_flipped_bits_of_parquet_are_one_sentence_or_no_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(40, dtype=np.float32)), 4)
    pq.write_table(pa.table({"path": [*"abcdefghij"], "label": [*"xyxyxyxyxy"], "embedding": vectors}), path)
    sound, messages = path.read_bytes(), list[str]()
    for place in range(4, len(sound), 7):
        path.write_bytes(sound)
        flip(path, place)
        for read in (read_table, read_embeddings):
            try:
                read(path)
            except (UserError, ValueError) as error:
                messages.append(str(error))
    assert len(messages) > 50
    assert all(str(path) in message for message in messages)


@pytest.mark.parametrize("words", ["gallery suggest {shop} --seed", "improve {shop} --seed"])
def test_no_seed_has_400_digits(words: str, shelf: Path, here: Here) -> None:
    assert_refused(here(*words.format(shop=shelf / "shop").split(" "), DIGITS), ["--seed", "64 bits"])
