import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from proxemic.data import GlyphLetters, Glyphs, ImageSet, Splits
from proxemic.data.sources import glyphs as module
from proxemic.data.sources.glyphs import FACES, base_letter


@pytest.fixture(scope="module")
def splits(glyphs: Path) -> Splits:
    return Glyphs(validation_fraction=0.0, cache_dir=glyphs).load()


def stack(splits: Splits) -> np.ndarray:
    return np.stack(
        [np.asarray(part.pictures[index]) for part in (splits.train, splits.test_images) for index in range(len(part))]
    )


@pytest.fixture(scope="module")
def pictures(splits: Splits) -> np.ndarray:
    return stack(splits)


def test_about_two_thousand_characters_in_twelve_faces(splits: Splits) -> None:
    assert 2000 <= splits.train.num_classes + splits.test_images.num_classes <= 2099
    assert abs(splits.train.num_classes - splits.test_images.num_classes) <= 1
    assert splits.train.labels.bincount().unique().tolist() == [len(FACES)] == [12]
    assert f"{splits.train.num_classes:,} are for training" in splits.notes[0]
    names = splits.train.class_names + splits.test_images.class_names
    assert "U+0041 A" in names
    assert "U+0391 Α" not in names  # the Greek capital looks like the Latin one


def test_no_picture_is_blank_or_belongs_to_two_classes(splits: Splits, pictures: np.ndarray) -> None:
    assert pictures.reshape(len(pictures), -1).any(axis=1).all()
    labels = torch.cat([splits.train.labels, splits.test_images.labels + splits.train.num_classes]).tolist()
    owner: dict[bytes, int] = {}
    for picture, label in zip(pictures, labels, strict=True):
        assert owner.setdefault(picture.tobytes(), label) == label


def test_pictures_are_whole_and_letters_centred(splits: Splits, pictures: np.ndarray) -> None:
    ink = pictures > 0
    assert not np.any(ink[:, [0, -1]])
    assert not np.any(ink[:, :, [0, -1]])
    letter = splits.train.class_names.index("U+0041 A")
    for picture in ink[(splits.train.labels == letter).numpy().nonzero()[0]]:
        for line in (picture.any(axis=0), picture.any(axis=1)):
            assert abs(int(line.argmax()) - int(line[::-1].argmax())) <= 2


def test_attributes_are_those_of_the_faces(splits: Splits) -> None:
    letter = splits.train.class_names.index("U+0041 A")
    mine = (splits.train.labels == letter).nonzero().flatten()
    texts = [splits.train.rows.take(mine).texts(name) for name in ("family", "weight", "slant")]
    assert len(set(zip(*texts, strict=True))) == 12
    faces = dict(zip(FACES, mine.tolist(), strict=True))
    for face, *described in zip(FACES, *texts, strict=True):
        family = "mono" if "Mono" in face else "serif" if "Serif" in face else "sans"
        slant = "slanted" if "Oblique" in face or "Italic" in face else "upright"
        assert described == [family, "bold" if "Bold" in face else "regular", slant]
    weight = {face: np.asarray(splits.train.pictures[index]).mean() for face, index in faces.items()}
    assert weight["DejaVuSans-Bold"] > weight["DejaVuSans"]


def test_subsets_and_validation_are_class_disjoint(glyphs: Path, splits: Splits) -> None:
    small = Glyphs(256, 200, validation_fraction=0.25, cache_dir=glyphs).load()
    assert small.validation is not None
    parts = [set(part.class_names) for part in (small.train, small.validation, small.test_images)]
    assert [len(part) for part in parts] == [192, 64, 200]
    assert len(set.union(*parts)) == 456
    assert parts[0] | parts[1] <= set(splits.train.class_names)
    assert parts[2] <= set(splits.test_images.class_names)
    other = Glyphs(256, 200, validation_fraction=0.25, split_seed=1, cache_dir=glyphs).load()
    assert set(other.test_images.class_names) == parts[2]
    assert set(other.train.class_names) != parts[0]


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


