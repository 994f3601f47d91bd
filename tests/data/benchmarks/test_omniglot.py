import hashlib
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.benchmarks.site import Site, serve
from proxemic.data import Omniglot
from proxemic.data.benchmarks import OriginalFile
from proxemic.data.benchmarks.omniglot import ARCHIVES
from proxemic.data.reading import UnreadableImageError

REAL = Path(__file__).parents[4] / "shared" / "data" / "omniglot"
FIRST, SECOND = "images_background_small1", "images_background_small2"


def write_tree(folder: Path, alphabets: dict[str, int]) -> None:
    for alphabet, characters in alphabets.items():
        for character in range(1, characters + 1):
            place = folder / alphabet / f"character{character:02}"
            place.mkdir(parents=True)
            for writer in (1, 2):
                image = Image.new("1", (105, 105), 1)
                image.paste(0, (10, 10, 10 + character, 10 + writer))
                image.save(place / f"0001_{writer:02}.png")


@pytest.fixture
def trees(tmp_path: Path) -> Path:
    write_tree(tmp_path / FIRST, {"Greek": 3, "Latin": 2})
    write_tree(tmp_path / SECOND, {"Greek": 3, "Tagalog": 4})
    return tmp_path


def pack(root: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in (FIRST, SECOND):
        with zipfile.ZipFile(target / f"{name}.zip", "w") as archive:
            for path in sorted((root / name).rglob("*")):
                archive.write(path, path.relative_to(root))
            archive.writestr(f"__MACOSX/{name}/Greek/character01/._0001_01.png", b"no image")


@pytest.mark.skipif(not REAL.is_dir(), reason="the real archives are not at hand")
def test_real_archives() -> None:
    splits = Omniglot(REAL).load()
    assert splits.validation is not None
    assert splits.train.num_classes + splits.validation.num_classes == 136
    assert len(splits.train) + len(splits.validation) == 2720
    assert (splits.test_images.num_classes, len(splits.test_images)) == (106, 2120)
    assert {name.split("/")[0] for name in splits.test_images.class_names} == {
        "Japanese_(katakana)",
        "Sanskrit",
        "Tagalog",
    }
    assert splits.notes[0].startswith("Greek, Latin left out of the test")
    picture = np.asarray(splits.test_images.pictures[0])
    assert picture.shape == (105, 105)
    assert 0 < (picture == 255).mean() < 0.2  # ink is bright and there is less of it than of paper


def test_trees_and_archives_give_the_same(trees: Path) -> None:
    pack(trees, trees / "packed" / "omniglot-py")
    for root in (trees, trees / "packed", trees / "packed" / "omniglot-py"):
        splits = Omniglot(root, validation_fraction=0.0).load()
        assert splits.validation is None
        assert splits.train.class_names == tuple(
            f"{alphabet}/character0{number}"
            for alphabet, count in (("Greek", 3), ("Latin", 2))
            for number in range(1, count + 1)
        )
        assert splits.test_images.class_names == tuple(f"Tagalog/character0{number}" for number in range(1, 5))
        assert splits.test_images.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
        ink = np.asarray(splits.test_images.pictures[5]) == 255
        assert ink[10:12, 10:13].all()
        assert ink.sum() == 6
        assert len(splits.notes) == 1


def test_missing_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=rf"has neither {FIRST}\.zip nor .*https://raw\.githubusercontent\.com/.*{FIRST}\.zip"
    ):
        Omniglot(tmp_path).load()


def test_damaged_archives(trees: Path, tmp_path: Path) -> None:
    packed = tmp_path / "packed"
    pack(trees, packed)
    whole = (packed / f"{FIRST}.zip").read_bytes()
    payload = whole.index(b"IDAT")
    holed = whole[:payload] + bytes(12) + whole[payload + 12 :]
    for content in (b"not a zip", whole[: len(whole) // 2], b"", holed):
        (packed / f"{FIRST}.zip").write_bytes(content)
        with pytest.raises(ValueError, match=rf"{FIRST}\.zip.* is damaged .* delete it and fetch it again"):
            Omniglot(packed).load()


def test_folders_that_are_not_omniglot(trees: Path) -> None:
    (trees / FIRST / "Greek" / "character01" / "0001_01.png").write_text("text")
    with pytest.raises(UnreadableImageError, match="0001_01"):
        Omniglot(trees).load()
    Image.new("1", (7, 7)).save(trees / FIRST / "Greek" / "character01" / "0001_01.png")
    with pytest.raises(ValueError, match="several sizes"):
        Omniglot(trees).load()
    (trees / "empty" / FIRST).mkdir(parents=True)
    (trees / "empty" / SECOND).mkdir()
    with pytest.raises(ValueError, match="not an Omniglot archive"):
        Omniglot(trees / "empty").load()


def test_test_without_new_characters(trees: Path, tmp_path: Path) -> None:
    write_tree(tmp_path / "same" / FIRST, {"Greek": 3})
    write_tree(tmp_path / "same" / SECOND, {"Greek": 3})
    with pytest.raises(ValueError, match="has 0 test characters that training lacks"):
        Omniglot(tmp_path / "same").load()


@pytest.fixture
def site(trees: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = trees / "server"
    pack(trees, folder)
    with serve(Site({path.name: path.read_bytes() for path in folder.iterdir()})) as site:
        publish(site, monkeypatch)
        yield site


def publish(site: Site, monkeypatch: pytest.MonkeyPatch, **changed: str) -> None:
    archives = tuple(
        OriginalFile(name, hashlib.md5(content).hexdigest(), f"{site.url}/{name}")
        for name, content in sorted(site.files.items())
    )
    monkeypatch.setitem(ARCHIVES, "small", (replace(archives[0], **changed), archives[1]))


def test_download(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "new" / "place"
    assert Omniglot(target, download=True).load().test_images.num_classes == 4
    assert sorted(path.name for path in target.iterdir()) == [f"{FIRST}.zip", f"{SECOND}.zip"]
    site.files.clear()
    assert Omniglot(target, download=True).load().test_images.num_classes == 4  # nothing to fetch any more


def test_full_subset_and_no_overlap(tmp_path: Path) -> None:
    write_tree(tmp_path / "images_background", {"Greek": 4})
    write_tree(tmp_path / "images_evaluation", {"Tengwar": 2})
    splits = Omniglot(tmp_path, subset="full").load()
    assert (splits.train.num_classes, splits.test_images.num_classes, splits.notes) == (2, 2, ())
