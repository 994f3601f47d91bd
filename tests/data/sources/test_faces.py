"""Training sets of faces: labels of identities, validation on whole identities, and refused layouts."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data.record_writer import encode, header, write_faces, write_records
from proxemic.data import FaceFolders, FilePixels, ImageSet, RecordFaces
from proxemic.data.images import Splits
from proxemic.data.sources import faces as module
from proxemic.errors import UserError

PEOPLE = [[encode(Image.new("L", (4, 4), 40 * person + view)) for view in range(2 + person)] for person in range(4)]


def levels(images: ImageSet) -> list[tuple[str, int]]:
    """Return the identity and the grey level of each picture."""
    names = [images.class_names[label] for label in images.labels.tolist()]
    return [(name, int(np.asarray(images.pictures[place])[0, 0])) for place, name in enumerate(names)]


EXPECTED = [(str(person), 40 * person + view) for person in range(4) for view in range(2 + person)]


def test_a_training_set_of_insightface(tmp_path: Path) -> None:
    splits = RecordFaces(write_faces(tmp_path, PEOPLE)).load()
    assert levels(splits.train) == EXPECTED
    assert (splits.validation, splits.test, splits.notes) == (None, None, ())


def test_identities_are_numbers_in_their_order(tmp_path: Path) -> None:
    labels = [10.0, 9.0, 100.0, 9.0]
    write_records(tmp_path / "train.rec", [header(label) + PEOPLE[0][0] for label in labels])
    train = RecordFaces(tmp_path).load().train
    assert train.class_names == ("9", "10", "100")
    assert train.labels.tolist() == [1, 0, 2, 0]


def test_records_without_a_header_are_all_images(tmp_path: Path) -> None:
    images = [(person, image) for person, item in enumerate(PEOPLE) for image in item]
    keys = list(reversed(range(1, len(images) + 1)))
    write_records(tmp_path / "train.rec", [header(float(person)) + image for person, image in images], keys)
    assert levels(RecordFaces(tmp_path).load().train) == EXPECTED[::-1]


def folders(root: Path) -> Path:
    for person, item in enumerate(PEOPLE):
        (root / str(person)).mkdir(parents=True)
        for view, image in enumerate(item):
            (root / str(person) / f"{view}.{'PNG' if view else 'png'}").write_bytes(image)
    return root


def test_folders_of_identities(tmp_path: Path) -> None:
    root = folders(tmp_path / "faces")
    (root / "0" / "notes.txt").touch()
    (root / ".cache").mkdir()
    (root / "readme.png").touch()
    (root / "1" / "._0.jpg").touch()
    (root / "1" / "dir.jpg").mkdir()
    (root / "again").symlink_to(root / "1")
    splits = FaceFolders(root).load()
    assert levels(splits.train) == EXPECTED
    assert isinstance(splits.train.pixels, FilePixels)
    assert (splits.test, splits.notes) == (None, ())
    (root / "nobody").mkdir()
    assert FaceFolders(root).load().notes == (f"1 folders of {root} have no images and are left out.",)


@pytest.mark.parametrize("source", [RecordFaces, FaceFolders])
def test_whole_identities_validate(source: type[RecordFaces] | type[FaceFolders], tmp_path: Path) -> None:
    root = folders(write_faces(tmp_path, PEOPLE) / "faces") if source is FaceFolders else write_faces(tmp_path, PEOPLE)

    def load(seed: int) -> Splits:
        return source(root, validation_fraction=0.5, split_seed=seed).load()

    splits = load(0)
    assert splits.validation is not None
    assert sorted(levels(splits.train) + levels(splits.validation)) == EXPECTED
    assert not {*splits.train.class_names} & {*splits.validation.class_names}
    assert load(0).train.class_names == splits.train.class_names
    assert len({load(seed).train.class_names for seed in range(8)}) > 1
    with pytest.raises(UserError, match="proxemic verify RUN"):
        _ = splits.test_images
    with pytest.raises(ValueError, match=r"validation_fraction is 1\.0, but must be at least 0 and below 1\."):
        source(root, validation_fraction=1.0)


@pytest.mark.parametrize("source", [RecordFaces, FaceFolders])
def test_folders_that_are_not_there(source: type[RecordFaces] | type[FaceFolders], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.root is missing: give the folder of the faces"):
        source().load()
    with pytest.raises(ValueError, match=r"nowhere is not a folder: give the folder of the faces"):
        source(tmp_path / "nowhere").load()
    with pytest.raises(ValueError, match=r"train\.rec cannot be read: no such file|has no images in folders"):
        source(tmp_path).load()


@pytest.mark.parametrize("label", [0.5, -1.0, float("nan"), float("inf"), 2.0**25])
def test_labels_that_are_no_identities_are_refused(tmp_path: Path, label: float) -> None:
    write_records(tmp_path / "train.rec", [header(number) + PEOPLE[0][0] for number in (0.0, 1.0, label)])
    with pytest.raises(ValueError, match=r"train\.rec: record 2 has the label \S+, but an identity is a whole number"):
        RecordFaces(tmp_path).load()


@pytest.mark.parametrize("labels", [[0.0, 0.0], [1.0, 3.0], [2.5, 3.0], [6.0, 7.0], [float("nan")], [float("inf")]])
def test_a_header_that_is_not_true_is_refused(tmp_path: Path, labels: list[float]) -> None:
    images = [header([0.0]) + PEOPLE[0][0], header([1.0]) + PEOPLE[1][0]]
    write_records(tmp_path / "train.rec", [header(labels), *images], keys=[0, 1, 2])
    with pytest.raises(ValueError, match=r"train\.rec: record 0 says that the images are the records 1 to "):
        RecordFaces(tmp_path).load()


@pytest.mark.parametrize("identities", [0, 2, 100])
@pytest.mark.parametrize("images", [*range(2**24 - 4, 2**24 + 7), *range(2**25 - 3, 2**25 + 9), 42_474_557])
def test_the_number_of_images_is_not_rounded(images: int, identities: int) -> None:
    """The header stores it as a float32, which cannot represent all whole numbers above 2**24."""
    bare = np.zeros(1 + images + identities, bool)
    bare[1 + images :] = True
    assert module._end_of_images(int(np.float32(1 + images)), bare) == 1 + images


def test_records_of_identities_are_no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LARGEST", 4)  # as if numbers above 4 were rounded, by up to a quarter
    images = [header([float(label), 0.0]) + PEOPLE[label][view] for label in range(4) for view in range(2 + label)]
    bare = [header([1, 3]), header([3, 6]), header([6, 10]), header([10, 15])]
    for rounded in (12, 15, 16, 18):
        write_records(tmp_path / "train.rec", [header([rounded, rounded + 4]), *images, *bare])
        assert levels(RecordFaces(tmp_path).load().train) == EXPECTED, rounded


def test_the_property_is_compared(tmp_path: Path) -> None:
    write_faces(tmp_path, PEOPLE)
    for text in ("5,112,112", "many"):
        (tmp_path / "property").write_text(text)
        with pytest.raises(ValueError, match=r"property says that there is another number of identities than the 4 of"):
            RecordFaces(tmp_path).load()
    (tmp_path / "property").unlink()
    assert RecordFaces(tmp_path).load().train.num_classes == 4
