"""Thresholds that are learnt from held-out classes of runs, folders and files, and kept."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from command_line import Here, assert_refused
from images import write_folder
from proxemic.data.embeddings import LabelledEmbeddings, write_embeddings
from proxemic.data.rows import number_labels
from proxemic.errors import UserError
from proxemic.models import read_checksum
from proxemic.retrieval import Calibration, Embedder, Gallery, calibrate
from vectors import some_vectors


def embedder(dim: int = 24, checksum: str = "m" * 64) -> Embedder:
    return Embedder(nn.Flatten(), lambda _: torch.zeros(dim, 1, 1), checksum=checksum)


@pytest.fixture(scope="module")
def rows() -> LabelledEmbeddings:
    vectors, labels = some_vectors(classes=25, each=8)
    return LabelledEmbeddings(torch.from_numpy(vectors), number_labels(labels))


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    """A run that may be written to."""
    return Path(shutil.copytree(run, tmp_path / "run"))


def test_thresholds_are_those_of_plain_python(rows: LabelledEmbeddings) -> None:
    found = calibrate(embedder(), rows, rates=(0.1, 0.01, 0.001))
    assert rows.rows.labels is not None
    vectors, labels = rows.embeddings.double().numpy(), rows.rows.labels.tolist()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = 1 - unit @ unit.T
    strange = [
        min(d for d, c in zip(line, labels, strict=True) if c != own)
        for line, own in zip(distances, labels, strict=True)
    ]
    own = [
        min((d, c == labels[i]) for j, (d, c) in enumerate(zip(distances[i], labels, strict=True)) if j != i)
        for i in range(len(labels))
    ]
    for item in found.thresholds[:2]:
        allowed = math.floor(item.rate * len(labels))
        passed = sum(d <= item.threshold for d in strange)
        assert passed == allowed
        assert item.false_accepts == passed / len(labels)
        assert item.true_accepts == sum(right and d <= item.threshold for d, right in own) / len(labels)
        assert item.low < item.threshold < item.high
        assert item.true_low < item.true_accepts < item.true_high
    assert math.isnan(found.thresholds[2].threshold)  # of 200 pictures
    assert (found.classes, found.images, found.distance, found.model) == (25, 200, "cosine", "m" * 64)


def test_a_seed_decides_the_intervals_alone(rows: LabelledEmbeddings) -> None:
    one, same, other = (calibrate(embedder(), rows, rates=[0.1], seed=seed).thresholds[0] for seed in (0, 0, 1))
    assert one == same
    assert (one.threshold, one.true_accepts) == (other.threshold, other.true_accepts)
    assert one.low != other.low
    assert math.isnan(calibrate(embedder(), rows, rates=[0.1], resamples=0).thresholds[0].low)


def test_pictures_of_different_classes_that_are_the_same_leave_no_threshold() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((120, 8))
    points[60:70] = points[:10]  # of other classes: a false accept at a distance of 0, of 20 in 120
    vectors = LabelledEmbeddings(torch.from_numpy(points), number_labels([str(row // 4) for row in range(120)]))
    found = calibrate(embedder(8), vectors, rates=(0.5, 0.1), resamples=200)
    usual, strict = found.thresholds
    assert 0 < usual.low <= usual.threshold <= usual.high
    assert strict.threshold < 0
    assert strict.false_accepts == strict.true_accepts == 0
    for item in found.thresholds:
        assert 0 <= item.low <= item.high
        assert 0 <= item.true_low <= item.true_high <= 1
    assert any("At a rate of 0.1 nothing is accepted" in note for note in found.notes())
    assert "none" in found.text()


def test_what_is_kept_is_read_again(rows: LabelledEmbeddings, tmp_path: Path) -> None:
    found = calibrate(embedder(), rows)
    path = found.write(tmp_path / "model.safetensors")
    assert path == tmp_path / "calibration.json"
    again = Calibration.read(tmp_path / "model.safetensors", "m" * 64)
    assert str(again) == str(found)  # NaN is not equal to itself
    with pytest.raises(UserError, match=r"belongs to another model .mmmmmmmmmmmm. than .* is now .oooooooooooo."):
        Calibration.read(tmp_path, "o" * 64)
    with pytest.raises(UserError, match=r"has no thresholds .* learn them with proxemic calibrate"):
        Calibration.read(tmp_path / "other" / "model.safetensors")


def test_a_rate_without_a_threshold_falls_back_to_the_smallest_that_was_learnt(rows: LabelledEmbeddings) -> None:
    usual = calibrate(embedder(), rows, resamples=0)  # 200 pictures
    assert usual.choose(0.1) == (usual.thresholds[0], None)
    assert usual.choose() == (usual.thresholds[1], None)
    for rate in (0.001, 0.004):  # asked for, and not
        found, said = usual.choose(rate)
        assert found == usual.thresholds[1]
        assert f"rate of {rate:g} takes {1 / rate:,.0f} pictures to measure, not 200: the threshold for 0.01" in str(
            said
        )
    coarse = calibrate(embedder(), rows, rates=(0.2, 0.1), resamples=0)
    found, said = coarse.choose()
    assert found == coarse.thresholds[1]
    assert "No threshold was learnt for a false accept rate of 0.01: the threshold for 0.1 is used" in str(said)
    with pytest.raises(UserError, match=r"for a false accept rate of 0.5, only for 0.1, 0.01: give"):
        usual.choose(0.5)
    for rate in (0, 1, 2, math.nan, True):
        with pytest.raises(ValueError, match="must be a false accept rate"):
            usual.choose(rate)


def test_pictures_too_few_for_any_rate_measure_the_smallest_that_they_can(rows: LabelledEmbeddings) -> None:
    few, said = LabelledEmbeddings(rows.embeddings[:60:3], number_labels(["a", "b"] * 10)), list[str]()
    found = calibrate(embedder(), few, rates=(0.01, 0.001), report=said.append)
    assert [math.isnan(item.threshold) for item in found.thresholds] == [True, True, False]
    assert found.choose()[0].rate == 1 / 20
    assert any("20 pictures measure no false accept rate below 0.05" in item for item in said)


def test_few_classes_and_a_larger_gallery_are_a_reason_for_caution(rows: LabelledEmbeddings) -> None:
    found = calibrate(embedder(), rows)
    assert found.caution() is found.caution(400) is None
    assert "among 200 pictures, while this gallery has 401: more unknown" in str(found.caution(401))
    assert not math.isnan(found.thresholds[0].false_low)
    few = calibrate(embedder(), LabelledEmbeddings(rows.embeddings[:64], rows.rows.take(torch.arange(64))), rates=[0.1])
    few = replace(few, classes=19)
    assert "learnt from 19 classes, and with fewer than 20 no interval" in str(few.caution())
    assert "those that resemble known classes" in str(few.caution())
    assert "--gallery" in few.text()


def siblings(families: int = 30, each: int = 4, pictures: int = 6) -> tuple[np.ndarray, list[str]]:
    """Vectors of classes that come in families, and the names of the classes."""
    rng, labels = np.random.default_rng(0), np.arange(families * each).repeat(pictures)
    centres = rng.normal(size=(families, 24))[np.arange(families * each) // each]
    centres = centres + 0.45 * rng.normal(size=centres.shape)
    return centres[labels] + 0.3 * rng.normal(size=(len(labels), 24)), [f"{label:03d}" for label in labels]


def test_leaving_out_classes_of_the_gallery_foresees_unknown_siblings(tmp_path: Path) -> None:
    vectors, names = siblings()
    model = embedder_at(tmp_path)
    place = np.array([int(name) % 4 for name in names])
    held_out = (place == 0) & np.array([int(name) < 28 for name in names])  # of 7 families
    known, unknown = place % 2 == 1, place == 2

    def of(rows: np.ndarray) -> LabelledEmbeddings:
        labels = number_labels([name for name, taken in zip(names, rows, strict=True) if taken])
        return LabelledEmbeddings(torch.from_numpy(vectors[rows]).float(), labels)

    gallery = Gallery.create(tmp_path / "shop", model)
    labels = [name for name, taken in zip(names, known, strict=True) if taken]
    gallery.add_vectors(vectors[known], [f"{row}" for row in range(len(labels))], labels)

    def passed(threshold: float) -> float:
        nearest = gallery.neighbours(vectors[unknown], 1).distances[:, 0]
        return float((nearest <= threshold).mean())

    before = calibrate(model, of(held_out), rates=[0.05]).thresholds[0]
    said: list[str] = []
    after = calibrate(model, gallery=gallery, rates=[0.05], report=said.append)
    assert passed(before.threshold) > 10 * 0.05
    assert passed(after.thresholds[0].threshold) < 2 * 0.05
    assert (after.classes, after.images, after.searched) == (60, 360, 360)
    # The report names the replaced threshold, and how many pictures pass it.
    share = float(said[0].partition("which ")[2].partition(" %")[0]) / 100
    assert share == pytest.approx(passed(before.threshold), abs=0.1)
    assert f"0.05: {before.threshold:.4f}" in said[0]
    assert "learnt from 42 pictures of 7 classes" in said[0]
    assert Calibration.read(model.path or "", model.checksum).classes == 60


def embedder_at(folder: Path) -> Embedder:
    return Embedder(nn.Flatten(), lambda _: torch.zeros(24, 1, 1), checksum="m" * 64, path=folder / "model.safetensors")


def test_a_gallery_is_searched_as_in_plain_python(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(43, 24))
    labels = [f"class {row % 8}" if row < 40 else None for row in range(43)]
    gallery = Gallery.create(tmp_path / "shop", embedder_at(tmp_path), distance="euclidean")
    gallery.add_vectors(vectors, [str(row) for row in range(43)], labels)
    found = calibrate(gallery.embedder, gallery=tmp_path / "shop", rates=[0.2], resamples=0).thresholds[0]

    def nearest(query: np.ndarray, own: str | None) -> float:
        far = [math.dist(query, row) for row, of in zip(vectors, labels, strict=True) if of not in (None, own)]
        return min(far)

    alone = [nearest(vectors[row], labels[row]) for row in range(40)]
    possible = {sum(item <= limit for item in alone) for limit in alone}  # two may be the nearest of each other
    assert sum(item <= found.threshold for item in alone) == max(count for count in possible if count <= 8)
    unknown = vectors[:6] + rng.normal(size=(6, 24)) * 2
    file = tmp_path / "unknown.parquet"
    write_embeddings(file, LabelledEmbeddings(torch.from_numpy(unknown).float(), number_labels(["class 3", "new"] * 3)))
    own = calibrate(gallery.embedder, file, gallery=gallery, rates=[0.5])
    distances = [nearest(item, ["class 3", "new"][row % 2]) for row, item in enumerate(unknown)]
    assert sum(distance <= own.thresholds[0].threshold for distance in distances) == 3
    assert (own.classes, own.images, own.searched, own.distance) == (2, 6, 40, "euclidean")
    np.save(tmp_path / "loose.npy", unknown)
    loose = calibrate(gallery.embedder, tmp_path / "loose.npy", gallery=gallery, rates=[0.5])
    assert (loose.classes, loose.images) == (1, 6), "pictures without labels are one class"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content | {"format": 1},
        lambda content: content | {"distance": "hamming"},
        lambda content: content | {"classes": "many"},
        lambda content: content | {"thresholds": []},
        lambda content: content | {"thresholds": [dict.fromkeys(content["thresholds"][0], "a")]},
        lambda content: {name: value for name, value in content.items() if name != "model"},
    ],
)
def test_a_damaged_file_is_one_sentence(damage, rows: LabelledEmbeddings, tmp_path: Path) -> None:
    path = calibrate(embedder(), rows, resamples=0).write(tmp_path)
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(UserError, match=r"is not a calibration that this version can read"):
        Calibration.read(tmp_path)
    path.write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        Calibration.read(tmp_path)


def test_a_run_is_calibrated_by_its_validation_classes(copy: Path, here: Here) -> None:
    result = here("calibrate", copy)
    assert result.returncode == 0, result.stderr
    for words in (
        f"validation classes of {copy}: 18 pictures of 3 classes",
        "measure a rate of 0.01 and 0.001",
        "fewer than 20",
    ):
        assert words in " ".join(result.stdout.split()), result.stdout
    kept = json.loads((copy / "calibration.json").read_text())
    assert kept["model"] == read_checksum(copy)
    assert (kept["classes"], kept["images"]) == (3, 18)  # as classes.json has them
    found = json.loads(here("calibrate", copy, "--format", "json", "--rates", "0.2,0.5", "--split", "test").stdout)
    assert [item["rate"] for item in found["thresholds"]] == [0.2, 0.5]
    assert (found["data"], found["images"]) == (f"test classes of {copy}", 24)
    assert found["thresholds"][0]["low"] is None
    assert here("calibrate", copy, "--format", "csv").stdout.startswith("rate,threshold,low,high,false_accepts,")


def test_other_images_may_not_be_of_the_training_or_the_test(
    copy: Path, folder: Path, tmp_path: Path, here: Here
) -> None:
    result = here("calibrate", copy, "--data.root", folder, "--format", "json")
    assert json.loads(result.stdout)["images"] == 18, "of 12 classes the 3 of the validation"
    assert "54 of 72 rows belong to classes of another split of the run: left out." in result.stderr
    found = json.loads(here("calibrate", copy, "--data.root", folder, "--split", "test", "--format", "json").stdout)
    assert found["images"] == 24
    for name in json.loads((copy / "classes.json").read_text())["test"]:
        shutil.copytree(folder / name, tmp_path / "people" / name)
    result = here("calibrate", copy, "--data.root", tmp_path / "people", "--format", "json")
    assert json.loads(result.stdout)["images"] == 24, result.stderr
    assert "These are test classes of the run" in result.stderr
    trained = json.loads((copy / "classes.json").read_text())["train"]
    for name in trained[:2]:
        shutil.copytree(folder / name, tmp_path / "trained" / name)
    assert_refused(
        here("calibrate", copy, "--data.root", tmp_path / "trained"), ["trained", "has no classes but those"]
    )
    other = write_folder(tmp_path / "others", classes=3, images=4)
    for path in other.iterdir():
        path.rename(path.with_name(f"new {path.name}"))
    (other / "new class 00" / "bad.png").write_text("nothing")
    result = here("calibrate", copy / "model.safetensors", "--data.root", other, "--format", "json")
    assert json.loads(result.stdout)["images"] == 12
    assert "bad.png is left out" in result.stderr


def test_classes_of_a_gallery_that_were_trained_on_are_no_unknown_ones(
    copy: Path, folder: Path, tmp_path: Path, here: Here
) -> None:
    classes = json.loads((copy / "classes.json").read_text())
    assert here("gallery", "create", tmp_path / "shop", folder, "--model", copy).returncode == 0
    result = here("calibrate", copy, "--gallery", tmp_path / "shop", "--format", "json")
    found = json.loads(result.stdout)
    assert (found["classes"], found["images"], found["searched"]) == (12 - len(classes["train"]), 42, 72)
    assert "5 of 12 classes" in result.stderr
    first = (copy / "calibration.json").read_text()
    again = here("calibrate", copy, "--gallery", tmp_path / "shop", "--rates", "0.2")
    assert "Replaced: the thresholds that were learnt from 42 pictures of 7 classes" in again.stderr
    assert f"0.1: {json.loads(first)['thresholds'][0]['threshold']:.4f}" in again.stderr
    assert "20" in again.stdout.split("│")[1], "rates and shares are all in percent"
    for name in classes["train"][:2]:
        shutil.copytree(folder / name, tmp_path / "trained" / name)
    assert here("gallery", "create", tmp_path / "old", tmp_path / "trained", "--model", copy).returncode == 0
    refused = here("calibrate", copy, "--gallery", tmp_path / "old")
    assert_refused(refused, ["was trained on all classes", "--data.root"])
    unknown = here(
        "calibrate", copy, "--gallery", tmp_path / "old", "--data.root", folder, "--rates", "0.3", "--format", "json"
    )
    found = json.loads(unknown.stdout)
    assert (found["classes"], found["images"], found["searched"]) == (7, 42, 12)
    assert "30 of 72 pictures belong to classes that were trained on: left out." in unknown.stderr
    assert_refused(here("calibrate", copy, "--gallery", tmp_path / "old", "--split", "test"), ["leave the split"])
    table = here("report", tmp_path / "old", "--out", tmp_path / "old.html")
    assert table.returncode == 0, table.stderr
    page = (tmp_path / "old.html").read_text()
    assert "learnt from 7 classes, and with fewer than 20" in page
    assert "intervals of a bootstrap" not in page, "of two classes there are none"


def test_vectors_that_the_model_made_are_taken(
    rows: LabelledEmbeddings, copy: Path, tmp_path: Path, here: Here
) -> None:
    file = tmp_path / "vectors.parquet"
    content = LabelledEmbeddings(rows.embeddings[:, :16], rows.rows)
    write_embeddings(file, content, read_checksum(copy))
    result = here("calibrate", copy, "--data.root", file, "--format", "json", "--resamples", "50")
    found = json.loads(result.stdout)
    assert (found["images"], found["data"]) == (200 - 9 * 8, str(file)), "9 are of other splits"
    write_embeddings(file, content, "another")
    assert_refused(here("calibrate", copy, "--data.root", file), ["were made by another model (checksum another)"])
    write_embeddings(file, rows)
    assert_refused(here("calibrate", copy, "--data.root", file), ["has 24 numbers", "have 16"])
    np.save(tmp_path / "bare.npy", rows.embeddings[:, :16].numpy())
    assert_refused(here("calibrate", copy, "--data.root", tmp_path / "bare.npy"), ["gives no labels"])


def test_what_cannot_be_done_is_one_sentence(copy: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("model.safetensors", "model.json"):
        shutil.copy(copy / name, bare)
    assert_refused(here("calibrate", bare), ["is not a run", "--data.root"])
    assert_refused(here("calibrate", tmp_path), ["is not a model"])
    assert_refused(here("calibrate", copy, "--rates", "0.1,2"), ["--rates is 0.1,2"])
    assert_refused(here("calibrate", copy, "--resamples", "-1"), ["--resamples is -1"])
    assert_refused(here("calibrate", copy, "--data.seed", "1"), ["--data.seed is not known here"])
    assert_refused(here("calibrate", copy, "--data.root", tmp_path / "none"), ["none", "does not exist"])
    one = tmp_path / "one"
    shutil.copytree(folder / "class 01", one / "only")
    result = here("calibrate", bare, "--data.root", one)
    assert_refused(result, ["only one class"])
    assert not (bare / "calibration.json").exists()
