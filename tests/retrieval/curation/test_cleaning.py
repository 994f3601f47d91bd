"""`clean` on errors that were planted in folders, tables and vectors, seen by a hand-made embedder."""

import base64
import io
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor, nn

from browser import PHONE, Opened, faults_of_access
from command_line import csv_rows
from images import write_folder
from proxemic.data import FilePixels, read_image
from proxemic.data.embeddings import write_embeddings
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.retrieval import Embedder
from proxemic.retrieval.curation import Cleaning, Duplicate, Outlier, Suspect, clean
from proxemic.retrieval.curation.findings import SHOWN


class Patches(nn.Module):
    """The colours of an image at 4 by 4 places, which is what its class is."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 4).flatten(1) - 0.5


def prepare(image: Image.Image) -> Tensor:
    array = np.array(image.convert("RGB").resize((16, 16), Image.Resampling.BOX))
    return torch.from_numpy(array).permute(2, 0, 1).float() / 255


@pytest.fixture
def embedder() -> Embedder:
    return Embedder(Patches(), prepare)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """12 classes of 6 pictures, with a wrong label, copies, an outlier and a file that is damaged."""
    root = write_folder(tmp_path / "photos")
    (root / "class 03" / "4.png").rename(root / "class 08" / "wrong.png")
    shutil.copy(root / "class 05" / "1.png", root / "class 05" / "copy.png")
    read_image(root / "class 06" / "0.png").save(root / "class 02" / "converted.bmp")
    large = read_image(root / "class 07" / "2.png").resize((64, 64), Image.Resampling.BICUBIC)
    ImageEnhance.Brightness(large).enhance(0.9).save(root / "class 07" / "near.jpg", quality=90)
    noise = np.random.default_rng(5).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    Image.fromarray(noise).resize((32, 32), Image.Resampling.NEAREST).save(root / "alone.png")
    (root / "class 00" / "damaged.png").write_bytes(b"no picture")
    return root


def found_of(cleaning: Cleaning) -> tuple[list[str], list[tuple[str, str, str]], list[str]]:
    def short(path: str) -> str:
        return "/".join(Path(path).parts[-2:])

    return (
        [short(label.path) for label in cleaning.labels],
        [(short(duplicate.path), short(duplicate.of), duplicate.kind) for duplicate in cleaning.duplicates],
        [short(outlier.path) for outlier in cleaning.outliers],
    )


def test_finds_what_was_planted_in_a_folder(planted: Path, embedder: Embedder, tmp_path: Path) -> None:
    notes: list[str] = []
    cleaning = clean(planted, embedder, out=tmp_path / "out", report=notes.append)
    labels, duplicates, outliers = found_of(cleaning)
    assert labels[0] in ("class 08/wrong.png", "class 02/converted.bmp")
    assert sorted(labels[:2]) == ["class 02/converted.bmp", "class 08/wrong.png"]
    wrong = next(label for label in cleaning.labels if label.path.endswith("wrong.png"))
    assert wrong.suggested == "class 03"
    assert [Path(name).parent.name for name, _ in wrong.examples] == ["class 08", "class 03"]
    assert wrong.example != wrong.path
    page = (tmp_path / "out" / "index.html").read_text()
    assert "labelled class 08, looks like class 03" in page
    assert 'alt="a photo of class 03"' in page
    assert duplicates[0] == ("class 06/0.png", "class 02/converted.bmp", "exact")  # of different labels: the worst
    assert cleaning.duplicates[0].labels_differ
    assert sorted(duplicates[1:]) == [
        ("class 05/copy.png", "class 05/1.png", "exact"),
        ("class 07/near.jpg", "class 07/2.png", "near"),
    ]
    assert outliers[0] == "photos/alone.png"
    assert [Path(name).name for name in cleaning.unreadable] == ["damaged.png"]
    assert cleaning.pictures == 76
    assert cleaning.summary().startswith("76 photos: ")
    assert "2 exact, 1 near and 0 mirrored duplicates (0 across splits, 1 of different labels)" in cleaning.summary()
    unreadable, embedded, written = notes
    assert unreadable == "1 photo cannot be read and is left out."
    assert embedded == "76 photos were embedded by the model, and 0 are known from before."
    assert written == f"Written: {tmp_path / 'out' / 'index.html'}"


class Colours(nn.Module):
    """The colours of an image at four heights, which its mirror image shares."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, (4, 1)).flatten(1) - 0.5


