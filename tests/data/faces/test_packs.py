"""Packs of insightface: what is read from them, and what is named as wrong."""

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data.faces.pickles import EMPTY, IMAGES, U1, array, pack
from data.record_writer import draw_people, write_pack
from proxemic.data import EmbeddingDataset, Preprocessing
from proxemic.data.faces import VERIFICATION_SETS, read_face_pack, read_verification_set
from proxemic.data.faces.packs import EncodedPixels
from proxemic.data.pixels import UnreadableImageError


def encode(image: Image.Image, format: str = "PNG") -> bytes:  # noqa: A002
    buffer = io.BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


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
    assert pairs.images().pictures[1].mode == "L"
    np.testing.assert_allclose(np.asarray(pairs.images().pictures[0])[5, 5], [250, 0, 0], atol=4)
    with pytest.raises(
        UnreadableImageError, match=r"faces\.bin \(image 3, counted from 0\) cannot be read as an image"
    ):
        pairs.images().pictures[2]
    with pytest.raises(UnreadableImageError, match=r"image 3, counted from 0"):
        pairs.images().select([2]).pictures[0]
    with pytest.raises(UnreadableImageError, match=r"image 0, counted from 0"):  # the first of those that are alike
        read_face_pack(pack(tmp_path / "faces.bin", ([b"x", b"x"], [True]))).images().pictures[0]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ((IMAGES, [True]), "has 4 images for 1 flags, but a pack has two images per flag"),
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


# Verification sets are found by name in a folder, and named when they are not there.


@pytest.mark.parametrize("name", VERIFICATION_SETS)
def test_a_pack_is_found(tmp_path: Path, name: str) -> None:
    people = draw_people(3, 2)
    write_pack(tmp_path / f"{name}.bin", people, pairs=20)
    pairs, notes = read_verification_set(name, tmp_path)
    assert (len(pairs), int(pairs.same.sum()), len(pairs.folds.unique())) == (20, 10, 10)
    title, published = VERIFICATION_SETS[name].title, VERIFICATION_SETS[name].pairs
    path = tmp_path / f"{name}.bin"
    assert notes == (
        f"{path} has 20 pairs, but {title} was published with {published:,}: its figures are not comparable.",
    )


def test_a_set_of_the_published_size_has_no_note(tmp_path: Path) -> None:
    (tmp_path / "cfp_fp.bin").write_bytes(pickle.dumps(([b"a", b"b"] * 7000, [True, False] * 3500), 2))
    pairs, notes = read_verification_set("cfp_fp", tmp_path)
    assert (len(pairs), notes) == (7000, ())


@pytest.mark.parametrize("suffix", [".jpg", ".jpeg", ".png"])
def test_lfw_from_its_images(tmp_path: Path, suffix: str) -> None:
    for person in ("Ada", "Bob"):
        for number in (1, 2):
            path = tmp_path / "lfw" / person / f"{person}_{number:04d}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), "red" if person == "Ada" else "blue").save(path)
    with pytest.raises(ValueError, match=r"there is no lfw\.bin, and no pairs\.txt with a folder lfw of images"):
        read_verification_set("lfw", tmp_path)
    (tmp_path / "pairs.txt").write_text("1\nAda\t1\t2\nAda\t1\tBob\t2\n")
    pairs, _ = read_verification_set("lfw", tmp_path)
    assert torch.equal(pairs.same, torch.tensor([True, False]))
    assert pairs.images().pictures[int(pairs.second[1])].getpixel((4, 4))[2] > 200  # type: ignore[index]
    (tmp_path / "lfw" / "Bob" / f"Bob_0002{suffix}").unlink()
    with pytest.raises(ValueError, match=rf"lacks 1 of the 3 images of .*pairs\.txt: Bob/Bob_0002\{suffix}\.$"):
        read_verification_set("lfw", tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^calfw is not in .*: there is no calfw\.bin; the packs come with the"):
        read_verification_set("calfw", tmp_path)
    with pytest.raises(ValueError, match=r"'ijbc' is no set of pairs that is known here: give lfw, cfp_fp, agedb_30, "):
        read_verification_set("ijbc", tmp_path)
