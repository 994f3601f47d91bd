"""RecordIO files: written records are read again; damaged, short and foreign files are refused."""

import os
import struct
import traceback
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from data.record_writer import MAGIC, encode, header, write_records
from proxemic.data import EmbeddingDataset, ImageSet, Preprocessing
from proxemic.data.formats import recordio as module
from proxemic.data.formats.recordio import RecordIndex, read_record_index
from proxemic.data.reading import UnreadableImageError


def contents(index: RecordIndex) -> list[bytes]:
    """Return the content of each record, including its header, by its start and end in the file."""
    raw = index.pixels.path.read_bytes()
    ranges = zip(index.pixels.starts, index.pixels.ends, strict=True)
    return [module._content(raw[start:end]) for start, end in ranges]


labels = st.one_of(
    st.integers(0, 100_000).map(float), st.lists(st.integers(0, 100_000).map(float), min_size=1, max_size=4)
)
pieces = st.lists(st.one_of(st.just(MAGIC), st.binary(max_size=9)), max_size=6).map(b"".join)


@given(st.lists(st.tuples(labels, pieces), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, records: list[tuple[float | list[float], bytes]], random: Random
) -> None:
    written = [header(label) + content for label, content in records]
    keys = random.sample(range(50), len(written))
    index = read_record_index(write_records(tmp_path_factory.getbasetemp() / "any.rec", written, keys))
    order = np.argsort(keys)
    assert index.pixels.keys.tolist() == sorted(keys)
    assert contents(index) == [written[place] for place in order]
    for place, found, several in zip(order, index.labels.tolist(), index.labels_follow, strict=True):
        expected = records[place][0]
        assert several == isinstance(expected, list)
        first, second, *_ = [*expected, np.nan] if isinstance(expected, list) else [expected, np.nan]
        assert found[0] == first
        assert found[1] == second or (np.isnan(found[1]) and np.isnan(second))


@pytest.mark.parametrize(("part", "kind"), [(0, 2), (0, 3), (0, 4), (1, 1), (1, 0), (1, 7), (2, 2), (2, 1)])
def test_parts_in_another_order_are_refused(tmp_path: Path, part: int, kind: int) -> None:
    path = write_records(tmp_path / "parts.rec", [header(0.0) + MAGIC + b"abcd" + MAGIC + b"efgh"])
    file = bytearray(path.read_bytes())
    place = [index for index in range(0, len(file), 4) if file[index : index + 4] == MAGIC][part]
    file[place + 7] = kind << 5
    path.write_bytes(file)
    with pytest.raises(ValueError, match="record 0 at byte 0 cannot be read: "):
        read_record_index(path)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A file of records in one part or several, with one label or two."""
    images = [encode(Image.new("RGB", (2, 2), colour)) for colour in ("red", "blue")]
    parted = header(5.0, 2) + images[1] + bytes(-len(images[1]) % 4) + MAGIC + b"tail."
    written = [header([3.0, 4.0]), header([0.0, 0.0], 1) + images[0], parted]
    return write_records(tmp_path / "small.rec", written)


def test_a_file_cut_anywhere_is_refused(small: Path) -> None:
    whole = small.read_bytes()
    assert contents(read_record_index(small))
    for length in range(len(whole)):
        small.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"small\.rec is damaged, cut short or does not match its \.idx") as caught:
            read_record_index(small)
        assert "\n" not in str(caught.value)
    small.write_bytes(whole + whole[-4:])
    with pytest.raises(ValueError, match="damaged"):
        read_record_index(small)


def test_any_word_changed_is_refused_or_leaves_other_records_alone(small: Path) -> None:
    whole = small.read_bytes()
    before = contents(read_record_index(small))
    refused = 0
    for place in range(0, len(whole), 4):
        small.write_bytes(whole[:place] + struct.pack("<I", 0xFFFFFFFF) + whole[place + 4 :])
        after = None
        with suppress(ValueError):
            after = contents(read_record_index(small))
        if after is None:
            refused += 1
        else:
            assert sum(one != other for one, other in zip(before, after, strict=True)) <= 1
    assert refused >= 2 * 4 + 3, "magic and length of all parts, count of labels of all records"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it is empty"),
        ("0\n40\n", "its lines have 1 numbers"),
        ("0\t0\n1\t0\n", "offsets must be multiples of 4 from 0, none of them twice"),
        ("0\t0\n0\t40\n", "keys must be numbers from 0, none of them twice"),
        ("0\t40\n", r"its index goes from byte 40 to 40, but it has \d+, from 0"),
        ("0\t0\n1\t44\n", "record 0 at byte 0 cannot be read: it has 40 bytes, but the next begins, .* after 44"),
    ],
)
def test_a_wrong_index_is_refused(small: Path, text: str, message: str) -> None:
    small.with_suffix(".idx").write_text(text)
    with pytest.raises(ValueError, match=rf"small\.(rec|idx) .*{message}") as caught:
        read_record_index(small)
    assert "\n" not in str(caught.value)


def test_missing_files_are_named(small: Path) -> None:
    small.with_suffix(".idx").unlink()
    with pytest.raises(ValueError, match=r"small\.idx cannot be read: no such file; it belongs next to the \.rec"):
        read_record_index(small)
    with pytest.raises(ValueError, match=r"none\.rec cannot be read: no such file"):
        read_record_index(small.with_name("none.rec"))


def grey(level: int) -> bytes:
    return encode(Image.new("L", (8, 8), level))


PREPROCESSING = Preprocessing(size=8, resize=None, channels=1, mean=(0.0,), std=(1.0,), white=255)


@pytest.mark.filterwarnings("ignore:.*use of fork")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_record_that_is_no_image_is_named(tmp_path: Path, workers: int) -> None:
    path = write_records(tmp_path / "bad.rec", [header(0.0) + grey(1), header(0.0) + b"no image"], keys=[3, 8])
    images = ImageSet.from_names(read_record_index(path).pixels, ["a", "a"])
    loader = DataLoader(EmbeddingDataset(images, PREPROCESSING.evaluation()), batch_size=2, num_workers=workers)
    with pytest.raises(
        UnreadableImageError, match=r"bad\.rec, record 8, cannot be read as an image: its content is"
    ) as said:
        list(loader)
    traceback.clear_frames(said.tb)  # which hold the loading process until the garbage collector waits for it


def test_a_file_that_changes_afterwards_is_noticed(tmp_path: Path) -> None:
    path = write_records(tmp_path / "gone.rec", [header(0.0) + grey(1)])
    pixels = read_record_index(path).pixels
    os.truncate(path, 60)
    with pytest.raises(UnreadableImageError, match=r"gone\.rec, record 0, cannot be read as an image: it has "):
        _ = pixels[0]
    path.unlink()
    with pytest.raises(UnreadableImageError, match=r"record 0, cannot be read as an image: no such file"):
        _ = pixels[0]


def test_an_index_cut_anywhere_is_refused(small: Path) -> None:
    index = small.with_suffix(".idx")
    whole = index.read_text()
    # Without its last line break it is whole, of the last offset a part is missing, or a line.
    for length in range(len(whole) - 1):
        index.write_text(whole[:length])
        with pytest.raises(ValueError, match=r"small\.(rec|idx) (is|has) "):
            read_record_index(small)
