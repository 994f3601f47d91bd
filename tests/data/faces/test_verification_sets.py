"""Verification sets are found by name in a folder, and named when they are not there."""

import pickle
from pathlib import Path

import pytest
import torch
from PIL import Image

from data.record_writer import draw_people, write_pack
from proxemic.data.faces.verification_sets import VERIFICATION_SETS, read_verification_set


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
    assert pairs.pixels[int(pairs.second[1])].getpixel((4, 4))[2] > 200  # type: ignore[index]
    (tmp_path / "lfw" / "Bob" / f"Bob_0002{suffix}").unlink()
    with pytest.raises(ValueError, match=rf"lacks 1 of the 3 images of .*pairs\.txt: Bob/Bob_0002\{suffix}\.$"):
        read_verification_set("lfw", tmp_path)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^calfw is not in .*: there is no calfw\.bin; the packs come with the"):
        read_verification_set("calfw", tmp_path)
    with pytest.raises(ValueError, match=r"'ijbc' is no set of pairs that is known here: give lfw, cfp_fp, agedb_30, "):
        read_verification_set("ijbc", tmp_path)
