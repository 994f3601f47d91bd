"""Pair lists and packs of faces: what is read, what is named as wrong, and what is refused without being run."""

import io
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from proxemic.data import EmbeddingDataset, FilePixels, Preprocessing, UnreadableImageError
from proxemic.data.faces import packs as module
from proxemic.data.faces import plain_pickle
from proxemic.data.faces.packs import EncodedPixels, read_face_pack
from proxemic.data.faces.pairs import FacePairs, read_lfw_pairs

SAME = ("Ada\t1\t2", "Bob\t4\t3")
DIFFERENT = ("Ada\t1\tBob\t4", "Cy\t12\tAda\t2")
FOLDS = "\n".join(["2\t2", *SAME, *DIFFERENT, "Cy\t1\t12", "Dee\t1\t2", *DIFFERENT, ""])


def write(folder: Path, text: str) -> Path:
    path = folder / "pairs.txt"
    path.write_text(text, encoding="utf-8")
    return path


def paths_of(pairs: FacePairs) -> list[tuple[str, str]]:
    assert isinstance(pairs.pixels, FilePixels)
    names = [path.as_posix() for path in pairs.pixels.paths]
    return [(names[one], names[two]) for one, two in zip(pairs.first, pairs.second, strict=True)]


def test_lfw_pairs(tmp_path: Path) -> None:
    pairs = read_lfw_pairs(write(tmp_path, FOLDS))
    assert paths_of(pairs)[:4] == [
        ("Ada/Ada_0001.jpg", "Ada/Ada_0002.jpg"),
        ("Bob/Bob_0004.jpg", "Bob/Bob_0003.jpg"),
        ("Ada/Ada_0001.jpg", "Bob/Bob_0004.jpg"),
        ("Cy/Cy_0012.jpg", "Ada/Ada_0002.jpg"),
    ]
    assert pairs.same.tolist() == [True, True, False, False] * 2
    assert pairs.folds.tolist() == [0] * 4 + [1] * 4
    assert len(pairs.pixels) == 8, "each picture once"


@pytest.mark.parametrize("text", [FOLDS.replace("\n", "\r\n"), "\ufeff" + FOLDS, FOLDS.replace("\t", "  ") + "\n\n"])
def test_lfw_pairs_of_other_editors(tmp_path: Path, text: str) -> None:
    (tmp_path / "other").mkdir()
    expected, found = read_lfw_pairs(write(tmp_path, FOLDS)), read_lfw_pairs(write(tmp_path / "other", text))
    assert paths_of(found) == paths_of(expected)
    assert torch.equal(found.folds, expected.folds)


def test_lfw_development_list_is_one_fold(tmp_path: Path) -> None:
    pairs = read_lfw_pairs(write(tmp_path, "\n".join(["2", *SAME, *DIFFERENT])), suffix=".png")
    assert pairs.folds.tolist() == [0] * 4
    assert paths_of(pairs)[3] == ("Cy/Cy_0012.png", "Ada/Ada_0002.png")


def test_lfw_images_are_looked_for(tmp_path: Path) -> None:
    path = write(tmp_path, FOLDS)
    wanted = (
        r"lacks 8 of the 8 images of .*pairs\.txt: Ada/Ada_0001\.jpg, Ada/Ada_0002\.jpg, Bob/Bob_0004\.jpg, \.\.\.\.$"
    )
    with pytest.raises(ValueError, match=wanted):
        read_lfw_pairs(path, tmp_path)
    for one, two in paths_of(read_lfw_pairs(path)):
        for name in (one, two):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            Image.new("RGB", (4, 4), "red").save(tmp_path / name)
    pairs = read_lfw_pairs(path, tmp_path)
    assert pairs.pixels[int(pairs.second[-1])].size == (4, 4)
    (tmp_path / "Dee" / "Dee_0002.jpg").unlink()
    with pytest.raises(ValueError, match=r"lacks 1 of the 8 images of .*: Dee/Dee_0002\.jpg\.$"):
        read_lfw_pairs(path, tmp_path)


