"""Output of commands: unchanged names, whole lines, percent, and cells that are not formulas."""

import contextlib
import csv
import io
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from command_line import Here, assert_refused
from hostile import unreadable
from proxemic.retrieval import Gallery

RED = "\x1b[31mred\x1b[2J"
ODD = {"class 00": "=1+1", "class 01": "+two", "class 02": "-three", "class 03": "@four", "class 06": RED}


@pytest.fixture(scope="module")
def odd(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos in folders with odd names, and their gallery, shop."""
    folder = tmp_path_factory.mktemp("odd")
    shutil.copytree(shelf / "photos", folder / "photos")
    for name, other in ODD.items():
        (folder / "photos" / name).rename(folder / "photos" / other)
    Gallery.create(folder / "shop", shelf / "model", folder / "photos")
    return folder


@pytest.fixture
def ask(shelf: Path, tmp_path: Path, here: Here) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a command whose words name the model, the gallery and its photos, which may be others, and a folder."""

    def run(words: str, photos: Path = shelf / "photos", shop: Path = shelf / "shop") -> Any:
        places = {"photos": photos, "shop": shop, "model": shelf / "model", "out": tmp_path}
        result = here(*(word.format(**places) for word in words.split(" ")))
        assert result.returncode == 0 or "none.png" in words, result.stderr
        return result

    return run


def test_a_newline_in_a_name_stays_out_of_the_contact_sheet(shelf: Path, tmp_path: Path, here: Here) -> None:
    query = tmp_path / "new\nline.png"
    shutil.copy(shelf / "photos" / "class 00" / "0.png", query)
    result = here("search", shelf / "shop", query, "-k", "2", "--png", tmp_path / "found.png")
    assert result.returncode == 0, result.stderr
    with Image.open(tmp_path / "found.png") as sheet:
        assert sheet.size[0] > 100


TABLES = {
    "search": "search {shop} {photos} -k 1",
    "recognize": "recognize {shop} {photos} --threshold 0.5",
    "clean": "clean {photos} --model {model}",
    "evaluate": "evaluate {model} --data.root {photos} --worst 7",
}


@pytest.mark.parametrize(
    "words",
    [
        *TABLES.values(),
        f"search {{shop}} {{photos}}/{RED}/none.png",
        *(f"{TABLES[name]} --format {form}" for name in ("search", "recognize") for form in ("csv", "json")),
    ],
)
def test_escapes_for_the_terminal_are_not_printed(words: str, odd: Path, ask: Any) -> None:
    result = ask(words, odd / "photos", odd / "shop")
    assert "red" in result.stdout + result.stderr
    assert "\x1b" not in result.stdout + result.stderr


def test_paths_in_messages_keep_their_capitals(
    run: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(_: int) -> None:
        raise OSError("the device of /Volumes/Photos is gone")

    monkeypatch.setattr(os, "fsync", fsync)
    assert_refused(here("evaluate", run, "--out", tmp_path / "A.md"), ["A.md", "/Volumes/Photos"])


@pytest.mark.parametrize(("words", "files"), [("evaluate", "model.safetensors"), ("gallery info", "[!.]*")])
def test_what_may_not_be_read_is_not_called_damaged(
    words: str, files: str, run: Path, shelf: Path, tmp_path: Path, here: Here
) -> None:
    copy = Path(shutil.copytree(run if words == "evaluate" else shelf / "shop", tmp_path / "copy"))
    with unreadable(*copy.glob(files)):
        result = here(*words.split(" "), copy)
    assert_refused(result, ["ermission denied"])
    assert "damaged" not in result.stderr


def formulas(text: str) -> Iterator[str]:
    """Cells that spreadsheets would take for formulas: texts, as numbers may be negative."""
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            with contextlib.suppress(ValueError):
                float(cell)
                continue
            if re.match(r"[=+\-@]", cell):
                yield cell


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("search {shop} {photos} -k 1 --format csv", ""),
        ("recognize {shop} {photos} --threshold 0.5 --format csv", ""),
        ("clean {photos} --model {model} --out {out}/cleaned", "cleaned/labels.csv"),
        ("evaluate {model} --data.root {photos} --per-class {out}/classes.csv", "classes.csv"),
        ("evaluate {model} --data.root {photos} --per-query {out}/queries.csv", "queries.csv"),
    ],
    ids=["search", "recognize", "clean", "per class", "per query"],
)
def test_no_cell_is_a_formula(words: str, name: str, odd: Path, tmp_path: Path, ask: Any) -> None:
    result = ask(words, odd / "photos", odd / "shop")
    text = (tmp_path / name).read_text() if name else result.stdout
    assert "two" in text
    assert not [*formulas(text)]


