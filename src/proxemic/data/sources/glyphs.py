"""Glyphs: characters rendered from matplotlib's fonts, a data set without a download."""

import hashlib
import unicodedata
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL import Image, ImageDraw, ImageFont, features
from torch import Tensor

from proxemic.caches import cache_folder
from proxemic.data.images import ImageSet, ImageSource, Splits
from proxemic.data.pixels import ArrayPixels
from proxemic.data.rows import Rows
from proxemic.data.splits import hold_out
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import write_atomically
from proxemic.ranges import SEEDS, check_fields

FACES = tuple(
    f"DejaVu{family}{style}"
    for family, slanted in (("Sans", "Oblique"), ("SansMono", "Oblique"), ("Serif", "Italic"))
    for style in ("", "-Bold", f"-{slanted}", f"-Bold{slanted}")
)
"""The typefaces, in the order of each character's images."""

_SIZE = 32
_FORMAT_VERSION = 1
_RANGES = {
    "train_classes": "[2, inf)", "test_classes": "[2, inf)", "validation_fraction": "[0, 1)", "split_seed": SEEDS,
}  # fmt: skip

Codes = Int64[np.ndarray, " characters"]
Rasters = UInt8[np.ndarray, "characters faces height width"]


@dataclass(frozen=True)
class Glyphs(ImageSource):
    """Characters as classes, each in the 12 DejaVu typefaces: bright on black, 32 by 32 pixels.

    The classes are the letters, numbers and symbols of all 12 faces, centred by their text boxes. If several characters
    share an image in any face (Latin A, Greek Α, Cyrillic А), only the one with the lowest code point is kept, so that
    no image belongs to two classes and a perfect score is possible. A fixed half of the characters is for training, the
    other half for the test. The attributes of the images are those of the typefaces: ``family``, ``weight`` and
    ``slant``.

    Args:
        train_classes: Characters to take from the training half; None for all.
        test_classes: Characters to take from the test half; None for all.
        validation_fraction: Fraction of the training characters held out for validation, 0 (none) to below 1.
        split_seed: Seed of the random choice of those held out.
        cache_dir: Folder for the rendered characters; None for the user's cache folder.

    Raises:
        ValueError: If a number is out of range, or (on load) a half has fewer characters than asked for.

    >>> splits = Glyphs(train_classes=16, test_classes=8).load()
    >>> splits.train.num_classes, splits.validation.num_classes, len(splits.test)
    (8, 8, 96)
    """

    train_classes: int | None = None
    test_classes: int | None = None
    validation_fraction: float = 0.5
    split_seed: int = 0
    cache_dir: Path | None = None

    def __post_init__(self) -> None:
        check_fields(self, "data", **_RANGES)

    def load(self) -> Splits:
        codes, rasters, notes = draw_characters(self.cache_dir)
        counts = {"train_classes": self.train_classes, "test_classes": self.test_classes}
        halves = _first_of_halves([b"%d" % code for code in codes], counts, "characters")
        train, test = (
            image_set(rasters[half], torch.arange(len(half)), tuple(map(character_name, codes[half].tolist())))
            for half in map(sorted, halves)
        )
        note = (
            f"{len(codes):,} characters in {len(FACES)} typefaces look different; "
            f"{train.num_classes:,} are for training and validation, {test.num_classes:,} others for the test."
        )
        train, validation = hold_out(train, self.validation_fraction, self.split_seed)
        return Splits(train, validation, test, (note, *notes))