LINES = FOLDS.splitlines()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], r"line 1: '' is neither `folds count` nor `count`"),
        (LINES[1:], r"line 1: 'Ada\\t1\\t2' is neither `folds count`"),
        (["0\t2", *LINES[1:]], "line 1: '0"),
        (["2\t2\t2", *LINES[1:]], "line 1: '2"),
        (
            [*LINES[:5], *LINES[6:]],
            r"line 7: 'Ada\\t1\\tBob\\t4' is a pair of two people, but fold 2 has had 1 of 2 pairs ",
        ),
        (
            [*LINES[:3], *LINES[4:]],
            r"line 5: 'Cy\\t1\\t12' is a pair of one person, but fold 1 has had 1 of 2 pairs of two",
        ),
        (LINES[:-1], r"ends at line 8 with 3 of the 4 pairs of fold 2, but .* announces 2 folds \(8 pairs\)"),
        (LINES[:1], r"ends at line 1 with 0 of the 4 pairs of fold 1"),
        ([*LINES, SAME[0]], "line 10: the list goes on after the 8 pairs that its first line announces"),
        ([*LINES[:2], "Bob\t4", *LINES[3:]], r"line 3: 'Bob\\t4' is neither `name n1 n2` nor `name1 n1 name2 n2`"),
        ([*LINES[:2], "Bob\t4\tx", *LINES[3:]], "line 3: .* is neither `name"),
        ([*LINES[:2], "../Bob\t4\t1", *LINES[3:]], "line 3: .* is neither `name"),
        ([*LINES[:3], "Ada\t1\tAda\t2", *LINES[4:]], "line 4: .* among the pairs of two people, but names one person"),
    ],
)
def test_lfw_list_that_is_wrong_names_the_line(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=rf"pairs\.txt.* ?{message}") as caught:
        read_lfw_pairs(write(tmp_path, "\n".join(lines)))
    assert "\n" not in str(caught.value)


def test_lfw_list_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.txt cannot be read: no such file"):
        read_lfw_pairs(tmp_path / "gone.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xd8\xff\x00")
    with pytest.raises(ValueError, match=r"binary\.txt is no list of pairs: it is not text in UTF-8"):
        read_lfw_pairs(tmp_path / "binary.txt")


def encode(image: Image.Image, format: str = "PNG") -> bytes:  # noqa: A002
    buffer = io.BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


def pack(path: Path, content: object, protocol: int = 2) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


@given(st.lists(st.binary(min_size=0, max_size=400), min_size=1, max_size=12), st.integers(2, 5), st.data())
def test_pack_is_what_was_pickled(
    tmp_path_factory: pytest.TempPathFactory, half: list[bytes], protocol: int, data: st.DataObject
) -> None:
    images = [b"%d" % len(half), *half, *half[1:], b"\xff" * 70_000]
    same = data.draw(st.lists(st.booleans(), min_size=len(half), max_size=len(half)))
    images = images[: 2 * len(half)]
    images = [image or b"x" for image in images]  # Python 3 has no way of its own for no bytes at protocol 2
    found = read_face_pack(pack(tmp_path_factory.getbasetemp() / "any.bin", (images, same), protocol))
    assert isinstance(found.pixels, EncodedPixels)
    encoded = found.pixels.encoded
    assert [encoded[place] for pair in zip(found.first, found.second, strict=True) for place in pair] == images
    assert len(encoded) == len(set(images)), "each picture once"
    assert found.same.tolist() == same


# As Python 2.7's cPickle and pickle write (["\xff\xd8a", 256 * "b"], [True]), by protocol 2.
PYTHON_2 = (
    b"\x80\x02]q\x01(U\x03\xff\xd8aq\x02T\x00\x01\x00\x00" + b"b" * 256 + b"q\x03e]q\x04\x88a\x86.",
    b"\x80\x02]q\x00(U\x03\xff\xd8aq\x01T\x00\x01\x00\x00" + b"b" * 256 + b"q\x02e]q\x03\x88a\x86q\x04.",
)


