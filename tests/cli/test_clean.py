"""``proxemic clean`` as a user types it."""

import shutil
from pathlib import Path

import numpy as np

from command_line import Here, assert_refused, warm_proxemic


def test_a_wrong_label_and_a_copy_are_found_by_a_run(folder: Path, run: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    shutil.copytree(folder, photos)
    shutil.copy(photos / "class 01" / "2.png", photos / "class 01" / "again.png")
    shutil.move(photos / "class 04" / "3.png", photos / "class 09" / "wrong.png")
    result = warm_proxemic("clean", photos, "--model", run, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "73 photos: " in result.stdout.splitlines()[0]
    assert " 1 exact, " in result.stdout
    assert "cropped" in result.stdout
    lines = result.stdout.splitlines()
    suspects = lines[lines.index("Suspected labels") : lines.index("Duplicates")]
    assert any("wrong.png" in line for line in suspects)
    assert "again.png" in result.stdout
    assert f"Written: {tmp_path / 'out' / 'index.html'}" in result.stderr
    assert (
        (tmp_path / "out" / "labels.csv")
        .read_text()
        .startswith("path,label,suggested,score,example,suggested_example\n")
    )
    page = (tmp_path / "out" / "index.html").read_text()
    assert "wrong.png" in page
    assert "data:image/jpeg" in page


def test_refuses_in_a_sentence(here: Here, folder: Path, tmp_path: Path) -> None:
    for words, said in (
        ([tmp_path / "nothing", "--model", "run"], ["run is not a model"]),
        ([folder, "--model", folder], ["is not a model"]),
    ):
        result = here("clean", *words)
        result.stderr = result.stderr.removeprefix(f"Looking at {folder}\n").removeprefix(
            f"Looking at {tmp_path / 'nothing'}\n"
        )
        assert_refused(result, said)


def test_vectors_alone(here: Here, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", x[[*range(30), 4]])
    result = here("clean", tmp_path / "x.npy")
    assert result.returncode == 0, result.stderr
    assert "31 photos: 0 suspected labels, 1 exact, 0 near and 0 mirrored duplicates" in result.stdout