@pytest.fixture(scope="module")
def letters(glyphs: Path) -> Splits:
    return GlyphLetters(validation_fraction=0.0, cache_dir=glyphs).load()


def characters(images: ImageSet) -> list[str]:
    return [(text or "")[-1] for text in images.rows.texts("character")]


def test_the_classes_are_the_base_letters(letters: Splits) -> None:
    for images in (letters.train, letters.test_images):
        for label, name in enumerate(images.class_names):
            members = {
                character
                for character, of in zip(characters(images), images.labels.tolist(), strict=True)
                if of == label
            }
            assert len(members) >= 2
            assert {base_letter(member) for member in members} == {name.rpartition(" ")[2]}
    whole = {name: images for images in (letters.train, letters.test_images) for name in images.class_names}
    images = whole["U+0061 a"]
    label = images.class_names.index("U+0061 a")
    of_a = {character for character, of in zip(characters(images), images.labels.tolist(), strict=True) if of == label}
    assert {"A", "a", "À", "ā", "ǟ", "Ặ"} <= of_a
    assert not of_a & {"Α", "А", "а", "æ"}  # Greek and Cyrillic, which look the same, and another letter


def test_halves_share_no_letter_and_no_image(letters: Splits) -> None:
    sides = [
        {base_letter(character) for character in characters(images)} for images in (letters.train, letters.test_images)
    ]
    assert not sides[0] & sides[1]
    assert abs(len(sides[0]) - len(sides[1])) <= 1
    owner: dict[bytes, str] = {}
    for images in (letters.train, letters.test_images):
        for place, character in enumerate(characters(images)):
            pixels = np.asarray(images.pictures[place])
            assert pixels.any()
            assert owner.setdefault(pixels.tobytes(), character) == character


def test_attributes_are_known_of_every_image(letters: Splits) -> None:
    images, case = letters.train, {"Lu": "upper", "Ll": "lower", "Lt": "title"}
    assert [*images.attributes] == ["character", "case", "accent", "family", "weight", "slant"]
    texts = {name: images.rows.texts(name) for name in images.attributes}
    for place, character in enumerate(characters(images)):
        marks = unicodedata.normalize("NFD", character)[1:]
        assert (texts["accent"][place] == "none") == (not marks)
        assert texts["case"][place] == case.get(unicodedata.category(character), "none")
    assert "grave accent" in texts["accent"]
    counts = torch.stack([images.labels, images.rows.numbers("character")[0]]).unique(dim=1, return_counts=True)[1]
    assert counts.unique().tolist() == [len(FACES)]


def test_few_classes_of_many_characters(glyphs: Path, letters: Splits) -> None:
    few = GlyphLetters(8, 6, min_characters=8, validation_fraction=0.25, cache_dir=glyphs).load()
    assert few.validation is not None
    assert (few.train.num_classes, few.validation.num_classes, few.test_images.num_classes) == (6, 2, 6)
    assert int(few.train.labels.bincount().min()) >= 8 * len(FACES)
    with pytest.raises(ValueError, match=r"train_classes is 5000, but that half has .* letters"):
        GlyphLetters(5000, cache_dir=glyphs).load()
    with pytest.raises(ValueError, match="min_characters is 0"):
        GlyphLetters(min_characters=0)
    assert len(list(glyphs.iterdir())) == 1
    Glyphs(8, 8, cache_dir=glyphs).load()  # draws the same characters
    assert len(list(glyphs.iterdir())) == 1


@pytest.mark.parametrize(
    ("character", "base"), [("ᾳ", "α"), ("Ǆ", "ǆ"), ("ſ", "s"), ("İ", "i"), ("ı", "ı"), ("Å", "a"), ("Ё", "е")]
)
def test_base_letters_by_decomposition_and_folding(character: str, base: str) -> None:
    assert base_letter(character) == base_letter(base) == base