@pytest.mark.parametrize("content", PYTHON_2)
def test_pack_of_python_2(tmp_path: Path, content: bytes) -> None:
    found = read_face_pack(pack(tmp_path / "two.bin", content))
    assert isinstance(found.pixels, EncodedPixels)
    assert found.pixels.encoded == (b"\xff\xd8a", b"b" * 256)
    assert found.same.tolist() == [True]


def test_pack_with_numbers_and_byte_arrays(tmp_path: Path) -> None:
    found = read_face_pack(pack(tmp_path / "a.bin", [(bytearray(b"one"), b"two", b"3", b"4"), [0, 1]], protocol=5))
    assert isinstance(found.pixels, EncodedPixels)
    assert found.pixels.encoded == (b"one", b"two", b"3", b"4")
    assert found.same.tolist() == [False, True]


def array(content: bytes, *, writeable: bool = True, step: int = 1) -> np.ndarray:
    """The bytes as NumPy has them, perhaps as every second one of others."""
    found = np.zeros(step * len(content), np.uint8)[::step]
    found[:] = np.frombuffer(content, np.uint8)
    found.flags.writeable = writeable
    return found


@given(st.lists(st.binary(min_size=1, max_size=400), min_size=1, max_size=6), st.integers(2, 5), st.data())
def test_pack_of_numpy_arrays(
    tmp_path_factory: pytest.TempPathFactory, half: list[bytes], protocol: int, data: st.DataObject
) -> None:
    kinds = (bytes, array, lambda each: array(each, writeable=False), lambda each: array(each, step=2))
    images = [data.draw(st.sampled_from(kinds))(each) for each in half]
    pairs = [image for number in range(len(half)) for image in (images[number], images[0])]  # one object many times
    same = data.draw(st.lists(st.booleans(), min_size=len(half), max_size=len(half)))
    flags = data.draw(st.sampled_from((list, np.array, lambda each: [*np.array(each)])))(same)
    found = read_face_pack(pack(tmp_path_factory.getbasetemp() / "any.bin", (pairs, flags), protocol))
    assert isinstance(found.pixels, EncodedPixels)
    assert [found.pixels.encoded[place] for place in found.first] == half
    assert {found.pixels.encoded[place] for place in found.second} == {half[0]}
    assert found.same.tolist() == same


# As Python 2.7 writes ([numpy.frombuffer("\xff\xd8a", "u1")] * 2, numpy.array([True])), and NumPy 1 by Python 3.
U1 = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
OLD_NUMPY = (
    b"\x80\x02](" + EMPTY + b"q\x01(K\x01K\x03\x85" + U1 + b"\x89U\x03\xff\xd8atbh\x01e"
    + EMPTY + b"(K\x01K\x01\x85" + U1.replace(b"u1", b"b1") + b"\x89U\x01\x01tb\x86.",
    pickle.dumps(([array(b"\xff\xd8a")] * 2, np.array([True])), 3).replace(b"numpy._core", b"numpy.core"),
)  # fmt: skip


@pytest.mark.parametrize("content", OLD_NUMPY)
def test_pack_of_old_numpy(tmp_path: Path, content: bytes) -> None:
    found = read_face_pack(pack(tmp_path / "two.bin", content))
    assert isinstance(found.pixels, EncodedPixels)
    assert found.pixels.encoded == (b"\xff\xd8a",)
    assert found.same.tolist() == [True]


@pytest.mark.parametrize(("number", "lengths"), [(23, [3, 3, 3] + [2] * 7), (10, [1] * 10), (4, [1] * 4)])
def test_pack_has_ten_consecutive_folds(tmp_path: Path, number: int, lengths: list[int]) -> None:
    folds = read_face_pack(pack(tmp_path / "a.bin", ([b"a"] * 2 * number, [True] * number))).folds
    assert folds.bincount().tolist() == lengths
    assert folds.tolist() == sorted(folds.tolist())


