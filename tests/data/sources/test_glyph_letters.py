import unicodedata
from pathlib import Path

import numpy as np
import pytest
import torch

from proxemic.data import GlyphLetters, Glyphs, ImageSet, Splits
from proxemic.data.sources.glyph_letters import base_letter
from proxemic.data.sources.glyphs import FACES


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def splits(cache: Path) -> Splits:
    return GlyphLetters(validation_fraction=0.0, cache_dir=cache).load()


def characters(images: ImageSet) -> list[str]:
    return [(text or "")[-1] for text in images.attributes["character"].texts()]


def test_the_classes_are_the_base_letters(splits: Splits) -> None:
    for images in (splits.train, splits.test_images):
        for label, name in enumerate(images.class_names):
            members = {each for each, of in zip(characters(images), images.labels.tolist(), strict=True) if of == label}
            assert len(members) >= 2
            assert {base_letter(each) for each in members} == {name.rpartition(" ")[2]}
    whole = {name: images for images in (splits.train, splits.test_images) for name in images.class_names}
    images = whole["U+0061 a"]
    label = images.class_names.index("U+0061 a")
    of_a = {each for each, of in zip(characters(images), images.labels.tolist(), strict=True) if of == label}
    assert {"A", "a", "À", "ā", "ǟ", "Ặ"} <= of_a
    assert not of_a & {"Α", "А", "а", "æ"}  # Greek and Cyrillic, which look the same, and another letter


def test_halves_share_no_letter_and_no_image(splits: Splits) -> None:
    sides = [{base_letter(each) for each in characters(images)} for images in (splits.train, splits.test_images)]
    assert not sides[0] & sides[1]
    assert abs(len(sides[0]) - len(sides[1])) <= 1
    owner: dict[bytes, str] = {}
    for images in (splits.train, splits.test_images):
        for place, character in enumerate(characters(images)):
            pixels = np.asarray(images.pictures[place])
            assert pixels.any()
            assert owner.setdefault(pixels.tobytes(), character) == character


def test_of_equal_images_the_one_of_the_lowest_code_point_is_kept(splits: Splits) -> None:
    present = {*characters(splits.train), *characters(splits.test_images)}
    assert {"A", "B", "a", "β", "ж", "Ж"} <= present
    assert not {"Α", "Β", "А", "В", "а", "\u212a"} & present  # the last is the Kelvin sign


def test_attributes_are_known_of_every_image(splits: Splits) -> None:
    images, case = splits.train, {"Lu": "upper", "Ll": "lower", "Lt": "title"}
    assert [*images.attributes] == ["character", "case", "accent", "family", "weight", "slant"]
    texts = {name: groups.texts() for name, groups in images.attributes.items()}
    for place, character in enumerate(characters(images)):
        marks = unicodedata.normalize("NFD", character)[1:]
        assert (texts["accent"][place] == "none") == (not marks)
        assert texts["case"][place] == case.get(unicodedata.category(character), "none")
    assert "grave accent" in images.attributes["accent"].names
    counts = torch.stack([images.labels, images.attributes["character"].numbers]).unique(dim=1, return_counts=True)[1]
    assert counts.unique().tolist() == [len(FACES)]


def test_the_note_counts_letters_and_characters(splits: Splits) -> None:
    classes = splits.train.num_classes + splits.test_images.num_classes
    assert splits.notes[0].startswith(f"{classes:,} letters have 2 or more characters")
    assert f"{len(splits.train) // 12:,} characters are for training" in splits.notes[0]


def test_few_classes_of_many_characters(cache: Path, splits: Splits) -> None:
    few = GlyphLetters(8, 6, min_characters=8, validation_fraction=0.25, cache_dir=cache).load()
    assert few.validation is not None
    assert (few.train.num_classes, few.validation.num_classes, few.test_images.num_classes) == (6, 2, 6)
    assert int(few.train.labels.bincount().min()) >= 8 * len(FACES)
    with pytest.raises(ValueError, match=r"train_classes is 5000, but that half has .* letters"):
        GlyphLetters(5000, cache_dir=cache).load()
    with pytest.raises(ValueError, match="min_characters is 0"):
        GlyphLetters(min_characters=0)
    assert len(list(cache.iterdir())) == 1
    Glyphs(8, 8, cache_dir=cache).load()  # draws the same characters
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("character", "base"), [("ᾳ", "α"), ("Ǆ", "ǆ"), ("ſ", "s"), ("İ", "i"), ("ı", "ı"), ("Å", "a"), ("Ё", "е")]
)
def test_base_letters_by_decomposition_and_folding(character: str, base: str) -> None:
    assert base_letter(character) == base_letter(base) == base
