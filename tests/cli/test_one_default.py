"""What several commands share is the same in all: the default model, ``--model``, pretrained names, held-out parts."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from command_line import Here, assert_refused
from images import write_folder
from proxemic.data import OwnImages
from proxemic.recipes import load
from proxemic.retrieval import Embedder
from proxemic.runs.pretrained import DEFAULT_MODEL, model_path

pytestmark = pytest.mark.cpu


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("default") / "photos", classes=6, images=4)


def test_clean_cluster_and_embed_take_the_default_model(photos: Path, tmp_path: Path, here: Here) -> None:
    for command, out in (("embed", "v.npy"), ("cluster", "groups.csv"), ("clean", "found")):
        words = {"embed": ("--workers", "0"), "cluster": ("--groups", "3")}.get(command, ())
        outs = tmp_path / out, tmp_path / f"named-{out}"
        for path, model in zip(outs, ((), ("--model", DEFAULT_MODEL)), strict=True):
            result = here(command, photos, *model, *words, "--out", path)
            assert result.returncode == 0, result.stderr
            assert (DEFAULT_MODEL in result.stderr) == (model == ())  # what is used is said
        files = [path / "duplicates.csv" if path.is_dir() else path for path in outs]
        assert files[0].read_bytes() == files[1].read_bytes()
    expected = Embedder.load(DEFAULT_MODEL).embed(sorted(photos.rglob("*.png"))).numpy()
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-5)
    np.save(tmp_path / "vectors.npy", expected)
    assert DEFAULT_MODEL not in here("cluster", tmp_path / "vectors.npy", "--groups", "3").stderr


def test_verify_takes_the_name_of_a_pretrained_network(photos: Path, tmp_path: Path, here: Here) -> None:
    lines = ["first,second,same,fold"]
    for number in range(6):
        other, fold = (number + 1) % 6, number % 2
        lines.append(f"class {number:02d}/0.png,class {number:02d}/1.png,true,{fold}")
        lines.append(f"class {number:02d}/0.png,class {other:02d}/0.png,false,{fold}")
    (tmp_path / "pairs.csv").write_text("\n".join(lines))
    words = ("--pairs", tmp_path / "pairs.csv", "--data", photos, "--format", "json")
    copy = shutil.copytree(model_path(DEFAULT_MODEL), tmp_path / "copy")
    named, by_path = (here("verify", model, *words) for model in (DEFAULT_MODEL, copy))
    assert named.returncode == 0, named.stderr
    assert json.loads(named.stdout) == json.loads(by_path.stdout) | {"model": DEFAULT_MODEL}
    assert_refused(here("verify", "timm:no_such_network", *words), ["no_such_network"])
    assert_refused(here("verify", DEFAULT_MODEL, *words[:-2], "--against", "paper"), ["--against", DEFAULT_MODEL])


def test_own_images_hold_out_as_much_as_the_recipes_for_them() -> None:
    own = load("own", data={"root": "photos"}).data
    assert isinstance(own, OwnImages)
    assert own == OwnImages(Path("photos"))
    assert (own.test_fraction, own.validation_fraction) == (0.25, 0.25)
