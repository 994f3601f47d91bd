"""Own images through the command line: final models, closed sets, sizes, names."""

import json
import os
from pathlib import Path

import pytest

from command_line import Here, assert_refused
from images import write_folder, write_recipe
from proxemic.data.embeddings import read_embeddings

ONE = ("--training.epochs", "1")


def test_a_final_model_on_all_classes(folder: Path, tiny: Path, tmp_path: Path, here: Here) -> None:
    final = ("--data.test_fraction", "0", "--data.validation_fraction", "0", "--evaluation.select_on", "last")
    result = here("train", "--recipe", tiny, "--out", tmp_path / "run", *final, "--training.epochs", "2")
    assert result.returncode == 0, result.stderr
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    told = {"epoch": 2, "kept": "epoch", "selected_on": "last", "seed": 0, "split": "nothing held out"}
    assert metrics == told | {"train_classes": 12, "train_images": 72}
    assert "Trained on all 12 classes, 72 images" in result.stdout
    assert (
        f"evaluate the run on other images with proxemic evaluate {tmp_path / 'run'} --data.root OTHER" in result.stdout
    )
    assert "faces" not in result.stdout
    assert_refused(here("train", "--recipe", tiny, *final[:2], "--no-validation"), ["no test classes to select"])
    assert_refused(here("train", "--recipe", tiny, *final[:4]), ["no validation classes", "select_on last"])
    evaluated = here("evaluate", tmp_path / "run", "--data.root", write_folder(tmp_path / "other", classes=3))
    assert evaluated.returncode == 0, evaluated.stderr


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX alone")
def test_names_that_are_not_utf_8(tmp_path: Path, here: Here) -> None:
    root = write_folder(tmp_path / "photographs", classes=8, images=3)
    strange = root / os.fsdecode(b"Zo\xeb")
    (root / "class 00").rename(strange)
    (strange / "0.png").rename(strange / os.fsdecode(b"\xff.png"))
    (strange / os.fsdecode(b"cut\xff.png")).write_bytes(b"")
    (root / os.fsdecode(b"loose\xfe.txt")).touch()
    checked = here("datasets", "check", root)
    assert checked.returncode == 1
    for name in ("24 images of 8 classes", "cut\\udcff.png: ", "loose\\udcfe.txt"):
        assert name in checked.stdout
    report = json.loads(here("datasets", "check", root, "--json").stdout)
    json.dumps(report, ensure_ascii=False).encode()

    run = tmp_path / "run"
    recipe = write_recipe(tmp_path / "tiny.yaml", Path("given by a flag"))
    trained = here("train", "--recipe", recipe, "--data.root", root, "--out", run, *ONE)
    assert trained.returncode == 0, trained.stderr
    assert "cut\\udcff.png" in trained.stdout
    assert (run / "gallery.png").exists()

    queries = tmp_path / os.fsdecode(b"queries\xfc.csv")
    files = ("--save-embeddings", tmp_path / "all.parquet", "--per-query", queries, "--out", tmp_path / "report.json")
    evaluated = here("evaluate", run, "--split", "all", *files, "--worst", "24")
    assert evaluated.returncode == 0, evaluated.stderr
    assert "Zo\\udceb" in evaluated.stdout
    assert "Zo\\udceb" in queries.read_text(encoding="utf-8")
    assert "Zo\\udceb" in read_embeddings(tmp_path / "all.parquet").labels

    root = root.rename(tmp_path / os.fsdecode(b"caf\xe9"))
    assert "caf\\udce9: 24 images" in here("datasets", "check", root).stdout
    assert "caf\\udce9" in here("datasets", "list", "--root", root.name, cwd=tmp_path).stdout
    refused = here("train", "--recipe", recipe, "--data.root", root)
    assert_refused(refused, ["caf\\udce9 is not in UTF-8: give another name"])
    strange_run = tmp_path / os.fsdecode(b"run\xfd")
    assert_refused(here("train", "--recipe", recipe, "--out", strange_run), ["run\\udcfd is not in UTF-8"])


def test_links_that_lead_back_to_themselves(tmp_path: Path, here: Here) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert_refused(here("datasets", "check", tmp_path / "loop"), [str(tmp_path / "loop")])
    root = write_folder(tmp_path / "photographs", classes=4, images=2)
    (root / "class 00" / "up").symlink_to(root)
    (root / "class 00" / "self.png").symlink_to("self.png")
    checked = here("datasets", "check", root)
    assert checked.returncode == 1
    assert "8 images of 4 classes" in checked.stdout
    assert "self.png: too many levels of symbolic links" in checked.stdout


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_pipes_and_devices_are_named_and_never_opened(tmp_path: Path, here: Here) -> None:
    root = write_folder(tmp_path / "photographs", classes=4, images=2)
    os.mkfifo(root / "class 00" / "pipe.png")
    (root / "class 01" / "zero.jpg").symlink_to("/dev/zero")
    checked = here("datasets", "check", root)
    assert checked.returncode == 1
    for name in ("8 images of 4 classes", "pipe.png: it is a pipe, a device", "zero.jpg: it is a pipe, a device"):
        assert name in checked.stdout
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "zero.csv").symlink_to("/dev/zero")
    for name in ("pipe.csv", "zero.csv"):
        assert_refused(here("datasets", "check", tmp_path / name), [f"{name} is not a regular file"])