def test_mirrored_copies_are_found_and_cropped_ones_are_not(tmp_path: Path) -> None:
    rng, photos = np.random.default_rng(0), tmp_path / "photos"
    photos.mkdir()
    for number in range(30):
        small = Image.fromarray(rng.integers(0, 256, (5, 5, 3)).astype(np.uint8))
        image = small.resize((80, 60), Image.Resampling.BICUBIC)
        image.save(photos / f"{number:02d}.png")
        if number < 6:
            copy = image.resize((64, 48), Image.Resampling.BICUBIC)
            ImageOps.mirror(copy).save(photos / f"{number:02d}-mirrored.jpg", quality=80)
        elif number < 12:
            image.crop((16, 12, 80, 60)).save(photos / f"{number:02d}-cropped.png")
    (photos / "05-mirrored.jpg").rename(photos / "05-copy.jpg")
    image = read_image(photos / "05.png").resize((40, 30), Image.Resampling.BICUBIC)
    image.save(photos / "05-copy.jpg", quality=80)  # near, and not mirrored
    cleaning = clean(photos, Embedder(Colours(), prepare), report=lambda _: None)
    found = sorted(
        (*sorted([Path(duplicate.path).stem, Path(duplicate.of).stem]), duplicate.kind)
        for duplicate in cleaning.duplicates
    )
    assert found == [
        *((f"{number:02d}", f"{number:02d}-mirrored", "mirrored") for number in range(5)),
        ("05", "05-copy", "near"),
    ]
    assert "0 exact, 1 near and 5 mirrored duplicates" in cleaning.summary()
    assert "cropped" in cleaning.write(tmp_path / "out").read_text(), "the page says what is not found"


def test_a_weak_model_says_so_first(planted: Path, embedder: Embedder, tmp_path: Path) -> None:
    assert not clean(planted, embedder, report=lambda _: None).is_weak
    rng = np.random.default_rng(0)
    path, labels = tmp_path / "weak.parquet", [f"class {row % 8}" for row in range(80)]
    centres = rng.normal(size=(8, 6))[np.arange(80) % 8]

    def cleaned(noise: float, labels: list[str]) -> Cleaning:
        vectors = torch.from_numpy(centres + noise * rng.normal(size=(80, 6))).float()
        write_embeddings(path, Rows.of(vectors, label=labels))
        return clean(path)

    weak = cleaned(1.5, labels)
    assert weak.recall < 0.8
    assert weak.summary().startswith("The model is too weak to judge labels")
    strong = cleaned(0.1, labels)
    assert (strong.recall, strong.judged, len(strong.labels)) == (1.0, 80, 0)
    assert strong.summary().startswith("80 photos: ")
    wrong = cleaned(0.1, [*labels[1:24], *labels[:1], *labels[24:]])  # 24 of 80: more than a fifth
    assert len(wrong.labels) > 16
    assert wrong.is_weak


