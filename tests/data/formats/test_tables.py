"""Columns of tables besides path and label: boxes, sequences, categories, splits, and unused ones."""

import gzip
import re
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import yaml
from PIL import Image

from proxemic.data import CacheConfig, FilePixels, ImageSet, OwnImages, Splits, read_image
from proxemic.data.embeddings import read_embeddings, read_labels
from proxemic.data.faces import read_own_pairs
from proxemic.data.formats.tables import IMAGE_COLUMNS, read_table, unused_note
from proxemic.data.pixels import CachedPixels
from proxemic.data.sources import check, load_query_gallery
from proxemic.data.sources.listing import list_pictures
from proxemic.retrieval import Gallery, relabel
from proxemic.runs.directory import split_fingerprint

CORNERS = ("x_1", "y_1", "x_2", "y_2")


def picture(path: Path, seed: int = 0, orientation: int = 1) -> Path:
    exif = Image.Exif()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, exif=exif)
    return path


def write(path: Path, columns: Sequence[str], *rows: Sequence[object]) -> Path:
    path.write_text("\n".join(",".join(map(str, row)) for row in (columns, *rows)) + "\n")
    return path


def load(table: Path) -> ImageSet:
    return OwnImages(table).load_unsplit()[0]


def test_a_box_is_cut_out_of_the_upright_picture_before_everything_else(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", orientation=6)  # 40 x 30 in the file, 30 x 40 upright
    rows = [("x", 0, 0, 10, 8), ("x", 5.9, 2, 30, 40), ("y", "", "nan", "NaN", ""), ("y", 0, 0, 10, 8)]
    table = write(tmp_path / "t.csv", ("path", "label", *CORNERS), *(("a.png", *row) for row in rows))
    images = load(write(tmp_path / "once.csv", ("path", "label", *CORNERS), *(("a.png", *row) for row in rows[:3])))
    whole = read_image(tmp_path / "a.png")
    assert whole.size == (30, 40)
    boxes = [(0, 0, 10, 8), (5, 2, 30, 40), None]  # fractions are cut off, as by OML
    for index, box in enumerate(boxes):
        assert images.pictures[index].tobytes() == (whole if box is None else whole.crop(box)).tobytes()
    assert isinstance(images.pixels, FilePixels)
    assert images.pixels.select([1]).boxes == (boxes[1],)
    assert images.pixels.names[1:3] == (f"{tmp_path}/a.png (5, 2, 30, 40)", f"{tmp_path}/a.png")
    report = check(table)
    assert (report.images, report.widths, report.heights) == (4, (10, 30), (8, 40))
    (group,) = report.duplicates  # the same box of the same file, not every box of it
    assert group.labels == ("x", "y")


def test_caches_keep_the_boxes_of_a_picture_apart(tmp_path: Path) -> None:
    path = picture(tmp_path / "a.jpg", orientation=3)
    boxes = [(0, 0, 40, 10), None, (0, 0, 39, 10), (20, 5, 24, 9)]
    images = ImageSet.from_names(FilePixels([path] * 4, boxes), ["a", "b", "a", "b"])
    splits = CacheConfig(8, tmp_path / "cache").apply(Splits(images, None, images.select([3, 1])))
    cached, test = splits.train.pixels, splits.test_images.pictures
    assert isinstance(cached, CachedPixels)
    assert [cached[index].size for index in range(4)] == [(32, 8), (10, 8), (31, 8), (4, 4)]
    assert cached[3].tobytes() == images.pictures[3].tobytes() == test[0].tobytes()
    assert cached.select([2]).boxes == (boxes[2],)
    # Another box is another cache; whole files have the one that they had.
    files = [{file.name for file in (tmp_path / "cache").iterdir()}]
    for other in ([(0, 0, 40, 11), *boxes[1:]], [None] * 4):
        changed = ImageSet.from_names(FilePixels([path] * 4, other), ["a", "b", "a", "b"])
        CacheConfig(8, tmp_path / "cache").apply(Splits(changed, None, None))
        files.append({file.name for file in (tmp_path / "cache").iterdir()})
    assert [len(file) for file in files] == [1, 2, 3]


@pytest.mark.parametrize(
    ("box", "words"),
    [
        ((0, 0, 41, 10), r"line 3: its box \(0, 0, 41, 10\) exceeds the upright image, 40 x 30 pixels, of .*b.png"),
        ((0, 0, 10, 31), "line 3: its box .* exceeds the upright image"),
        (
            (5, 0, 5.9, 10),
            "line 3: its box has x_1 5, y_1 0, x_2 5.9, y_2 10, but must have four numbers with 0 <= x_1 < x_2",
        ),
        ((-1, 0, 10, 10), "line 3: its box has x_1 -1"),
        ((1, 20, 10, 10), "line 3: its box has x_1 1, y_1 20"),
        ((1, "", 10, 10), "line 3: its box has x_1 1, y_1 empty, x_2 10, y_2 10, but must have four numbers"),
        ((1, "inf", 10, 10), "line 3: its box has x_1 1, y_1 inf"),
        ((1, "left", 10, 10), "line 3: its box has x_1 1, y_1 left"),
    ],
)
def test_a_wrong_box_is_refused_by_its_row(tmp_path: Path, box: Sequence[object], words: str) -> None:
    for name in "ab":
        picture(tmp_path / f"{name}.png")
    rows = [("a.png", "x", 0, 0, 40, 30), ("b.png", "x", *box), ("b.png", "y", 0, 0, 5, 5)]
    table = write(tmp_path / "t.csv", ("path", "label", *CORNERS), *rows)
    for read in (load, check):
        with pytest.raises(ValueError, match=words):
            read(table)
    with pytest.raises(ValueError, match=r"has only x_1, x_2 of a box: give x_1, y_1, x_2 and y_2, or none"):
        load(write(table, ("path", "label", "x_1", "x_2"), *(row[:4] for row in rows)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('a,x\n"b,x\nc,y\nd,y', "line 3: a quote is not closed"),
        ('a,x\n\nb,x\n"c,y\nd",y', "line 5: path has a line break"),
        ('a,x\nb,"x\nc,y\nd,y"', "line 3: label has a line break"),
        ('a,x\n"b,x\n"c",y\nd,y', "line 3: path has a line break"),
        ("a,x\nb,x,y", "line 3: the header has 2 columns, but this row has 3"),
    ],
)
def test_a_quote_that_is_not_closed_is_refused_by_its_line(tmp_path: Path, text: str, words: str) -> None:
    table = tmp_path / "t.csv"
    table.write_text("path,label\n" + text)
    with pytest.raises(ValueError, match=words) as caught:
        read_table(table)
    assert "\n" not in str(caught.value)


def test_backslashes_of_windows_are_explained(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", ("path", "label"), ("cats\\1.png", "cat"), ("dogs\\1.png", "dog"))
    with pytest.raises(ValueError, match=r"no such file; its path has backslashes, but folders are separated by /"):
        load(table)


def test_a_quoted_text_may_have_commas_quotes_and_lines(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text('path,label,note\n"a,1.png","5"" nail","two\nlines"\n\nb.png,5" nail,\n')
    rows = read_table(table)
    assert [*zip(rows.names, rows.labels, map(rows.place, range(2)), strict=True)] == [
        ("a,1.png", '5" nail', f"{table}, line 2"), ("b.png", '5" nail', f"{table}, line 5"),
    ]  # fmt: skip
    assert rows.texts("note") == ["two\nlines", None]


def test_texts_that_are_large_once_unpacked_are_refused(tmp_path: Path) -> None:
    text = pa.DictionaryArray.from_arrays(np.zeros(2**20, np.int32), ["x" * 2**16])  # 64 GB in some kB
    pyarrow.parquet.write_table(pa.table({"path": text, "label": text}), tmp_path / "t.parquet")
    assert (tmp_path / "t.parquet").stat().st_size < 2**20
    with pytest.raises(ValueError, match="has 68,719,476,736 bytes of text"):
        read_table(tmp_path / "t.parquet")


def test_sequences_categories_and_columns_that_are_not_used(tmp_path: Path) -> None:
    for number in range(8):
        picture(tmp_path / f"{number}.png", number)
    columns = ("path", "label", "sequence", "category", "subclass", "category_int", "note")
    said = ["7", "8", "", "7", "nan", "7", "7", "x"], ["cats", "cats", "dogs", "dogs", "", "cats", "cats", "dogs"]
    rows = [(f"{n}.png", "aabbccdd"[n], said[0][n], said[1][n], "mn"[n % 2], 0, "") for n in range(8)]
    table = write(tmp_path / "t.csv", columns, *rows)
    source = OwnImages(table, test_fraction=0.5, validation_fraction=0.0)
    images, notes = source.load_unsplit()
    assert notes == (f"{table} has columns that are not used: category_int, note.",)
    assert check(table).unused == ("category_int", "note")
    assert images.sequences is not None
    assert images.categories is not None
    assert images.attributes == ("subclass",)
    assert images.rows.texts("subclass") == [*"mnmnmnmn"]
    assert images.sequences.tolist() == [0, 1, -1, 0, -1, 0, 0, 2]
    assert images.categories.tolist() == [0, 0, 1, 1, -1, 0, 0, 1]
    assert images.category_names == ("cats", "dogs")
    assert images.select_classes([1, 3]).rows.texts("sequence") == [None, "7", "7", "x"]
    splits = source.load()
    assert splits.notes == notes
    # A class of one sequence has nothing to find, and runs know another sequence from theirs.
    alone = [(*row[:2], row[1], *row[3:]) for row in rows]
    with pytest.raises(ValueError, match="no query with another image of its class to find"):
        load(write(table, columns, *alone))
    bare = [row[:2] for row in rows]
    write(table, columns[:2], *bare)
    without = split_fingerprint(source.load())
    assert without != split_fingerprint(splits)
    flagged = write(tmp_path / "g.csv", ("is_query", "is_gallery", *columns), *((1, 0, *row) for row in rows[::2]))
    joined, notes = load_query_gallery(table, flagged)
    assert notes == (f"{flagged} has columns that are not used: is_query, is_gallery, category_int, note.",)
    assert joined.sequences is None  # what the queries' table says of an image of both goes
    picture(tmp_path / "9.png", 9)
    write(tmp_path / "g.csv", columns, ("9.png", "a", "7", "cats", "m", 0, ""))
    joined, notes = load_query_gallery(write(table, columns, *rows), tmp_path / "g.csv")
    assert joined.sequences is not None
    assert joined.rows.texts("sequence")[0] == joined.rows.texts("sequence")[-1] == "7"
    assert torch.equal(joined.sequences[[0, 3]], joined.sequences[[-1, -1]])


def test_a_sequence_on_both_sides_of_a_closed_set_is_said(tmp_path: Path) -> None:
    rows = [(picture(tmp_path / f"{n}.png", n), "ab"[n % 2], f"burst {n // 12}") for n in range(24)]
    table = write(tmp_path / "t.csv", ("path", "label", "sequence"), *rows)
    splits = OwnImages(table, hold_out="images", validation_fraction=0.0).load()
    assert splits.notes[0].startswith(
        "2 sequences have images in more than one of training, validation and test (burst"
    )


def test_one_split_of_a_table_is_loaded_alone(tmp_path: Path) -> None:
    for number in range(10):
        picture(tmp_path / f"{number}.png", number)
    files = [(f"{n}.png", "aabbccddee"[n]) for n in range(10)]
    rows = [(*file, "train", "", "") for file in files[:4]] + [(*file, "validation", True, True) for file in files[4:]]
    columns = ("path", "label", "split", "is_query", "is_gallery")
    source = OwnImages(write(tmp_path / "t.csv", columns, *rows))
    images, notes = source.load_split("test")
    assert images.class_names == ("c", "d", "e")
    assert notes[0].endswith("gives splits: its validation split, as there is no test, 6 of 10 images, is taken.")
    assert source.load_split("train")[0].class_names == ("a", "b")
    assert source.gives_splits()
    only_test = OwnImages(write(tmp_path / "t.csv", columns, *((*row[:2], "test", *row[3:]) for row in rows[4:])))
    assert only_test.load_split("test")[0].class_names == ("c", "d", "e")
    with pytest.raises(ValueError, match=r"no readable training image: .* load one split alone \(load_split"):
        only_test.load()
    with pytest.raises(ValueError, match=r"has no image in train: its splits are test"):
        only_test.load_split("train")
    unsplit = OwnImages(write(tmp_path / "t.csv", columns[:2], *(row[:2] for row in rows)))
    assert not unsplit.gives_splits()
    with pytest.raises(ValueError, match="gives no splits"):
        unsplit.load_split("test")


@pytest.mark.parametrize(
    ("name", "text", "encoding"),
    [
        ("semicolons.csv", 'path;label;note\n"a;1.png";owl, barn;1,5\nb.png;jay;2,5\n', "utf-8-sig"),
        ("tabs.csv", "Path\tLabel\tNote\na;1.png\towl, barn\t1,5\nb.png\tjay\t2,5\n", "utf-8"),
        ("tabs.tsv", "PATH\tLABEL\tnote\r\na;1.png\towl, barn\t1,5\r\nb.png\tjay\t2,5\r\n", "utf-16"),
        ("wide.csv", 'Path;label;note\n"a;1.png";owl, barn;1,5\nb.png;jay;2,5', "utf-16"),
        ("packed.csv.gz", 'path,Label,note\na;1.png,"owl, barn","1,5"\nb.png,jay,"2,5"\n', "utf-8"),
        ("packed.tsv.gz", "path\tLabel\tnote\na;1.png\towl, barn\t1,5\nb.png\tjay\t2,5\n", "utf-16"),
        ("several.csv", 'path,"label;note"\na;1.png,"owl, barn"\nb.png,jay\n', "utf-8"),
        ("old mac.csv", "path;label;note\ra,1.png;owl, barn;1,5\rb.png;jay;2,5\r", "utf-8"),
    ],
)
def test_tables_of_spreadsheets_are_read(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    content = text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    if name == "several.csv":
        assert read_table(tmp_path / name).texts("label;note") == ["owl, barn", "jay"]
        return
    rows = read_table(tmp_path / name, IMAGE_COLUMNS, ("path", "label"))
    assert rows.names == ["a,1.png" if "mac" in name else "a;1.png", "b.png"]
    assert rows.labels == ["owl, barn", "jay"]
    assert [word.lower() for word in rows.unused] == ["note"]
    assert rows.place(1).endswith("line 3")
    listed = list_pictures(tmp_path / name, missing=True)
    assert [*map(Path, listed.names)] == [tmp_path / text for text in rows.names]


def test_an_exact_name_of_a_column_comes_before_one_with_capitals(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", ("path", "Label", "label"), ("a.png", "x", "y"))
    assert (read_table(table).labels, read_table(table).texts("Label")) == (["y"], ["x"])
    with pytest.raises(ValueError, match="more than one column label"):
        read_table(write(table, ("path", "Label", "LABEL"), ("a.png", "x", "y")))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.xlsx", b"PK", r"spreadsheet program.* save it as CSV in UTF-8 \(in Excel: File, Save As"),
        ("t.csv", "path,label\na.png,Café\n".encode("latin-1"), "neither UTF-8 nor UTF-16: save it as CSV in UTF-8"),
        ("t.csv", b"path,label\n" + 30_000 * b"a.png,owl\n" + b"a.png,\xe9\n", "neither UTF-8 nor UTF-16"),
        ("t.tsv", "path\tlabel\na\tb\n".encode("utf-16")[:-1], "neither UTF-8 nor UTF-16"),
        ("t.csv.gz", b"path,label\n", "cannot be read"),
        ("t.csv.gz", gzip.compress(b"path,label\na,b\n" * 9, mtime=0)[:-12], "cannot be read"),
    ],
)
def test_what_is_no_table_is_refused_in_a_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    for read in (load, list_pictures, read_labels):
        with pytest.raises(ValueError, match=words) as caught:
            read(tmp_path / name)
        assert "\n" not in str(caught.value)


def test_labels_that_look_the_same_are_one_class(tmp_path: Path) -> None:
    nfc, nfd = "Caf\u00e9", "Cafe\u0301"
    labels = [nfc, nfd, f"{nfc}\u200b", "7", "7.0", "true", "True", "007", "1.1", "1.10", "a b", "a\u00a0b"]
    rows = [(f"{number}.png", label) for number, label in enumerate(labels)]
    joined = [nfc, nfc, nfc, "7", "7", "true", "true", "007", "1.1", "1.10", "a b", "a b"]
    read = read_table(write(tmp_path / "t.csv", ("path", "label"), *rows))
    assert read.labels == joined
    (note,) = read.notes
    assert note.startswith(f"{tmp_path / 't.csv'}: label has texts that look the same")
    assert "'Cafe\\u0301'" in note
    assert "7 (also '7.0')" in note
    flags = write(
        tmp_path / "flags.csv",
        ("label", "is_query", "is_gallery", "fold"),
        ("7.0", "True", 1, 1),
        ("8", "true", 0, 1.0),
    )
    assert read_table(flags).notes == ()
    # Numbers and truth values of Parquet are those of CSV.
    columns = {
        "label": [7.0, None, 7.5],
        "category": [True, False, None],
        "subclass": [Decimal("7.50"), Decimal(100), None],
    }
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    read = read_table(tmp_path / "t.parquet")
    assert [read.texts(name) for name in columns] == [["7", None, "7.5"], ["true", "false", None], ["7.5", "100", None]]
    pandas = write(tmp_path / "p.csv", ("label", "category"), ("7.0", True), ("", False), (7.5, ""))
    assert read_table(pandas).labels == ["7", None, "7.5"]
    for number, label in enumerate(labels[:2]):
        (tmp_path / "photos" / label).mkdir(parents=True)
        picture(tmp_path / "photos" / label / f"{number}.png", number)
    images, _ = OwnImages(
        write(
            tmp_path / "photos" / "more.csv",
            ("path", "label"),
            *(
                (f"{nfc}/0.png", nfc),
                (f"{nfd}/1.png", nfd),
                (f"{nfc}/0.png", nfc),
                (picture(tmp_path / "z.png", 9), "z"),
            ),
        )
    ).load_unsplit()
    assert images.class_names == (nfc, "z")
    listed = list_pictures(tmp_path / "photos")
    assert {*listed.labels} == {nfc}
    assert len(listed.notes) == 1
    gallery = Gallery.create(tmp_path / "shop", dim=2)
    added = gallery.add_vectors(np.eye(2), ["a", "b"], [nfd, "7.0"], {"red": ["True", None]})
    assert len(added.notes) == 0
    assert [
        hit.path for hit in gallery.search_vectors(np.eye(2)[:1], 2, {"label": [nfc, "7"], "red": ["TRUE", None]})[0]
    ] == ["a", "b"]


def files_of(source: Path) -> list[Path | str]:
    pixels = list_pictures(source).pixels
    assert isinstance(pixels, FilePixels)
    return [*pixels.paths]


def test_files_are_found_by_names_in_another_form_of_unicode(tmp_path: Path) -> None:
    nfc, nfd = "Caf\u00e9", "Cafe\u0301"
    (tmp_path / nfc).mkdir()  # made on Linux, with files from a Mac
    files = [picture(tmp_path / nfc / f"{nfd}{number}.png", number) for number in range(3)]
    for form in (nfc, nfd):
        names = [f"{form}/{form}{number}.png" for number in range(3)]
        table = write(
            tmp_path / "t.csv", ("path", "label"), *((name, "ab"[number > 0]) for number, name in enumerate(names))
        )
        assert files_of(table) == files
        assert len(load(table)) == 3
        (tmp_path / "list.txt").write_text("\n".join(names))
        assert files_of(tmp_path / "list.txt") == files
        assert files_of(tmp_path / names[0]) == files[:1]
        pairs = write(
            tmp_path / "pairs.csv",
            ("First", "Second", "Same", "Fold"),
            *((names[0], names[1 + number % 2], number % 2, number // 2) for number in range(4)),
        )
        pixels = read_own_pairs(pairs, tmp_path)[0].pixels
        assert isinstance(pixels, FilePixels)
        assert {*pixels.paths} == {*files}
    # Rows that are known by their names alone.
    gallery = Gallery.create(tmp_path / "shop", dim=2)
    gallery.add_vectors(np.eye(2), [f"{nfd}.png", "b.png"], ["x", "y"])
    assert relabel(gallery, write(tmp_path / "labels.csv", ("path", "label"), (f"{nfc}.png", "z"))) == 1
    vectors = tmp_path / "v.parquet"
    pyarrow.parquet.write_table(pa.table({"path": [f"{nfd}.png", "b.png"], "embedding": np.eye(2).tolist()}), vectors)
    labels = write(tmp_path / "labels.csv", ("path", "label"), ("b.png", "y"), (f"{nfc}.png", "x"))
    assert read_embeddings(vectors, labels).labels == ["x", "y"]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_the_time_is_linear_in_the_number_of_columns(tmp_path: Path, ending: str) -> None:
    names = ["path", "label", *(f"column {number}" for number in range(20_000))]
    table = tmp_path / f"t.{ending}"
    if ending == "csv":
        write(table, names, ["a.png", "x", *[1] * 20_000])
    else:
        pyarrow.parquet.write_table(pa.table({name: ["x"] for name in names}), table)
    began = time.process_time()
    rows = read_table(table, IMAGE_COLUMNS, ("path", "label"))
    seconds = time.process_time() - began
    assert len(rows.unused) == 20_000
    (note,) = unused_note(table, rows)
    assert len(note) < 500
    # Quadratic time is 2.5 s and more.
    assert seconds < 1


def test_the_example_of_the_page_runs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "own-tables.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    assert names["images"].rows.texts("sequence") == ["drive 1", "drive 2", None, None]
    (recipe,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    batches = yaml.safe_load(recipe)["batches"]
    assert batches["sampler"]["class_path"] == "proxemic.data.CategoryBalancedBatches"
    assert batches["size"] == 4 * 4 * batches["sampler"]["init_args"]["categories_per_batch"]
    for column in IMAGE_COLUMNS:
        assert f"`{column}`" in page
