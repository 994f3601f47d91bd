"""``proxemic search``, as it is typed."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from command_line import Here, assert_refused, warm_proxemic
from proxemic.retrieval import Gallery
from shelves import DIM, EACH


def test_one_picture(shelf: Path, tmp_path: Path) -> None:
    words = ["search", "shop", "photos/class 02/1.png", "-k", "3", "--html", tmp_path / "a.html", "--png"]
    result = warm_proxemic(*words, tmp_path / "a.png", cwd=shelf)
    assert result.returncode == 0, result.stderr
    first, timed, *sheets = result.stderr.splitlines()
    assert first == "Searching shop"
    assert re.fullmatch(r"Searched \d+ vectors in \d+\.\d seconds; 1 query embedded by torch", timed)
    assert sheets == [f"{tmp_path}/a.{end} shows them" for end in ("html", "png")]
    rows = [line for line in result.stdout.splitlines() if "│" in line]
    assert len(rows) == 3
    assert "0.0000" in rows[0]
    assert "class 02/1.png" in rows[0]
    assert f"Paths are relative to {shelf}/photos" in result.stdout
    assert all((tmp_path / f"a.{end}").stat().st_size > 1000 for end in ("html", "png"))


def test_many_with_conditions(shelf: Path, tmp_path: Path, here: Here) -> None:
    (tmp_path / "bad.png").write_text("x")
    words = ["photos/class 00", "photos/class 01/*.png", tmp_path / "bad.png", "gone.png", "--format", "json"]
    where = ["--where", "label=class 05", "--where", "label=class 06"]
    result = here("search", "shop", *words, *where, "-k", "99", cwd=shelf)
    assert result.returncode == 0, result.stderr
    assert "2 queries cannot be read: " in result.stderr
    content = json.loads(result.stdout)
    assert len(content) == 2 * EACH
    assert all(len(item["hits"]) == 2 * EACH for item in content)
    assert {hit["label"] for item in content for hit in item["hits"]} == {"class 05", "class 06"}
    for item in content:
        distances = [hit["distance"] for hit in item["hits"]]
        assert distances == sorted(distances)


def test_vectors_and_nothing_found(shelf: Path, tmp_path: Path, here: Here) -> None:
    np.save(tmp_path / "new.npy", np.ones((2, DIM)))
    result = here("search", shelf / "shop", tmp_path / "new.npy", "-k", "1", "--format", "csv")
    assert len(result.stdout.splitlines()) == 3
    result = here("search", shelf / "shop", tmp_path / "new.npy", "--where", "label=none")
    assert (result.returncode, result.stdout) == (0, "nothing found\n")
    assert "has no photos that meet the conditions" in result.stderr
    Gallery.create(tmp_path / "empty", dim=DIM)
    result = here("search", tmp_path / "empty", tmp_path / "new.npy", "--format", "json")
    assert [load["hits"] for load in json.loads(result.stdout)] == [[], []]
    assert "has no photos: add some first" in result.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("shop torn.png gone.png", ["torn.png cannot be read as a photo", "nor any of 1 more"]),
        ("shop photos --where color=red", ["no column 'color'"]),
        ("shop photos --html page.txt", ["page.txt", "must end in .html"]),
        ("shop short.npy", ["of shape [2, 2], but those of shop are floats [rows, 6]"]),
    ],
)
def test_bad_input_is_one_sentence(shelf: Path, tmp_path: Path, here: Here, words: str, told: list[str]) -> None:
    for name in ("photos", "shop"):
        (tmp_path / name).symlink_to(shelf / name)
    np.save(tmp_path / "short.npy", np.ones((2, 2)))
    (tmp_path / "torn.png").write_bytes(b"\x89PNG")
    assert_refused(here("search", *words.split(), cwd=tmp_path), told)