def test_pack_feeds_a_dataset_and_names_the_image_that_cannot_be_decoded(tmp_path: Path) -> None:
    red, grey = Image.new("RGB", (12, 10), (250, 0, 0)), Image.new("L", (12, 10), 128)
    images = [encode(red, "JPEG"), encode(grey), encode(red, "JPEG"), b"no image"]
    pairs = read_face_pack(pack(tmp_path / "faces.bin", (images, [False, True])))
    assert pairs.first.tolist() == [0, 0]
    assert pairs.second.tolist() == [1, 2]
    dataset = EmbeddingDataset(pairs.images(), Preprocessing(size=8, resize=None).evaluation())
    assert dataset[0][0].shape == (3, 8, 8)
    assert pairs.pixels[1].mode == "L"
    np.testing.assert_allclose(np.asarray(pairs.pixels[0])[5, 5], [250, 0, 0], atol=4)
    with pytest.raises(
        UnreadableImageError, match=r"faces\.bin \(image 3, counted from 0\) cannot be read as an image"
    ):
        pairs.pixels[2]
    with pytest.raises(UnreadableImageError, match=r"image 3, counted from 0"):
        pairs.pixels.select([2])[0]
    with pytest.raises(UnreadableImageError, match=r"image 0, counted from 0"):  # the first of those that are alike
        read_face_pack(pack(tmp_path / "faces.bin", ([b"x", b"x"], [True]))).pixels[0]


