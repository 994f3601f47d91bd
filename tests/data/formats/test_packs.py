"""Packs of insightface: their content, and refused files."""

import io
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from proxemic.data import EmbeddingDataset, Preprocessing
from proxemic.data.faces import read_face_pack
from proxemic.data.formats import packs
from proxemic.data.formats.packs import PackPixels
from proxemic.data.reading import UnreadableImageError

IMAGES = [b"a", b"b", b"c", b"d"]
# As Python 2.7 writes numpy.dtype("u1"), and an array of no items before it is given its state.
U1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
REFUSED = r"a\.bin is refused: .*; if you trust .*, write it anew with each image as bytes"
DAMAGED = r"a\.bin is damaged or not a pickle of protocol 2 to 5 \(.+\): fetch it again\.$"


def pack(path: Path, content: object, protocol: int = 2) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


def array(content: bytes, *, writeable: bool = True, step: int = 1) -> np.ndarray:
    """A NumPy array of the bytes, optionally one that is not contiguous."""
    found = np.zeros(step * len(content), np.uint8)[::step]
    found[:] = np.frombuffer(content, np.uint8)
    found.flags.writeable = writeable
    return found


def read(path: Path) -> tuple[tuple[bytes, ...], list[bytes], list[bool]]:
    """Return the distinct images, the images of the pairs in order, and which pairs are the same."""
    found = read_face_pack(path)
    assert isinstance(found.pixels, PackPixels)
    encoded = found.pixels.contents
    places = [place for pair in zip(found.first, found.second, strict=True) for place in pair]
    return encoded, [encoded[place] for place in places], found.same.tolist()


def encode(image: Image.Image, format: str = "PNG") -> bytes:  # noqa: A002
    buffer = io.BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


@given(st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=6), st.integers(2, 5), st.data())
def test_pack_is_what_was_pickled(
    tmp_path_factory: pytest.TempPathFactory, half: list[bytes], protocol: int, data: st.DataObject
) -> None:
    kinds = (bytes, array, lambda item: array(item, writeable=False), lambda item: array(item, step=2))
    images = [data.draw(st.sampled_from(kinds))(item) for item in half]
    pairs = [image for number in range(len(half)) for image in (images[number], images[0])]  # one object many times
    same = data.draw(st.lists(st.booleans(), min_size=len(half), max_size=len(half)))
    flags = data.draw(st.sampled_from((list, np.array, lambda item: [*np.array(item)])))(same)
    encoded, found, flagged = read(pack(tmp_path_factory.getbasetemp() / "any.bin", (pairs, flags), protocol))
    assert found == [content for item in half for content in (item, half[0])]
    assert len(encoded) == len(set(half)), "each picture once"
    assert flagged == same


@pytest.mark.parametrize(
    "content",
    [
        # As Python 2.7's cPickle and pickle write (["\xff\xd8a", 256 * "b"], [True]), by protocol 2.
        b"\x80\x02]q\x01(U\x03\xff\xd8aq\x02T\x00\x01\x00\x00" + b"b" * 256 + b"q\x03e]q\x04\x88a\x86.",
        b"\x80\x02]q\x00(U\x03\xff\xd8aq\x01T\x00\x01\x00\x00" + b"b" * 256 + b"q\x02e]q\x03\x88a\x86q\x04.",
        b"\x80\x02](" + EMPTY + b"q\x01(K\x01K\x03\x85" + U1 + b"\x89U\x03\xff\xd8atbT\x00\x01\x00\x00" + b"b" * 256
        + b"e" + EMPTY + b"(K\x01K\x01\x85" + U1.replace(b"u1", b"b1") + b"\x89U\x01\x01tb\x86.",
        pickle.dumps(([array(b"\xff\xd8a"), b"b" * 256], np.array([True])), 3).replace(b"numpy._core", b"numpy.core"),
        pickle.dumps([(bytearray(b"\xff\xd8a"), b"b" * 256), [1]], 5),
    ],
)  # fmt: skip
def test_pack_of_old_python_and_numpy(tmp_path: Path, content: bytes) -> None:
    assert read(pack(tmp_path / "two.bin", content))[1:] == ([b"\xff\xd8a", b"b" * 256], [True])


