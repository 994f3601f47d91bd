from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from proxemic.data import Glyphs, Splits
from proxemic.data.sources import glyphs as module
from proxemic.data.sources.glyphs import FACES


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    Glyphs(cache_dir=folder).load()
    return folder


@pytest.fixture(scope="module")
def splits(cache: Path) -> Splits:
    return Glyphs(validation_fraction=0.0, cache_dir=cache).load()


def stack(splits: Splits) -> np.ndarray:
    return np.stack(
        [np.asarray(part.pictures[index]) for part in (splits.train, splits.test_images) for index in range(len(part))]
    )


def test_about_two_thousand_characters_in_twelve_faces(splits: Splits) -> None:
    assert 2000 <= splits.train.num_classes + splits.test_images.num_classes <= 2099
    assert abs(splits.train.num_classes - splits.test_images.num_classes) <= 1
    assert splits.train.labels.bincount().unique().tolist() == [len(FACES)] == [12]
    assert f"{splits.train.num_classes:,} are for training" in splits.notes[0]
    names = splits.train.class_names + splits.test_images.class_names
    assert "U+0041 A" in names
    assert "U+0391 Α" not in names  # the Greek capital looks like the Latin one


def test_no_picture_is_blank_or_belongs_to_two_classes(splits: Splits) -> None:
    pictures = stack(splits)
    assert pictures.reshape(len(pictures), -1).any(axis=1).all()
    labels = torch.cat([splits.train.labels, splits.test_images.labels + splits.train.num_classes]).tolist()
    owner: dict[bytes, int] = {}
    for picture, label in zip(pictures, labels, strict=True):
        assert owner.setdefault(picture.tobytes(), label) == label


def test_pictures_are_whole_and_letters_centred(splits: Splits) -> None:
    ink = stack(splits) > 0
    assert not np.any(ink[:, [0, -1]])
    assert not np.any(ink[:, :, [0, -1]])
    letter = splits.train.class_names.index("U+0041 A")
    for picture in ink[(splits.train.labels == letter).numpy().nonzero()[0]]:
        for line in (picture.any(axis=0), picture.any(axis=1)):
            assert abs(int(line.argmax()) - int(line[::-1].argmax())) <= 2


def test_attributes_are_those_of_the_faces(splits: Splits) -> None:
    letter = splits.train.class_names.index("U+0041 A")
    mine = (splits.train.labels == letter).nonzero().flatten()
    texts = [splits.train.attributes[name].take(mine).texts() for name in ("family", "weight", "slant")]
    assert len(set(zip(*texts, strict=True))) == 12
    faces = dict(zip(FACES, mine.tolist(), strict=True))
    for face, *described in zip(FACES, *texts, strict=True):
        family = "mono" if "Mono" in face else "serif" if "Serif" in face else "sans"
        slant = "slanted" if "Oblique" in face or "Italic" in face else "upright"
        assert described == [family, "bold" if "Bold" in face else "regular", slant]
    weight = {face: np.asarray(splits.train.pictures[index]).mean() for face, index in faces.items()}
    assert weight["DejaVuSans-Bold"] > weight["DejaVuSans"]


def test_subsets_and_validation_are_class_disjoint(cache: Path, splits: Splits) -> None:
    small = Glyphs(256, 200, validation_fraction=0.25, cache_dir=cache).load()
    assert small.validation is not None
    parts = [set(part.class_names) for part in (small.train, small.validation, small.test_images)]
    assert [len(part) for part in parts] == [192, 64, 200]
    assert len(set.union(*parts)) == 456
    assert parts[0] | parts[1] <= set(splits.train.class_names)
    assert parts[2] <= set(splits.test_images.class_names)
    other = Glyphs(256, 200, validation_fraction=0.25, split_seed=1, cache_dir=cache).load()
    assert set(other.test_images.class_names) == parts[2]
    assert set(other.train.class_names) != parts[0]


def test_too_many_or_too_few_classes(cache: Path) -> None:
    with pytest.raises(ValueError, match="test_classes is 5000, but that half has 10"):
        Glyphs(test_classes=5000, cache_dir=cache).load()
    with pytest.raises(ValueError, match="train_classes is 1"):
        Glyphs(train_classes=1)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def replace_by_text(path: Path) -> None:
    path.write_text("text")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def drop_an_array(path: Path) -> None:
    np.savez(path, codes=np.arange(3))


def wrong_shape(path: Path) -> None:
    np.savez(path, codes=np.arange(3), rasters=np.zeros((2, 12, 32, 32), dtype=np.uint8))


@pytest.mark.parametrize("damage", [truncate, replace_by_text, empty, flip_a_byte, drop_an_array, wrong_shape])
def test_a_damaged_cache_is_rendered_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path], None]
) -> None:
    calls: list[int] = []

    def render(fonts: list[Path]) -> tuple[np.ndarray, np.ndarray]:
        calls.append(len(fonts))
        generator = np.random.default_rng(0)
        return np.arange(65, 81), generator.integers(0, 255, (16, 12, 32, 32), dtype=np.uint8)

    monkeypatch.setattr(module, "render", render)
    source = Glyphs(cache_dir=tmp_path)
    expected = source.load()
    source.load()
    assert calls == [12]
    (path,) = tmp_path.iterdir()
    damage(path)
    assert np.array_equal(stack(source.load()), stack(expected))
    assert calls == [12, 12]
    source.load()
    assert calls == [12, 12]
    assert list(tmp_path.iterdir()) == [path]


def test_a_cache_that_cannot_be_written_is_only_noted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    splits = Glyphs(16, 16, cache_dir=tmp_path / "file" / "cache").load()
    assert splits.test_images.num_classes == 16
    assert "could not be kept" in splits.notes[1]


def test_missing_fonts_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matplotlib.get_data_path", lambda: str(tmp_path))
    with pytest.raises(ValueError, match=r"lacks DejaVuSans\.ttf, .*install matplotlib from PyPI"):
        Glyphs(cache_dir=tmp_path).load()
