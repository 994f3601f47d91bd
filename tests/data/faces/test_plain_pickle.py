"""Pickles that are damaged, that would run code, or that would fill the memory, are refused."""

import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.faces.pickles import EMPTY, IMAGES, U1, array, pack
from proxemic.data.faces import packs, plain_pickle, read_face_pack

REFUSED = r"a\.bin is refused: .*; if you trust .*, write it anew with each image as bytes"
DAMAGED = r"a\.bin is damaged or no pickle of protocol 2 to 5 \(.+\): fetch it again\.$"


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
    with pytest.raises(ValueError, match=r"cannot be read: is a directory"):
        read_face_pack(tmp_path)


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


def test_hostile_pack_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name, content in hostile(str(marker)).items():
        with pytest.raises(ValueError, match=f"{REFUSED}|{DAMAGED}" if name == "list called" else REFUSED) as caught:
            read_face_pack(pack(tmp_path / "a.bin", content))
        assert "\n" not in str(caught.value), name
        assert not marker.exists(), name


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
    with pytest.raises(ValueError, match=f"{REFUSED}|{DAMAGED}"):
        read_face_pack(pack(tmp_path / "a.bin", whole))


def test_what_may_be_named_cannot_be_changed(tmp_path: Path) -> None:
    """A state would set attributes of a function that plain data is made with."""
    for name in (b"c_codecs\nencode\n", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n"):
        for state in (b"}X\x01\x00\x00\x00aK\x01sb", b"N}X\x01\x00\x00\x00aK\x01s\x86b"):
            with pytest.raises(ValueError, match=REFUSED):
                read_face_pack(pack(tmp_path / "a.bin", b"\x80\x04](U\x01a" + name + state + b"e](\x88e\x86."))


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc",  # BINBYTES8 that claims exabytes
        b"\x80\x02T" + struct.pack("<i", 2**31 - 1) + b"abc",
        b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"].",  # FRAME
        b"\x80\x02]r" + struct.pack("<I", 2**32 - 1) + b".",  # LONG_BINPUT far up the memo
        b"\x80\x02]" + b"".join(b"r" + struct.pack("<I", 2**power) for power in range(10, 32)) + b".",
        b"\x80\x02](" + b"2" * 10**5 + b"e.",  # DUP
        b"\x80\x02" + b"(" * 10**5 + b".",
        b"\x80\x02\x8a\xff" + b"\x7f" * 255 + b"\x8b" + struct.pack("<i", 2**31 - 1) + b".",  # LONG1, LONG4
        b"\x80\x04B" + struct.pack("<I", 2**32 - 1) + b"abc",
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
    monkeypatch.setattr(plain_pickle, "_MAX_INSTRUCTIONS", 12)
    with pytest.raises(ValueError, match="is refused: it has more than 12 instructions"):
        read_face_pack(path)
    monkeypatch.setattr(packs, "_MAX_BYTES", 10)
    with pytest.raises(ValueError, match=r"has \d+ bytes, but a pack has at most 10"):
        read_face_pack(path)