@pytest.mark.parametrize(("number", "lengths"), [(23, [3, 3, 3] + [2] * 7), (4, [1] * 4)])
def test_pack_has_ten_consecutive_folds(tmp_path: Path, number: int, lengths: list[int]) -> None:
    folds = read_face_pack(pack(tmp_path / "a.bin", ([b"a"] * 2 * number, [True] * number))).folds
    assert folds.bincount().tolist() == lengths
    assert folds.tolist() == sorted(folds.tolist())


def test_pack_feeds_a_dataset_and_names_the_image_that_cannot_be_decoded(tmp_path: Path) -> None:
    red, grey = Image.new("RGB", (12, 10), (250, 0, 0)), Image.new("L", (12, 10), 128)
    images = [encode(red, "JPEG"), encode(grey), encode(red, "JPEG"), b"no image"]
    pairs = read_face_pack(pack(tmp_path / "faces.bin", (images, [False, True])))
    assert (pairs.first.tolist(), pairs.second.tolist()) == ([0, 0], [1, 2])
    dataset = EmbeddingDataset(pairs.images(), Preprocessing(size=8, resize=None).evaluation())
    assert dataset[0][0].shape == (3, 8, 8)
    np.testing.assert_allclose(np.asarray(pairs.images().pictures[0])[5, 5], [250, 0, 0], atol=4)
    for pictures, place in ((pairs.images().pictures, 2), (pairs.images().select([2]).pictures, 0)):
        with pytest.raises(UnreadableImageError, match=r"faces\.bin \(image 3, counted from 0\) cannot be read as an"):
            pictures[place]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ((IMAGES, [True]), "has 4 images for 1 flags, but a pack has two images per flag"),
        ((IMAGES, [True, 2]), "flag 1, counted from 0, is 2, but it must be a bool"),
        ((IMAGES, [b"t", True]), "flag 0, counted from 0, is of type bytes"),
        ((IMAGES, [True, array(b"b")]), "flag 1, counted from 0, is of type Array, but it must be a bool"),
        (([*IMAGES[:3], [b"d"]], [True, False]), "image 3, counted from 0, is of type list, but it must be the bytes"),
        (([*IMAGES[:3], np.array([True])], [True, False]), "image 3, counted from 0, is of type Array, but"),
        (5, "which holds two lists"),
        (b"\x80\x04](U\x01acnumpy\ndtype\ne](\x88e\x86.", r"image 1, counted from 0, is of type \w+, but"),
    ],
)
def test_pack_of_something_else_is_named(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.bin.* ?{message}") as caught:
        read_face_pack(pack(tmp_path / "a.bin", content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("plain", [True, False])
def test_pack_cut_anywhere_is_damaged(tmp_path: Path, plain: bool) -> None:
    for protocol in (2, 3, 4, 5):
        content = pickle.dumps((IMAGES, [True, False]) if plain else ([array(b"a"), b"b"], [np.True_]), protocol)
        file = pack(tmp_path / "a.bin", content)
        for length in reversed(range(len(content))):
            os.truncate(file, length)
            with pytest.raises(ValueError, match=DAMAGED):
                read_face_pack(file)
    with pytest.raises(ValueError, match=r"gone\.bin cannot be read: no such file"):
        read_face_pack(tmp_path / "gone.bin")


def test_pack_that_misuses_the_stack_is_damaged(tmp_path: Path) -> None:
    for program in (b".", b"a.", b"e.", b"K\x01K\x02a.", b"h\x05.", b"\x94.", b"(K\x01e.", b"]K\x01b.", b"]](K\x01tR."):
        with pytest.raises(ValueError, match=DAMAGED):
            read_face_pack(pack(tmp_path / "a.bin", b"\x80\x04" + program))


@given(
    st.sampled_from([(IMAGES, [True, False]), ([array(b"a")] * 2, np.array([True])), ([b"a", b"b"], [np.True_])]),
    st.integers(2, 5),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_pack_with_any_bytes_changed_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, plain: object, protocol: int, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(pickle.dumps(plain, protocol))
    for place, value in changes:
        content[place % len(content)] = value
    try:
        read_face_pack(pack(tmp_path_factory.getbasetemp() / "any.bin", bytes(content)))
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017


class Evil:
    def __init__(self, call: object, *arguments: object) -> None:
        self.call = call, arguments

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def hostile(marker: str) -> dict[str, bytes]:
    """Pickles that would make a folder, one for each instruction that calls a function."""
    text = b"X" + struct.pack("<I", len(marker)) + marker.encode()
    evaluated = f"__import__('os').mkdir({marker!r})"
    files = {
        "reduce, text": b"cposix\nmkdir\n(V" + marker.encode() + b"\ntR.",
        "inst": b"(V" + marker.encode() + b"\niposix\nmkdir\n.",
        "obj": b"(cposix\nmkdir\nV" + marker.encode() + b"\no.",
        "global": b"\x80\x02cos\nmkdir\n" + text + b"\x85R.",
        "stack global": b"\x80\x04\x8c\x02os\x8c\x05mkdir\x93" + text + b"\x85R.",
        "newobj": b"\x80\x02csubprocess\nPopen\n]" + b"X\x05\x00\x00\x00mkdira" + text + b"a\x85\x81.",
        "copyreg": b"\x80\x02ccopyreg\n__newobj__\ncos\nmkdir\n" + text + b"\x86R.",
        "build": b"\x80\x02ctypes\nSimpleNamespace\n)R}" + text + b"\x88sb.",
        "persistent": b"P" + marker.encode() + b"\n.",
        "binary persistent": b"\x80\x02" + text + b"Q.",
        "extension": b"\x80\x02\x82\x01.",
        "other codec": b"\x80\x02c_codecs\nencode\n" + text + b"X\x03\x00\x00\x00hex\x86R.",
        "other function": b"\x80\x02c_codecs\nlookup\n" + text + b"\x85R.",
        "codec made": b"\x80\x02c_codecs\nencode\n" + text + b"X\x06\x00\x00\x00latin1\x86\x81.",
    }
    for protocol in range(6):
        evil = Evil(os.mkdir, marker)
        files[f"image {protocol}"] = pickle.dumps(([b"a", evil], [True]), protocol)
        files[f"flag {protocol}"] = pickle.dumps(([b"a", b"b"], [Evil(eval, evaluated)]), protocol)
    return files


def test_hostile_pack_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name, content in hostile(str(marker)).items():
        with pytest.raises(ValueError, match=REFUSED) as caught:
            read_face_pack(pack(tmp_path / "a.bin", content))
        assert "\n" not in str(caught.value), name
        assert not marker.exists(), name
    for name in ("reduce, text", "inst", "obj", "global", "stack global", "image 2", "flag 4"):
        pickle.loads(hostile(str(marker))[name])
        marker.rmdir()  # which they would have made


class Other(np.ndarray):
    """A subclass, whose methods could run any code when its state is set."""


OTHER = {
    "objects": np.array([b"a", Evil(os.mkdir, "marker")], dtype=object),
    "a subclass": array(b"ab").view(Other),
    "fields": np.zeros(2, [("a", "u1"), ("b", "u1")]),
    "two dimensions": np.zeros((2, 3), np.uint8),
    "no dimension": np.array(3, np.uint8),
    "other order": np.zeros((2, 3), np.uint8, order="F"),
    "signed": np.zeros(2, np.int8),
    "words": np.zeros(2, np.uint16),
    "text": np.array(["ab"]),
    "a number": np.uint8(1),
    "a generator": np.random.default_rng(0),
}


@pytest.mark.parametrize("name", OTHER)
def test_pack_of_other_things_of_numpy_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for protocol in (2, 3, 4, 5):
        for content in (([b"a", OTHER[name]], [True]), ([b"a", b"b"], [OTHER[name]])):
            with pytest.raises(ValueError, match=REFUSED):
                read_face_pack(pack(tmp_path / "a.bin", content, protocol))
    assert not (tmp_path / "marker").exists()


TEXT = b"X\x06\x00\x00\x00marker"


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy.testing._private.utils\nrunstring\n" + TEXT + b"}\x86R",
        b"cnumpy\nload\n" + TEXT + b"\x85R",
        b"\x8c\x05numpy\x8c\x04load\x93" + TEXT + b"\x85R",
        b"cnumpy.core.multiarray\n_reconstruct\ncos\nmkdir\nK\x00\x85C\x01b\x87R",
        EMPTY.replace(b"ndarray", b"dtype"),
        b"cnumpy\nndarray\nK\x01\x85\x85R",  # the class itself called
        b"cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R",
        U1.replace(b"u1", b"u9"),
        U1 + b"]R",
        EMPTY + b"(K\x01K\x02\x85" + U1 + b"\x89U\x01atb",  # says to have more than it has
        EMPTY + b"(K\x01J\xff\xff\xff\xff\x85" + U1 + b"\x89U\x01atb",
        EMPTY + b"(K\x01K\x01\x85" + U1 + b"\x89](U\x01aetb",  # a list instead of bytes
        EMPTY + b"(K\x01K\x01\x85cnumpy\nndarray\n\x89U\x01atb",
        b"](K\x01K\x01\x85" + U1 + b"\x89U\x01atb",  # the state of an array, given to a list
        b"cnumpy.core.numeric\n_frombuffer\n(U\x01a" + U1 + b"K\x02\x85X\x01\x00\x00\x00CtR",
        b"cnumpy.core.multiarray\nscalar\n" + U1 + b"U\x01a\x86R",
        b"S'\\d'\n",  # an escape that Python warns of
        # A state would set attributes of a function that plain data is made with.
        *(
            name + state
            for name in (b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n")
            for state in (b"}X\x01\x00\x00\x00aK\x01sb", b"N}X\x01\x00\x00\x00aK\x01s\x86b")
        ),
    ],
)
def test_pack_that_comes_near_is_refused(tmp_path: Path, program: bytes) -> None:
    whole = b"\x80\x04](U\x01a" + program + b"e](\x88e\x86."
    with pytest.raises(ValueError, match=f"{REFUSED}|{DAMAGED}"):
        read_face_pack(pack(tmp_path / "a.bin", whole))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc",  # BINBYTES8 that claims exabytes
        b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"abc",
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"].",  # FRAME
        b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", 2**power) for power in range(10, 32)) + b".",  # LONG_BINPUT
        b"\x80\x02](" + b"2" * 10**5 + b"e.",  # DUP
        b"\x80\x02" + b"(" * 10**5 + b".",
        b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b"\x8b" + struct.pack("<i", 2**31 - 1) + b".",  # LONG1, LONG4
        b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b"abc",  # BYTEARRAY8
        b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",  # nested deeper than a recursion could go
        b"\x80\x05](\x96" + struct.pack("<Q", 10**5) + b"a" * 10**5 + b"\x94" + b"h\x00" * 1999 + b"e](\x88e\x86.",
        b"\x80\x02]q\x00h\x00ah\x00a.",  # a list of itself
        b"\x80\x05\x96" + struct.pack("<Q", 10**5) + b"\1" * 10**5 + b"q\x00" + U1.replace(b"u1", b"b1") + b"q\x01]("
        + b"cnumpy.core.numeric\n_frombuffer\n(h\x00h\x01J\xa0\x86\x01\x00\x85X\x01\x00\x00\x00CtR" * 2000
        + b"e](\x88e\x86.",  # arrays of bools, of the same bytes
        b"\x80\x02c_codecs\nencode\nq\x00X" + struct.pack("<I", 200_000) + b"a" * 200_000
        + b"X\x06\x00\x00\x00latin1\x86q\x01R](" + b"h\x00h\x01R" * 1000 + b"e.",  # one text encoded again and again
    ],
)  # fmt: skip
def test_pack_cannot_fill_the_memory(tmp_path: Path, content: bytes) -> None:
    path = pack(tmp_path / "a.bin", content)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"a\.bin (is|has|holds)"):
            read_face_pack(path)
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


def test_pack_too_large_or_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "a.bin", (IMAGES, [True, False]))
    monkeypatch.setattr(packs, "_MAX_INSTRUCTIONS", 12)
    with pytest.raises(ValueError, match="is refused: it has more than 12 instructions"):
        read_face_pack(path)
    monkeypatch.setattr(packs, "_MAX_BYTES", 10)
    with pytest.raises(ValueError, match=r"has \d+ bytes, but a pack has at most 10"):
        read_face_pack(path)
