"""Damaged and hostile state files, and numbers beyond all reason: one sentence each, and nothing is used unnoticed."""

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from command_line import Here, assert_refused, run_here
from found import unreadable
from images import write_folder, write_recipe
from onnx_files import network
from proxemic.data import Preprocessing
from proxemic.models import EmbeddingModel
from proxemic.studies.comparison import compare
from proxemic.studies.reality_check import reality_check
from proxemic.studies.tuning import tune

STUDIES = {
    "comparison.json": ["compare", "--resume"],
    "tuning.json": ["tune", "--resume"],
    "reality-check.json": ["reality-check", "--resume"],
}
"""By the file that says what is studied, the command that goes on."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("studies")
    recipe = write_recipe(folder / "small.yaml", write_folder(folder / "images", classes=9, images=3, size=16))
    recipe.write_text(recipe.read_text().replace("size: 28", "size: 16"))
    return recipe


@pytest.fixture(scope="module")
def studies(small: Path) -> dict[str, Path]:
    """A finished comparison, search and reality check of one training each, or three."""
    flags = {"training.epochs": 1, "training.loggers": []}
    out = small.parent
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxemic.studies.jobs.Workers.run", run_here)
        compare([str(small)], out=out / "c", seeds=[0], overrides=flags, report=str)
        tune(small, out=out / "t", trials=1, overrides=flags, report=str)
        reality_check([small], out=out / "r", trials=1, repeats=1, folds=2, embedding_size=4, overrides=flags)
    return {"comparison.json": out / "c", "tuning.json": out / "t", "reality-check.json": out / "r"}


def nested(_: object) -> str:
    return "[" * 100_000 + "]" * 100_000


def each_value(content: Mapping[str, Any], value: str) -> Iterator[str]:
    """The file once for each of its keys, with the JSON of another value there."""
    for name in content:
        yield json.dumps({**content, name: "@"}).replace('"@"', value)


DAMAGES: dict[str, Callable[[dict[str, Any]], list[str]]] = {  # of the sound content
    "empty": lambda _: [""],
    "cut in half": lambda content: [json.dumps(content)[: len(json.dumps(content)) // 2]],
    "null": lambda _: ["null"],
    "a list": lambda _: ["[1, 2]"],
    "an unknown key": lambda content: [json.dumps({**content, "another": 1})],
    "deeply nested": lambda content: [nested(content)],
    "values of other types": lambda content: [*each_value(content, '{"a": {}}'), *each_value(content, "true")],
    "400 digits": lambda content: [*each_value(content, "9" * 400)],
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", STUDIES)
def test_what_is_studied_is_checked(
    name: str, damage: str, studies: dict[str, Path], here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.studies.jobs.Workers.run", run_here)
    file = studies[name] / name
    sound = file.read_text()
    try:
        for bad in DAMAGES[damage](json.loads(sound)):
            file.write_text(bad)
            refused(here(*STUDIES[name], studies[name]), name)
            assert file.read_text() == bad
    finally:
        file.write_text(sound)


def refused(result: Any, name: str) -> None:
    """One sentence that names the file, after lines about what is done."""
    assert result.returncode == 2, result.stdout
    assert "Traceback" not in result.stderr
    assert name in result.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_that_may_not_be_read_is_not_called_damaged(name: str, studies: dict[str, Path], here: Here) -> None:
    with unreadable(studies[name] / name):
        result = here(*STUDIES[name], studies[name])
    refused(result, name)
    assert "ermission denied" in result.stderr
    assert "damaged" not in result.stderr


@pytest.mark.parametrize("bad", ["null", "{}", "[" * 100_000], ids=["null", "empty", "nested"])
def test_the_best_values_of_a_reality_check_are_checked(
    bad: str, studies: dict[str, Path], here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.studies.jobs.Workers.run", run_here)
    file = studies["reality-check.json"] / "small" / "best.json"
    sound = file.read_text()
    file.write_text(bad)
    try:
        refused(here("reality-check", "--resume", studies["reality-check.json"]), "best.json")
    finally:
        file.write_text(sound)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "run"))


RUN_FILES: list[Any] = [
    ("evaluate", "model.json", "deeply nested"),
    ("report", "model.json", "deeply nested"),
    ("train --resume", "metrics.json", "each"),
    ("report", "metrics.json", "each"),
    ("report", "environment.json", "each"),
    ("evaluate", "environment.json", "each"),
]


@pytest.mark.parametrize(("command", "name", "damage"), RUN_FILES)
def test_the_files_of_a_run_are_checked(command: str, name: str, damage: str, copy: Path, here: Here) -> None:
    content = json.loads((copy / name).read_text())
    wrong = dict.fromkeys(content, "@")
    text = nested(content) if damage == "deeply nested" else json.dumps(wrong).replace('"@"', "9" * 400)
    (copy / name).write_text(text)
    refused(here(*command.split(), copy), name)


@contextmanager
def as_pipe(file: Path) -> Iterator[None]:
    """The file is a named pipe for a while, which gives the sound content to every reader, so that nobody waits."""
    content = file.read_bytes()
    file.unlink()
    os.mkfifo(file)
    over = threading.Event()

    def give() -> None:
        while not over.is_set():
            pipe = os.open(file, os.O_WRONLY)  # waits for a reader
            if not over.is_set():  # the next reader has a pipe of its own
                os.mkfifo(file.with_suffix(".next"))
                file.with_suffix(".next").replace(file)
                with suppress(BrokenPipeError):
                    os.write(pipe, content)
            os.close(pipe)

    giving = threading.Thread(target=give, daemon=True)
    giving.start()
    try:
        yield
    finally:
        over.set()
        last = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
        giving.join()
        os.close(last)
        file.unlink()
        file.write_bytes(content)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("evaluate", "model.json"),
        ("evaluate", "classes.json"),
        ("evaluate", "environment.json"),
        ("train --resume", "metrics.json"),
    ],
)
def test_a_pipe_in_a_run_is_refused(command: str, name: str, copy: Path, here: Here) -> None:
    with as_pipe(copy / name):
        refused(here(*command.split(), copy), name)


@pytest.mark.parametrize("name", STUDIES)
def test_a_pipe_in_a_study_is_refused(
    name: str, studies: dict[str, Path], here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.studies.jobs.Workers.run", run_here)
    with as_pipe(studies[name] / name):
        refused(here(*STUDIES[name], studies[name]), name)


def test_a_pipe_beside_an_exported_model_is_refused(tmp_path: Path, here: Here) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.onnx").write_bytes(network())
    how = {"preprocessing": vars(Preprocessing(size=8, resize=None))}
    (tmp_path / "net.json").write_text(json.dumps(how))
    photos = write_folder(tmp_path / "photos", classes=1, images=1, size=8)
    with as_pipe(tmp_path / "net.json"):
        refused(here("embed", tmp_path / "net.onnx", photos, "--out", tmp_path / "v.npy"), "net.json")


HUGE = "99999999999999999999"


@pytest.mark.parametrize(
    "words",
    [
        "embed {model} {photos} --out {out}/v.npy --batch-size",
        "gallery create {out}/shop {photos} --model {model} --batch-size",
        "gallery add {out}/copy {more} --batch-size",
        "search {shop} {photos} --batch-size",
        "recognize {shop} {photos} --threshold 0.1 --batch-size",
        "cluster {photos} --model {model} --batch-size",
        "clean {photos} --model {model} --batch-size",
        "calibrate {run} --batch-size",
        "evaluate {run} --evaluation.batch_size",
    ],
    ids=lambda words: " ".join(words.split()[: 2 if words.startswith("gallery") else 1]),
)
def test_no_batch_has_so_many_pictures(
    words: str, run: Path, folder: Path, shelf: Path, tmp_path: Path, here: Here
) -> None:
    shutil.copytree(shelf / "shop", tmp_path / "copy")
    before = sorted(tmp_path.rglob("*"))
    places = {
        "model": shelf / "model",
        "photos": shelf / "photos",
        "more": folder,
        "shop": shelf / "shop",
        "run": run,
        "out": tmp_path,
    }
    result = here(*(word.format(**places) for word in words.split(" ")), HUGE)
    assert_refused(result, [words.split()[-1].lstrip("-"), HUGE[:4]])
    assert sorted(tmp_path.rglob("*")) == before


def test_the_device_meta_computes_nothing(shelf: Path, tmp_path: Path, here: Here) -> None:
    words = ["embed", shelf / "model", shelf / "photos", "--out", tmp_path / "v.npy"]
    assert_refused(here(*words, "--device", "meta"), ["meta"])


@pytest.mark.parametrize("library", ["torch", "numpy"])
@pytest.mark.parametrize("command", ["evaluate", "embed"])
def test_too_little_memory_is_one_sentence(
    command: str, library: str, run: Path, folder: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*_: object, **__: object) -> object:
        return torch.empty(1 << 60) if library == "torch" else np.empty(1 << 60, np.uint8)

    monkeypatch.setattr(EmbeddingModel, "forward", forward)
    words = [run] if command == "evaluate" else [run, folder, "--out", tmp_path / "v.npy"]
    assert_refused(here(command, *words), ["memory"])


def test_more_folds_than_training_classes_are_refused_at_once(
    small: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def counted(of: Callable[..., Any]) -> Callable[..., Any]:
        def count(*words: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            assert calls < 1000, "as many recipes are made as folds were asked for"
            return of(*words, **options)

        return count

    for name in ("load", "dump_all"):
        monkeypatch.setattr(yaml, name, counted(getattr(yaml, name)))
    result = here("reality-check", small, "--folds", "9999", "--out", tmp_path / "out")
    assert_refused(result, ["--folds", "9999"])
    assert not (tmp_path / "out").exists()


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x40
    file.write_bytes(content)


def test_a_changed_checkpoint_is_not_resumed(copy: Path, here: Here) -> None:
    checkpoint = copy / "checkpoints" / "last.ckpt"
    flip(checkpoint, checkpoint.stat().st_size // 2)
    refused(here("train", "--resume", copy, "--training.epochs", "3"), "last.ckpt")


def test_changed_proxies_are_not_taken(copy: Path, tiny: Path, tmp_path: Path, here: Here) -> None:
    flip(copy / "loss.safetensors", -3)
    words = ["train", "--recipe", tiny, "--out", tmp_path / "next", "--training.epochs", "1"]
    refused(here(*words, "--training.start_from", copy), "loss.safetensors")


@pytest.mark.parametrize("command", ["evaluate", "calibrate"])
def test_half_a_recipe_is_noticed(command: str, copy: Path, here: Here) -> None:
    file = copy / "recipe.yaml"
    text = file.read_text()
    file.write_text(text[: text.index("evaluation:")])  # what is left is a recipe of its own
    refused(here(command, copy), "recipe.yaml")


def test_half_a_recipe_is_not_resumed(copy: Path, here: Here) -> None:
    file = copy / "recipe.yaml"
    text = file.read_text()
    file.write_text(text[: text.index("evaluation:")])
    refused(here("train", "--resume", copy), "recipe.yaml")


@pytest.mark.parametrize("name", ["tuning.json", "reality-check.json"])
def test_studies_print_percent(
    name: str, studies: dict[str, Path], here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.studies.jobs.Workers.run", run_here)
    result = here(*STUDIES[name], studies[name])
    assert result.returncode == 0, result.stderr
    printed = [line for line in result.stdout.splitlines() if "Best" in line or "test map@r" in line.lower()]
    assert printed
    for line in printed:
        assert not re.search(r"\b[01]\.\d{4}\b", line)
        assert re.search(r"\b\d{1,3}\.\d\d\b", line)
