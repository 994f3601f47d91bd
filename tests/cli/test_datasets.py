import hashlib
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import Here, assert_refused
from data.benchmarks.miniature import pack, write_cub
from data.benchmarks.site import Site, serve
from proxemic.data import CUB200
from proxemic.data.benchmarks import downloads


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A small copy of CUB-200-2011 to download."""
    monkeypatch.setattr(downloads, "_PAUSE", 0.001)
    archive = pack(write_cub(tmp_path / "original") / "CUB_200_2011", tmp_path / "original" / "CUB_200_2011.tgz")
    content = archive.read_bytes()
    with serve(Site({archive.name: content})) as site:
        (file,) = CUB200.facts.files
        file = replace(file, md5=hashlib.md5(content).hexdigest(), url=f"{site.url}/{archive.name}")
        counts = {"train classes": 4, "train images": 16, "test classes": 4, "test images": 16}
        monkeypatch.setattr(CUB200, "facts", replace(CUB200.facts, counts=counts, files=(file,)))
        yield site


def test_list(here: Here, tmp_path: Path) -> None:
    listed = here("datasets", "list")
    assert listed.returncode == 0
    for name, size, origin in (
        ("cub", "5,864 of 100", "download"),
        ("cars", "8,131 of 98", "by hand"),
        ("sop", "59,551 of 11,318", "download"),
        ("in-shop", "26,830 of 3,985", "by hand"),
        ("fashion-mnist", "60,000 of 10", "download"),
        ("omniglot", "2,720 of 136", "download"),
        ("glyphs", "half of the characters", "rendered here"),
        ("glyph-letters", "half of the letters", "rendered here"),
    ):
        (row,) = (line for line in listed.stdout.splitlines() if line.strip("│").split()[:1] == [name])
        assert size in row
        assert origin in row
    assert "in-shop: https://mmlab.ie.cuhk.edu.hk" in listed.stdout


def test_list_says_what_is_there(here: Here, tmp_path: Path, site: Site) -> None:
    def told() -> str:
        listed = here("datasets", "list", "--root", tmp_path / "data").stdout
        (row,) = (line for line in listed.splitlines() if line.strip("│").split()[:1] == ["cub"])
        return row.strip("│ ")

    assert told().split()[-1] == "-"
    archive = tmp_path / "data" / "cub" / "CUB_200_2011.tgz"
    archive.parent.mkdir(parents=True)
    archive.write_bytes(site.files["CUB_200_2011.tgz"])
    assert "files, not prepared" in told()
    here("datasets", "prepare", "cub", "--root", archive.parent)
    assert told().split()[-1] == "whole"
    next((tmp_path / "data").rglob("*.jpg")).unlink()
    assert "not whole" in told()


def test_prepare_and_check(here: Here, tmp_path: Path, site: Site) -> None:
    root = tmp_path / "data"
    assert_refused(here("datasets", "check", "cub", "--root", root), ["run proxemic datasets prepare cub --root"])
    prepared = here("datasets", "prepare", "cub", "--root", root)
    assert (prepared.returncode, prepared.stderr) == (0, "")
    assert "CUB-200-2011 is whole" in prepared.stdout
    assert "proxemic recipes list" in prepared.stdout
    assert f"proxemic train --recipe NAME --data.root {root}" in prepared.stdout
    assert sorted(path.name for path in root.iterdir()) == ["CUB_200_2011", "CUB_200_2011.tgz"]

    checked = here("datasets", "check", "cub", "--root", root, "--decode")
    assert checked.returncode == 0
    (row,) = (line for line in checked.stdout.splitlines() if "train images" in line)
    assert [cell.strip() for cell in row.split("│")[1:4]] == ["train images", "16", "16"]
    assert "every image is there and can be read" in checked.stdout.lower()

    cut, *_, gone = sorted(root.rglob("*.jpg"))
    cut.write_bytes(cut.read_bytes()[:200])
    assert here("datasets", "check", "cub", "--root", root).returncode == 0
    broken = here("datasets", "check", "cub", "--root", root, "--decode")
    assert_refused(broken, ["1 images that cannot be read", cut.name])
    gone.unlink()
    told = here("datasets", "check", "cub", "--root", root, "--json")
    assert_refused(told, ["1 of 32 images missing", gone.name, "test images 15 instead of 16"])
    assert json.loads(told.stdout)["found"]["test images"] == 15


def test_by_hand(here: Here, tmp_path: Path) -> None:
    result = here("datasets", "prepare", "in-shop", "--root", tmp_path)
    page = "https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html"
    assert_refused(result, [page, "Img/img.zip", "Eval/list_eval_partition.txt", str(tmp_path)])
    assert_refused(
        here("datasets", "prepare", "cars", "--root", tmp_path), ["pytorch/vision/issues/7545", "car_ims.tgz"]
    )


def test_words_that_are_not_known(here: Here, tmp_path: Path) -> None:
    assert_refused(here("datasets", "prepare", "cab", "--root", tmp_path), ["cab is not a known", "cub, cars, sop"])
    assert_refused(here("datasets", "prepare", "cub"), ["--root is missing", "--root data/cub"])
    assert_refused(here("datasets", "check", "cub"), ["--root is missing"])
    assert_refused(here("datasets", "check", "nowhere"), ["nowhere does not exist"])


def test_an_own_folder_of_that_name(here: Here, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cub").symlink_to(folder)
    assert "72 images of 12 classes" in here("datasets", "check", "cub", cwd=tmp_path).stdout


def test_glyphs_have_nothing_to_fetch(here: Here, tmp_path: Path) -> None:
    for name, what in (
        ("glyphs", "characters in 12 typefaces"),
        ("glyph-letters", "letters have 2 or more characters"),
    ):
        prepared = here("datasets", "prepare", name, "--root", tmp_path)
        assert prepared.returncode == 0
        assert what in prepared.stdout
        assert "Nothing to fetch" in prepared.stdout
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]  # both draw the same characters


def test_ctrl_c_says_how_to_go_on(here: Here, tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(seconds: float) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(time, "sleep", stop)
    site.breaks = [1000]
    assert_refused(here("datasets", "prepare", "cub", "--root", tmp_path / "data"), ["Stopped", "the same command"])
    monkeypatch.undo()
    assert (tmp_path / "data" / "CUB_200_2011.tgz.part").stat().st_size == 1000


def test_it_says_how_training_will_split_the_classes(here: Here, folder: Path) -> None:
    said = here("datasets", "check", folder).stdout
    assert "will test on 3 classes and select the epoch on 2 validation classes (--data.test_fraction, " in said
    assert "WARNING: with fewer than 20 test classes, results have no intervals" in said