def test_duplicates_do_not_make_a_model_look_strong(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = torch.from_numpy(rng.normal(size=(40, 6))).float().repeat(2, 1)
    path = tmp_path / "copies.parquet"
    write_embeddings(path, Rows.of(vectors, label=[f"class {row % 8}" for row in range(40)] * 2))
    assert clean(path).recall < 0.5


def test_the_tables_hold_what_was_found_the_worst_first(planted: Path, embedder: Embedder, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    cleaning = clean(planted, embedder, out=out, report=lambda _: None)
    assert sorted(path.name for path in out.iterdir()) == [
        "duplicates.csv",
        "index.html",
        "labels.csv",
        "outliers.csv",
        "unreadable.csv",
    ]
    for name in ("labels", "outliers"):
        rows = csv_rows(out / f"{name}.csv")
        scores = [float(row["score"]) for row in rows]
        assert scores == sorted(scores, reverse=True)
        assert [row["path"] for row in rows] == [item.path for item in getattr(cleaning, name)]
    duplicates = csv_rows(out / "duplicates.csv")
    assert [row["kind"] for row in duplicates] == ["exact", "exact", "near"]
    assert duplicates[0]["label"] == "class 06"
    assert duplicates[0]["label_of"] == "class 02"
    assert duplicates[0]["split"] == ""
    assert [*csv_rows(out / "unreadable.csv")[0]] == ["path", "reason"]
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    clean(planted, embedder, out=out, report=lambda _: None)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def write_splits(tmp_path: Path) -> Path:
    root = write_folder(tmp_path / "splits" / "train")
    for number, name in ((0, "test"), (1, "validation")):
        folder = root.parent / name / "new"
        folder.mkdir(parents=True)
        shutil.copy(root / "class 01" / f"{number}.png", folder / f"{name}.png")
    return root.parent


def write_table(tmp_path: Path) -> Path:
    root = write_splits(tmp_path)
    lines = []
    for path in sorted(root.rglob("*.png"), reverse=True):  # the test comes before its original
        split = path.relative_to(root).parts[0]
        lines.append(f"{path.relative_to(root)},{split if split != 'validation' else 'val'}\n")
    table = root / "table.csv"
    table.write_text("path,split\n" + "".join(lines))
    return table


@pytest.mark.parametrize("write", [write_splits, write_table])
def test_duplicates_across_splits_need_no_labels(
    write: Callable[[Path], Path], embedder: Embedder, tmp_path: Path
) -> None:
    cleaning = clean(write(tmp_path), embedder)
    across = [duplicate for duplicate in cleaning.duplicates if duplicate.across_splits]
    assert cleaning.duplicates[:2] == tuple(across)
    assert [(Path(item.path).stem, item.split, item.split_of) for item in sorted(across, key=lambda one: one.path)] == [
        ("test", "test", "train"),
        ("validation", "validation", "train"),
    ]
    assert "(2 across splits, " in cleaning.summary()


def test_pictures_without_labels_are_judged_but_for_these(planted: Path, embedder: Embedder) -> None:
    files = sorted(map(str, planted.rglob("*.png")))
    cleaning = clean(files, embedder, report=lambda _: None)
    assert not cleaning.labels
    assert [(Path(duplicate.path).name, Path(duplicate.of).name) for duplicate in cleaning.duplicates] == [
        ("copy.png", "1.png")
    ]
    assert Path(cleaning.outliers[0].path).name == "alone.png"


def test_vectors_need_no_model(tmp_path: Path) -> None:
    x = torch.randn(60, 8) * 0.3 + torch.randn(6, 8)[torch.arange(60) % 6]
    labels = [f"class {number % 6}" for number in range(60)]
    labels[12] = "class 3"
    x[50] = x[8]
    x[30] = -x.sum(0)
    path = tmp_path / "vectors.parquet"
    write_embeddings(path, Rows.of(x, label=labels))
    cleaning = clean(path)
    rows = {f"{path}, row {row}": row for row in range(60)}
    assert 12 in [rows[label.path] for label in cleaning.labels[:2]]
    assert [(rows[duplicate.path], rows[duplicate.of], duplicate.look) for duplicate in cleaning.duplicates] == [
        (50, 8, None)
    ]
    assert rows[cleaning.outliers[0].path] == 30
    page = cleaning.write(tmp_path / "out").read_text()
    assert "data:image" not in page
    assert clean(path, out=None).pixels == {}


def test_refuses_in_a_sentence(planted: Path, embedder: Embedder, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.full((4, 2), np.nan, np.float32))
    with pytest.raises(ValueError, match="row 1: the vector has a number that is not finite"):
        clean(tmp_path / "x.npy")
    with pytest.raises(ValueError, match="batch_size is 0, but must be at least 1"):
        clean(planted, embedder, batch_size=0)
    with pytest.raises(UserError, match=r"damaged\.png cannot be read as a photo"):
        clean(planted / "class 00" / "damaged.png", embedder)
    with pytest.raises(UserError, match="could not be written"):
        clean(planted, embedder, out=planted / "alone.png", report=lambda _: None)


HOSTILE = '<script>alert("1")</script>&.png'


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def findings(tmp_path: Path) -> Cleaning:
    name = HOSTILE.replace("/", "")
    path = tmp_path / name
    Image.new("RGB", (400, 100), "red").save(path)
    gone = tmp_path / "gone.png"
    pixels = FilePixels([path, gone])
    names = {str(path): (pixels, 0), str(gone): (pixels, 1)}
    duplicate = Duplicate(1, str(path), str(gone), "near", 0.001, 0.1, "<b>", "shoe", "test", "train")
    suspects = (Suspect(str(path), "<i>hat</i>", "{{ 7 * 7 }}", 0.9),) * (SHOWN + 1)
    return Cleaning(5000, suspects, (duplicate,), (Outlier(str(path), "boot & lace", 7.0),), {"<u>": "damaged"}, names)


def test_names_are_text_and_pictures_are_in_the_page(findings: Cleaning, tmp_path: Path) -> None:
    page = findings.write(tmp_path).read_text()
    reader = Reader()
    reader.feed(page)
    assert not {"script", "b ", "i", "u", "link", "iframe"} & set(reader.tags)
    for text in ('<script>alert("1")<script>&.png', "<i>hat</i>", "{{ 7 * 7 }}", "test repeats train", "<b> and shoe"):
        assert text in reader.text
    assert "<u>: damaged" in reader.text
    assert "boot & lace" in reader.text
    assert f"The first {SHOWN} of {SHOWN + 1}" in reader.text
    sources = [value or "" for name, value in reader.attributes if name == "src"]
    assert len(sources) == SHOWN + 2  # of the duplicates one is gone
    assert all(source.startswith("data:image/jpeg;base64,") for source in sources)
    assert not re.search(r"https?://|url\(|@import", page)
    with Image.open(io.BytesIO(base64.b64decode(sources[0].partition(",")[2]))) as image:
        assert image.format == "JPEG"
        assert image.size == (96, 24)
    assert len(page) < 3000 * SHOWN


def test_the_page_of_nothing(tmp_path: Path) -> None:
    page = Cleaning(3, (), (), (), {}, {}).write(tmp_path).read_text()
    for kind in ("suspected labels", "duplicates", "outliers"):
        assert f"<p>No {kind} were found.</p>" in page
    assert "Unreadable" not in page


@pytest.mark.parametrize("look", [{}, {"color_scheme": "dark"}, PHONE], ids=["light", "dark", "phone"])
def test_the_page_in_a_browser(browse: Opened, findings: Cleaning, tmp_path: Path, look: dict[str, Any]) -> None:
    with browse(findings.write(tmp_path).as_uri(), **look) as page:
        assert faults_of_access(page) == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.locator("#content img").count() == SHOWN + 2