IMAGES = [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ((IMAGES, [True]), "has 4 images for 1 flags, but a pack has two images a flag"),
        (([], []), "has 0 images for 0 flags"),
        ((IMAGES, [True, 2]), "flag 1, counted from 0, is 2, but it must be a bool"),
        ((IMAGES, [b"t", True]), "flag 0, counted from 0, is of type bytes"),
        (([*IMAGES[:3], [b"d"]], [True, False]), "image 3, counted from 0, is of type list, but it must be the bytes"),
        (([*IMAGES[:3], 7], [True, False]), "image 3, counted from 0, is 7, but"),
        (([*IMAGES[:3], None], [True, False]), "image 3, counted from 0, is of type NoneType, but"),
        (([*IMAGES[:3], "text"], [True, False]), "image 3, counted from 0, is of type str, but"),
        (([*IMAGES[:3], np.array([True])], [True, False]), "image 3, counted from 0, is a NumPy array of bool, but"),
        ((IMAGES, [True, array(b"b")]), "flag 1, counted from 0, is a NumPy array of uint8, but it must be a bool"),
        ((IMAGES, np.array([True])), "has 4 images for 1 flags"),
        ((IMAGES, array(b"\1\0")), "does not hold two lists"),
        (IMAGES, "does not hold two lists"),
        ((IMAGES, [True, False], [1]), "does not hold two lists"),
        ((b"ab", b"c"), "does not hold two lists"),
        (5, "does not hold two lists"),
    ],
)
def test_pack_of_something_else_is_named(tmp_path: Path, content: object, message: str) -> None:
    with pytest.raises(ValueError, match=rf"a\.bin.* ?{message}") as caught:
        read_face_pack(pack(tmp_path / "a.bin", content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("plain", [True, False])
def test_pack_cut_anywhere_is_damaged(tmp_path: Path, protocol: int, plain: bool) -> None:
    content = pickle.dumps((IMAGES, [True, False]) if plain else ([array(b"a"), b"b"], [np.True_]), protocol)
    for length in range(len(content)):
        with pytest.raises(
            ValueError, match=r"a\.bin is damaged or no pickle of protocol 2 to 5 \(.+\): fetch it again\.$"
        ):
            read_face_pack(pack(tmp_path / "a.bin", content[:length]))
    with pytest.raises(ValueError, match=r"gone\.bin cannot be read: no such file"):
        read_face_pack(tmp_path / "gone.bin")
    with pytest.raises(ValueError, match=r"cannot be read: is a directory"):
        read_face_pack(tmp_path)


@pytest.mark.parametrize("program", [b".", b"a.", b"e.", b"K\x01K\x02a.", b"h\x05.", b"\x94.", b"(K\x01e."])
def test_pack_that_misuses_the_stack_is_damaged(tmp_path: Path, program: bytes) -> None:
    with pytest.raises(
        ValueError, match=r"a\.bin is damaged or no pickle of protocol 2 to 5 \(.+\): fetch it again\.$"
    ):
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
    """Files that make a folder where they are unpickled, by every instruction that calls something."""
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
        "bytes encoded": b"\x80\x02c_codecs\nencode\nC\x01aX\x06\x00\x00\x00latin1\x86R.",
        "codec made": b"\x80\x02c_codecs\nencode\n" + text + b"X\x06\x00\x00\x00latin1\x86\x81.",
        "list called": b"\x80\x02]" + text + b"X\x06\x00\x00\x00latin1\x86R.",
    }
    for protocol in range(6):
        evil = Evil(os.mkdir, marker)
        files[f"image {protocol}"] = pickle.dumps(([b"a", evil], [True]), protocol)
        files[f"flag {protocol}"] = pickle.dumps(([b"a", b"b"], [Evil(eval, evaluated)]), protocol)
    return files


@pytest.mark.parametrize("name", hostile(""))
def test_hostile_pack_is_refused_and_not_run(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    path = pack(tmp_path / "a.bin", hostile(str(marker))[name])
    with pytest.raises(
        ValueError, match=r"a\.bin is refused: at byte \d+ it has the pickle instruction [A-Z]+"
    ) as caught:
        read_face_pack(path)
    assert "\n" not in str(caught.value)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["reduce, text", "inst", "obj", "global", "stack global", "image 2", "flag 4"])
def test_hostile_packs_are_hostile(tmp_path: Path, name: str) -> None:
    pickle.loads(hostile(str(tmp_path / "marker"))[name])
    assert (tmp_path / "marker").is_dir()


class Other(np.ndarray):
    """A subclass, which may do anything when it is given its state."""


OTHER = {
    "objects": np.array([b"a", Evil(os.mkdir, "marker")], dtype=object),
    "an object": np.array(Evil(os.mkdir, "marker"), dtype=object),
    "a subclass": array(b"ab").view(Other),
    "fields": np.zeros(2, [("a", "u1"), ("b", "u1")]),
    "two dimensions": np.zeros((2, 3), np.uint8),
    "a column": np.zeros((2, 1), np.uint8),
    "no dimension": np.array(3, np.uint8),
    "other order": np.zeros((2, 3), np.uint8, order="F"),
    "signed": np.zeros(2, np.int8),
    "words": np.zeros(2, np.uint16),
    "floats": np.zeros(2, np.float32),
    "text": np.array(["ab"]),
    "bytes": np.array([b"ab"]),
    "times": np.zeros(2, "datetime64[s]"),
    "with metadata": np.zeros(2, np.dtype("u1", metadata={"a": 1})),
    "a number": np.uint8(1),
    "a record": np.zeros(1, [("a", "?")])[0],
    "a generator": np.random.default_rng(0),
}


@pytest.mark.filterwarnings("ignore:.*metadata")
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", OTHER)
def test_pack_of_other_things_of_numpy_is_refused_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    for place, content in enumerate((([b"a", OTHER[name]], [True]), ([b"a", b"b"], [OTHER[name]]))):
        with pytest.raises(ValueError, match=r"is refused: at byte .* write it anew with each image as bytes"):
            read_face_pack(pack(tmp_path / f"{place}.bin", content, protocol))
    assert not (tmp_path / "marker").exists()


TEXT = b"X\x06\x00\x00\x00marker"


@pytest.mark.parametrize(
    "program",
    [
        b"cnumpy.testing._private.utils\nrunstring\n" + TEXT + b"}\x86R",
        b"cnumpy\nload\n" + TEXT + b"\x85R",
        b"cnumpy._core.multiarray\nfromfile\n" + TEXT + b"\x85R",
        b"\x8c\x05numpy\x8c\x04load\x93" + TEXT + b"\x85R",
        b"cnumpy.core.multiarray\n_reconstruct\ncos\nmkdir\nK\x00\x85C\x01b\x87R",
        EMPTY.replace(b"ndarray", b"dtype"),
        b"cnumpy\nndarray\nK\x01\x85\x85R",  # the class itself called
        b"cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R",
        U1.replace(b"u1", b"u9"),
        U1.replace(b"NNN", b"N]N"),  # a dtype of fields
        U1.replace(b"K\x00tb", b"K?tb"),  # with flags, as that of objects
        U1 + b"]b",
        U1 + b"]R",
        EMPTY + b"(K\x01K\x02\x85" + U1 + b"\x89U\x01atb",  # says to have more than it has
        EMPTY + b"(K\x01J\xff\xff\xff\xff\x85" + U1 + b"\x89U\x01atb",
        EMPTY + b"(K\x01K\x01\x85" + U1 + b"\x89](U\x01aetb",  # a list in place of bytes
        EMPTY + b"(K\x01K\x01\x85cnumpy\nndarray\n\x89U\x01atb",
        EMPTY + TEXT + b"b",
        b"](K\x01K\x01\x85" + U1 + b"\x89U\x01atb",  # the state of an array, given to a list
        b"](U\x01aeK\x01b",
        b"cnumpy.core.numeric\n_frombuffer\n(U\x01a" + U1 + b"K\x02\x85X\x01\x00\x00\x00CtR",
        b"cnumpy.core.numeric\n_frombuffer\n(" + TEXT + U1 + b"K\x06\x85X\x01\x00\x00\x00CtR",
        b"cnumpy.core.multiarray\nscalar\n" + U1 + b"U\x01a\x86R",
        b"cnumpy.core.multiarray\nscalar\n" + U1.replace(b"u1", b"b1") + b"U\x02aa\x86R",
        b"cnumpy\ndtype\ncnumpy\ndtype\n\x86b",
        b"S'\\d'\n",  # an escape that Python warns of
    ],
)
def test_pack_that_comes_near_is_refused(tmp_path: Path, program: bytes) -> None:
    whole = b"\x80\x04](U\x01a" + program + b"e](\x88e\x86."
    with pytest.raises(ValueError, match=r"a\.bin is refused: at byte \d+ it has the pickle instruction [A-Z]+"):
        read_face_pack(pack(tmp_path / "a.bin", whole))


def test_names_of_numpy_alone_are_no_pack(tmp_path: Path) -> None:
    for name in (b"cnumpy\nndarray\n", b"cnumpy\ndtype\n", b"c_codecs\nencode\n", U1):
        with pytest.raises(ValueError, match=r"image 1, counted from 0, is of type \w+, but it must be the bytes"):
            read_face_pack(pack(tmp_path / "a.bin", b"\x80\x04](U\x01a" + name + b"e](\x88e\x86."))


@pytest.mark.parametrize("protocol", [0, 1])
def test_pack_of_an_old_protocol_is_refused_with_the_way_out(tmp_path: Path, protocol: int) -> None:
    with pytest.raises(
        ValueError, match=r"no more than protocols 2 to 5 write .* write it anew .* protocol 2 or later"
    ):
        read_face_pack(pack(tmp_path / "a.bin", (IMAGES, [True, False]), protocol))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc",  # BINBYTES8 that claims exabytes
        b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"abc",
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"].",  # FRAME
        b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b".",  # LONG_BINPUT far up the memo
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
    monkeypatch.setattr(plain_pickle, "_STEPS", 12)
    with pytest.raises(ValueError, match="is refused: it has more than 12 instructions"):
        read_face_pack(path)
    monkeypatch.setattr(module, "_LARGEST", 10)
    with pytest.raises(ValueError, match=r"has \d+ bytes, but a pack has at most 10"):
        read_face_pack(path)