def _first_of_halves(keys: Sequence[bytes], counts: Mapping[str, int | None], what: str) -> list[list[int]]:
    """Split the indices of keys into halves by hash, since halves by code point would separate whole scripts.

    ``counts`` says how many indices of each half to return; None returns all.
    """
    order = sorted(range(len(keys)), key=lambda place: hashlib.sha256(keys[place]).digest())
    halves = [order[: len(order) // 2], order[len(order) // 2 :]]
    for half, (name, count) in zip(halves, counts.items(), strict=True):
        if count is not None and count > len(half):
            raise ValueError(f"{name} is {count}, but that half has {len(half)} {what}: lower it, or null for all.")
    return [half[:count] for half, count in zip(halves, counts.values(), strict=True)]


def character_name(code: int) -> str:
    """Return the code point and the character itself.

    >>> character_name(65)
    'U+0041 A'
    """
    return f"U+{code:04X} {chr(code)}"


def image_set(
    rasters: Rasters,
    labels: Int64[Tensor, " characters"],
    class_names: tuple[str, ...],
    attributes: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> ImageSet:
    """Build an image set of characters, one image per typeface, with attributes of characters and typefaces."""
    faces = range(len(FACES))
    of_faces = {
        "family": [("sans", "mono", "serif")[face // 4] for face in faces],
        "weight": [("regular", "bold")[face % 2] for face in faces],
        "slant": [("upright", "slanted")[face % 4 // 2] for face in faces],
    }
    columns = {name: [text for text in texts for _ in faces] for name, texts in attributes.items()}
    columns |= {name: texts * len(rasters) for name, texts in of_faces.items()}
    rows = Rows.of(ArrayPixels(rasters.reshape(-1, _SIZE, _SIZE)), **columns)
    return ImageSet(rows, labels.repeat_interleave(len(FACES)), class_names)


def draw_characters(folder: Path | None) -> tuple[Codes, Rasters, tuple[str, ...]]:
    """Return code points and images of all characters, from a cache in the folder if possible, and notes."""
    fonts = _font_files()
    digest = hashlib.sha256(f"{_FORMAT_VERSION} {_SIZE} {unicodedata.unidata_version}".encode())
    digest.update(f"{features.version('pil')} {features.version('freetype2')}".encode())
    for font in fonts:
        digest.update(font.read_bytes())
    folder = Path(folder or cache_folder(""))
    path = folder / f"glyphs-{digest.hexdigest()[:16]}.npz"
    try:
        # Opened here, as NumPy leaves a file open that turns out to be damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            codes, rasters = stored["codes"], stored["rasters"]
        if rasters.shape == (len(codes), len(FACES), _SIZE, _SIZE) and rasters.dtype == np.uint8:
            return codes, rasters, ()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        pass  # absent, or damaged: rendering again takes a second
    codes, rasters = render(fonts)
    try:
        with write_atomically(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, codes=codes, rasters=rasters)
    except UserError as error:
        return codes, rasters, (f"Rendered characters could not be kept for the next time: {error}",)
    return codes, rasters, ()


def _font_files() -> list[Path]:
    package = find_spec("matplotlib")  # not imported, as only its fonts are needed
    with optional_dependency("train"):
        if package is None:
            raise ModuleNotFoundError(name="matplotlib")
    folder = Path(str(package.origin)).parent / "mpl-data" / "fonts" / "ttf"
    files = [folder / f"{face}.ttf" for face in FACES]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise ValueError(
            f"{folder} lacks {', '.join(missing)}, which Glyphs is drawn with: install matplotlib from PyPI, "
            "which brings these fonts."
        )
    return files


def render(fonts: Sequence[Path]) -> tuple[Codes, Rasters]:
    """Draw in each font the characters that all fonts have, in order of code points, without look-alikes."""
    from matplotlib.ft2font import FT2Font

    shared = set.intersection(*(set(FT2Font(str(font)).get_charmap()) for font in fonts))
    faces = [ImageFont.truetype(font, int(0.6 * _SIZE), layout_engine=ImageFont.Layout.BASIC) for font in fonts]
    codes: list[int] = []
    rasters: list[np.ndarray] = []
    taken: set[bytes] = set()
    for code in sorted(shared):
        if unicodedata.category(chr(code))[0] not in "LNS":
            continue
        drawn = [_draw(chr(code), face) for face in faces]
        keys = {raster.tobytes() for raster in drawn}
        if all(raster.any() for raster in drawn) and taken.isdisjoint(keys):
            taken |= keys
            codes.append(code)
            rasters.append(np.stack(drawn))
    return np.array(codes), np.stack(rasters)


def _draw(character: str, font: ImageFont.FreeTypeFont) -> UInt8[np.ndarray, "height width"]:
    image = Image.new("L", (_SIZE, _SIZE))
    canvas = ImageDraw.Draw(image)
    left, top, right, bottom = canvas.textbbox((0, 0), character, font=font)
    corner = ((_SIZE - right - left) / 2, (_SIZE - bottom - top) / 2)
    canvas.text(corner, character, font=font, fill=255)
    return np.asarray(image)


_CASES = {"Lu": "upper", "Ll": "lower", "Lt": "title"}


@dataclass(frozen=True)
class GlyphLetters(ImageSource):
    """Letters as classes, each of several characters: its upper and lower case, plain and with accents.

    This data set is for losses with several proxies per class, as each class has several known centres. The characters
    and typefaces are those of `Glyphs`. The class of a character is its base letter: A, a, À and ǻ are in one class. If
    characters share an image, such as the capitals of Latin B and Greek β, only the one with the lowest code point is
    kept, so some letters of later scripts lack a capital. A fixed half of the classes is for training, the other half
    for the test.

    The attributes of the images are ``character``, ``case``, ``accent`` (all combining marks together), and the
    ``family``, ``weight`` and ``slant`` of the typeface.

    Args:
        train_classes: Letters to take from the training half; None for all.
        test_classes: Letters to take from the test half; None for all.
        min_characters: Least number of characters of a letter, at least 1; letters with fewer are left out.
        validation_fraction: Fraction of the training letters held out for validation, 0 (none) to below 1.
        split_seed: Seed of the random choice of those held out.
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
        check_fields(self, "data", min_characters="[1, inf)", **_RANGES)

    def load(self) -> Splits:
        codes, rasters, notes = draw_characters(self.cache_dir)
        letters: dict[str, list[int]] = {}
        for place, code in enumerate(codes.tolist()):
            if unicodedata.category(chr(code)).startswith("L"):
                letters.setdefault(base_letter(chr(code)), []).append(place)
        letters = {letter: places for letter, places in letters.items() if len(places) >= self.min_characters}
        names = [*letters]
        counts = {"train_classes": self.train_classes, "test_classes": self.test_classes}
        halves = _first_of_halves([name.encode() for name in names], counts, "letters")
        train, test = (
            _take_letters(codes, rasters, {names[place]: letters[names[place]] for place in half}) for half in halves
        )
        characters = sum(map(len, letters.values()))
        taken = [len(images.rows.numbers("character")[1]) for images in (train, test)]
        note = (
            f"{len(letters):,} letters have {self.min_characters} or more characters that look different, "
            f"{characters:,} in all; {train.num_classes:,} of {taken[0]:,} characters are for training and "
            f"validation, {test.num_classes:,} others of {taken[1]:,} characters for the test."
        )
        train, validation = hold_out(train, self.validation_fraction, self.split_seed)
        return Splits(train, validation, test, (note, *notes))


def base_letter(character: str) -> str:
    """Remove combining marks and case from a letter, by canonical decomposition and case folding.

    >>> [base_letter(letter) for letter in "ÁǻΐЙςßø"]
    ['a', 'a', 'ι', 'и', 'σ', 'ss', 'ø']
    """
    # Marks are removed before case folding, which makes a letter of the Greek iota below another, and again after it.
    return _unmarked(_unmarked(character).casefold())


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def _unmarked(text: str) -> str:
    return "".join(part for part in unicodedata.normalize("NFD", text) if not _is_mark(part))


def _accent(character: str) -> str:
    marks = filter(_is_mark, unicodedata.normalize("NFD", character))
    return " and ".join(unicodedata.name(mark).removeprefix("COMBINING ").lower() for mark in marks) or "none"


def _take_letters(codes: Codes, rasters: Rasters, letters: dict[str, list[int]]) -> ImageSet:
    letters = dict(sorted(letters.items()))
    places = [place for characters in letters.values() for place in characters]
    characters = [chr(code) for code in codes[places].tolist()]
    attributes = {
        "character": [character_name(ord(character)) for character in characters],
        "case": [_CASES.get(unicodedata.category(character), "none") for character in characters],
        "accent": [_accent(character) for character in characters],
    }
    return image_set(
        rasters[places],
        torch.arange(len(letters)).repeat_interleave(torch.tensor([len(letter) for letter in letters.values()])),
        tuple(" ".join([*(f"U+{ord(item):04X}" for item in letter), letter]) for letter in letters),
        attributes,
    )