@pytest.fixture(scope="module")
def deep(shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos far down, and their gallery, shop."""
    folder = tmp_path_factory.mktemp("deep")
    photos = folder / "photographs of the shop in the year of the great move" / "originals as the camera had them"
    shutil.copytree(shelf / "photos", photos)
    Gallery.create(folder / "shop", shelf / "model", photos)
    return photos


@pytest.mark.parametrize("name", TABLES)
def test_no_line_is_wrapped_in_a_pipe_and_the_root_of_paths_is_printed_once(
    name: str, deep: Path, ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    setenv = pytest.MonkeyPatch.setenv  # not the width that `here` gives
    monkeypatch.setattr(
        pytest.MonkeyPatch, "setenv", lambda self, key, value: setenv(self, key, "" if key == "COLUMNS" else value)
    )
    lines = ask(TABLES[name], deep, deep.parents[1] / "shop").stdout.splitlines()
    rows = [line for line in lines if ".png" in line]
    assert len(rows) >= 3
    for row in rows:
        assert re.search(r"[^/]class \d\d/\d\.png", row)
        assert re.search(r"\d\.\d", row), "the value stands on another line"
    assert not [line for line in lines if "originals" in line and ".png" not in line and str(deep) not in line]
    assert "\n".join(lines).count(str(deep)) == 1


def test_the_validation_of_an_epoch_is_printed_in_percent(tiny: Path, tmp_path: Path, here: Here) -> None:
    flags = ["--training.epochs", "1", "--training.loggers", "[]"]
    result = here("train", "--recipe", tiny, "--out", tmp_path / "run", *flags)
    (line,) = (line for line in result.stdout.splitlines() if line.startswith("epoch 1/1"))
    assert re.search(r"map@r \d\d\.\d\d\b", line, re.IGNORECASE), line
    assert not re.search(r"map@r 0\.\d{3}", line, re.IGNORECASE)


@pytest.mark.parametrize("command", ["compare", "analyze gap", "analyze robustness"])
def test_help_prints_one_percent_sign(command: str, here: Here) -> None:
    assert "%%" not in here(*command.split(), "--help").stdout


def test_the_size_of_the_gallery_is_printed(shelf: Path, tmp_path: Path, ask: Any) -> None:
    gallery = Path(shutil.copytree(shelf / "photos", tmp_path / "photos"))
    for number in range(5):
        (gallery / f"class {number:02d}" / "3.png").unlink()
    result = ask("evaluate {model} --query {photos} --gallery {out}/photos")
    assert re.search(r"\b23\b", result.stdout)


OUTPUTS = {
    "embed": ("embed {photos} --model {model} --out {out}/v.parquet", "v.parquet", "PARQUET"),
    "embed labels": ("embed {photos} --model {model} --out {out}/v.npy", "v.npy", "NPY"),
    "embed beside": ("embed {photos} --model {model} --out {out}/v.npy", "v.paths.csv", "name,price\nhat.jpg,3\n"),
    "search png": ("search {shop} {out}/found.png --png {out}/found.png", "found.png", "PHOTO"),
    "search html": ("search {shop} {photos} --html {out}/found.html", "found.html", "<!doctype html><p>mine"),
    "evaluate md": ("evaluate {model} --data.root {photos} --out {out}/README.md", "README.md", "# Mine\n"),
    "evaluate json": ("evaluate {model} --data.root {photos} --out {out}/a.json", "a.json", '{"config": {}}'),
    "evaluate classes": ("evaluate {model} --data.root {photos} --per-class {out}/a.csv", "a.csv", "path,label\na,b\n"),
    "evaluate queries": ("evaluate {model} --data.root {photos} --per-query {out}/a.csv", "a.csv", "path,label\na,b\n"),
    "cluster": ("cluster {photos} --model {model} --groups 2 --out {out}/a.csv", "a.csv", "path,label\na,b\n"),
    "clean": ("clean {photos} --model {model} --out {out}", "labels.csv", "path,label\na,b\n"),
    "gallery export": ("gallery export {shop} {out}/a.parquet", "a.parquet", "PARQUET"),
    "gallery decisions": ("gallery decisions {shop} --out {out}/a.csv", "a.csv", "path,label\na,b\n"),
    "report": ("report {shop} --model {model} --out {out}/a.html", "a.html", "<!doctype html><p>mine"),
    "export": ("export {model} --data.root {photos} --out {out}/a.onnx", "a.onnx", "an ONNX file of others"),
    "export card": ("export {model} --data.root {photos} --out {out}/a.onnx", "a.md", "# Mine\n"),
    "characteristics": ("analyze characteristics --csv {out}/a.csv", "a.csv", "path,label\na,b\n"),
}


@pytest.mark.parametrize("words", OUTPUTS)
def test_a_file_of_another_kind_is_not_overwritten(words: str, shelf: Path, tmp_path: Path, here: Here) -> None:
    command, name, content = OUTPUTS[words]
    out = tmp_path / name
    match content:
        case "PARQUET":
            pq.write_table(pa.table({"path": ["hat.jpg"], "label": ["hat"]}), out)
        case "NPY":
            np.save(out, np.arange(9))
        case "PHOTO":
            shutil.copy(shelf / "photos" / "class 00" / "0.png", out)
        case _:
            out.write_text(content)
    before = out.read_bytes()
    places = {name: shelf / name for name in ("photos", "shop", "model")} | {"out": tmp_path}
    assert_refused(here(*(word.format(**places) for word in command.split(" "))), [name])
    assert out.read_bytes() == before
    assert [*tmp_path.iterdir()] == [out]


@pytest.mark.parametrize("words", sorted(OUTPUTS.keys() - {"characteristics", "export card", "embed labels"}))
def test_an_output_is_written_again(words: str, shelf: Path, tmp_path: Path, here: Here) -> None:
    command, name, _ = OUTPUTS[words]
    if "{out}/found.png " in command:
        shutil.copy(shelf / "photos" / "class 00" / "0.png", tmp_path / "query.png")
        command = command.replace("{out}/found.png ", "{out}/query.png ")
    places = {name: shelf / name for name in ("photos", "shop", "model")} | {"out": tmp_path}
    for _ in range(2):
        result = here(*(word.format(**places) for word in command.split(" ")))
        assert result.returncode == 0, result.stderr
    assert (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["model.safetensors", "model.json"])
def test_files_of_a_run_are_not_overwritten_by_vectors_or_tables(
    name: str, run: Path, shelf: Path, tmp_path: Path, here: Here
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    before = (copy / name).read_bytes()
    words = ["embed", shelf / "photos", "--model", copy] if name.endswith("tensors") else ["evaluate", copy]
    assert_refused(here(*words, "--out", copy / name), [name])
    assert (copy / name).read_bytes() == before
