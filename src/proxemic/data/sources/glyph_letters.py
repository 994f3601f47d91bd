"""Letters with their cases and accents as classes of several centres, drawn without a download."""

import unicodedata
from dataclasses import dataclass
from pathlib import Path

import torch

from proxemic.data.images import ImageSet, ImageSource, Splits
from proxemic.data.rows import RowGroups
from proxemic.data.sources.glyphs import (
    Codes,
    Rasters,
    character_name,
    check_class_counts,
    draw_characters,
    halve,
    image_set,
)
from proxemic.data.splits import check_seed, hold_out

_CASES = {"Lu": "upper", "Ll": "lower", "Lt": "title"}


@dataclass(frozen=True)
class GlyphLetters(ImageSource):
    """Letters as classes, each of several characters: its upper and lower case, plain and with accents.

    For losses with several proxies per class, as the images of a class have several known centres. The characters and
    typefaces are those of `Glyphs`. The class of a character is its base letter: A, a, À and ǻ are in one class. Two
    characters never share an image: of those that do, as the capitals of Latin B and Greek β, only the one with the
    lowest code point is kept, so that some letters of the later scripts lack a capital. Half of the classes, always the
    same, are for training and the other half for the test.

    The attributes of the images are ``character``, ``case``, ``accent`` (all combining marks together), and the
    ``family``, ``weight`` and ``slant`` of the typeface.

    Args:
        train_classes: Letters to take from the training half; None for all.
        test_classes: Letters to take from the test half; None for all.
        min_characters: Letters of fewer characters than this are left out; at least 1.
        validation_fraction: Part of the training letters held out for validation, 0 (none) to below 1.
        split_seed: Seed of the random choice of those that validate.
        cache_dir: Folder for the rendered characters; None for the user's cache folder.

    Raises:
        ValueError: If a number is out of range, or (on load) a half has fewer letters than asked for.

    >>> splits = GlyphLetters(min_characters=4).load()
    >>> "accent" in splits.train.attributes, set(splits.train.class_names) & set(splits.test.class_names)
    (True, set())
    """

    train_classes: int | None = None
    test_classes: int | None = None
    min_characters: int = 2
    validation_fraction: float = 0.25
    split_seed: int = 0
    cache_dir: Path | None = None

    def __post_init__(self) -> None:
        check_seed("data.split_seed", self.split_seed)
        check_class_counts(self.train_classes, self.test_classes)
        if self.min_characters < 1:
            raise ValueError(f"min_characters is {self.min_characters}, but a letter has at least 1 character.")

    def load(self) -> Splits:
        codes, rasters, notes = draw_characters(self.cache_dir)
        letters: dict[str, list[int]] = {}
        for place, code in enumerate(codes.tolist()):
            if unicodedata.category(chr(code)).startswith("L"):
                letters.setdefault(base_letter(chr(code)), []).append(place)
        letters = {letter: places for letter, places in letters.items() if len(places) >= self.min_characters}
        names = [*letters]
        halves = [[names[place] for place in half] for half in halve([name.encode() for name in names])]
        train, test = (
            _take(codes, rasters, {letter: letters[letter] for letter in sorted(_first(half, count, name))})
            for half, count, name in zip(
                halves, (self.train_classes, self.test_classes), ("train_classes", "test_classes"), strict=True
            )
        )
        characters = sum(map(len, letters.values()))
        counts = [len(images.attributes["character"].names) for images in (train, test)]
        note = (
            f"{len(letters):,} letters have {self.min_characters} or more characters that look different, "
            f"{characters:,} in all; {train.num_classes:,} of {counts[0]:,} characters are for training and "
            f"validation, {test.num_classes:,} others of {counts[1]:,} characters for the test."
        )
        train, validation = hold_out(train, self.validation_fraction, self.split_seed)
        return Splits(train, validation, test, (note, *notes))


def base_letter(character: str) -> str:
    """What is left of a letter without combining marks and case, by its canonical decomposition and case folding.

    >>> [base_letter(letter) for letter in "ÁǻΐЙςßø"]
    ['a', 'a', 'ι', 'и', 'σ', 'ss', 'ø']
    """
    # Marks first, as case folding makes a letter of the Greek iota below others; and again those that folding brings.
    return _unmarked(_unmarked(character).casefold())


def _unmarked(text: str) -> str:
    return "".join(
        each for each in unicodedata.normalize("NFD", text) if not unicodedata.category(each).startswith("M")
    )


def _accent(character: str) -> str:
    marks = [each for each in unicodedata.normalize("NFD", character) if unicodedata.category(each).startswith("M")]
    return " and ".join(unicodedata.name(mark).removeprefix("COMBINING ").lower() for mark in marks) or "none"


def _first(letters: list[str], count: int | None, name: str) -> list[str]:
    if count is not None and count > len(letters):
        raise ValueError(f"{name} is {count}, but that half has {len(letters)} letters: lower it, or null for all.")
    return letters[:count]


def _take(codes: Codes, rasters: Rasters, letters: dict[str, list[int]]) -> ImageSet:
    places = [place for characters in letters.values() for place in characters]
    characters = [chr(code) for code in codes[places].tolist()]
    attributes = {
        "character": [character_name(ord(each)) for each in characters],
        "case": [_CASES.get(unicodedata.category(each), "none") for each in characters],
        "accent": [_accent(each) for each in characters],
    }
    return image_set(
        rasters[places],
        torch.arange(len(letters)).repeat_interleave(torch.tensor([len(each) for each in letters.values()])),
        tuple(" ".join([*(f"U+{ord(each):04X}" for each in letter), letter]) for letter in letters),
        {name: groups for name, texts in attributes.items() if (groups := RowGroups.from_names(texts))},
    )
