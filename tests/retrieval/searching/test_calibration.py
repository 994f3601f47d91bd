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
from proxemic.data.embeddings import write_embeddings
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.metrics.open_set import nearest_other_classes
from proxemic.models import read_checksum
from proxemic.retrieval import Calibration, Embedder, Gallery, calibrate, recognize, trained_head, whitened_head
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.improving.improvement import between, heads_without
from proxemic.retrieval.vectors.heads import create_with_head
from vectors import some_vectors


def embedder(dim: int = 24, checksum: str = "m" * 64) -> Embedder:
    return Embedder(nn.Flatten(), lambda _: torch.zeros(dim, 1, 1), checksum=checksum)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a pretrained network, which is kept in a cache of its own."""
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=2, mlp_ratio=2, image_size=16, patch_size=8
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path / "vit")
    return f"hf:{tmp_path / 'vit'}"


@pytest.fixture(scope="module")
def rows() -> Rows:
    vectors, labels = some_vectors(classes=25, each=8)
    return Rows.of(torch.from_numpy(vectors), label=labels)


def test_thresholds_are_those_of_plain_python(rows: Rows) -> None:
    assert rows.embeddings is not None
    vectors, labels = rows.embeddings.double().numpy(), rows.labels
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
    for rate in (0.1, 0.01):
        found = calibrate(embedder(), rows, rate=rate)
        passed = sum(d <= found.threshold for d in strange)
        assert passed == math.floor(rate * len(labels))
        assert found.false_accepts == passed / len(labels)
        assert found.true_accepts == sum(right and d <= found.threshold for d, right in own) / len(labels)
        assert 0 <= found.low < found.high
        assert (found.rate, found.classes, found.images) == (rate, 25, 200)
        assert (found.distance, found.model) == ("cosine", "m" * 64)


def test_the_range_is_that_of_halves_of_the_classes_in_plain_python(rows: Rows) -> None:
    """The halves are drawn otherwise than in the library: 2,000 of them have nearly the same quantiles."""
    assert rows.embeddings is not None
    vectors, labels = rows.embeddings.double().numpy(), rows.numbers("label")[0].numpy()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = np.where(labels[:, None] == labels, np.inf, 1 - unit @ unit.T)
    rng, shares = np.random.default_rng(7), []
    for _ in range(2000):
        known = np.isin(labels, rng.permutation(25)[:12])
        alone = np.sort(distances[known][:, known].min(1))
        allowed = math.floor(0.1 * len(alone))
        shares.append(float((distances[~known][:, known].min(1) <= alone[allowed - 1 : allowed + 1].mean()).mean()))
    found = calibrate(embedder(), rows, rate=0.1)
    assert (found.low, found.high) == pytest.approx(np.quantile(shares, [0.05, 0.95]), abs=0.03)
    assert found.low < 0.1 < found.high


def test_pictures_of_different_classes_that_are_the_same_leave_no_threshold() -> None:
    rng = np.random.default_rng(0)
    points = rng.standard_normal((120, 8))
    points[60:70] = points[:10]  # of other classes: a false accept at a distance of 0, of 20 in 120
    vectors = Rows.of(torch.from_numpy(points), label=[str(row // 4) for row in range(120)])
    usual, strict = (calibrate(embedder(8), vectors, rate=rate) for rate in (0.5, 0.1))
    assert usual.threshold > 0
    assert strict.threshold < 0
    assert strict.false_accepts == strict.true_accepts == 0
    assert any("Nothing is accepted" in note for note in strict.notes())
    assert "none" in strict.text()


def test_what_is_kept_is_read_again(rows: Rows, tmp_path: Path) -> None:
    found = calibrate(embedder(), rows)
    path = found.write(tmp_path / "model.safetensors")
    assert path == tmp_path / "calibration.json"
    assert Calibration.read(tmp_path / "model.safetensors", "m" * 64) == found
    with pytest.raises(UserError, match=r"belongs to another model .mmmmmmmmmmmm. than .* is now .oooooooooooo."):
        Calibration.read(tmp_path, "o" * 64)
    with pytest.raises(UserError, match=r"has no threshold .* learn it with proxemic calibrate"):
        Calibration.read(tmp_path / "other" / "model.safetensors")


def test_a_rate_must_be_that_of_the_threshold_unless_it_cannot_be_measured(rows: Rows) -> None:
    usual = calibrate(embedder(), rows, rate=0.1)
    assert usual.check_rate(None) is usual.check_rate(0.1) is None
    for rate in (0.5, 0.01):
        with pytest.raises(UserError, match=f"for a false accept rate of 0.1, not {rate:g}"):
            usual.check_rate(rate)
    for rate in (0, 1, 2, math.nan, True):
        with pytest.raises(ValueError, match="must be a false accept rate"):
            usual.check_rate(rate)
        with pytest.raises(ValueError, match="must be a false accept rate"):
            calibrate(embedder(), rows, rate=rate)


def test_pictures_too_few_for_a_rate_measure_the_smallest_that_they_can(rows: Rows) -> None:
    few, said = rows.take(range(0, 60, 3)).with_texts(label=["a", "b"] * 10), list[str]()
    found = calibrate(embedder(), few, rate=0.01, report=said.append)
    assert found.rate == 1 / 20
    assert any("20 photos measure no false accept rate below 0.05" in item for item in said)
    assert "takes 100 photos to measure, not 20" in str(found.check_rate(0.01))


def test_few_classes_few_pictures_and_a_larger_gallery_are_a_reason_for_caution(rows: Rows) -> None:
    found = calibrate(embedder(), rows, rate=0.1)
    assert found.caution() is found.caution(400) is None
    assert "among 200 photos, while this gallery has 401: more unknown" in str(found.caution(401))
    strict = calibrate(embedder(), rows, rate=0.01)
    assert "20 classes and 1,000 photos" in str(strict.caution()), "two false accepts say little"
    assert "20 classes and 1,000 photos" in strict.text()
    few = rows.take(range(152)).with_texts(label=[f"{row % 19}" for row in range(152)])
    small = calibrate(embedder(), few, rate=0.1)
    assert math.isnan(small.low)
    assert "learnt from 19 classes, and with fewer than 20 no range" in str(small.caution())


def test_pictures_that_are_alone_in_their_classes_are_calibrated(rows: Rows) -> None:
    found = calibrate(embedder(), rows.take(range(25)).with_texts(label=[str(i) for i in range(25)]))
    assert (found.classes, found.images, found.rate) == (25, 25, 1 / 25)
    assert math.isnan(found.true_accepts)


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

    def of(rows: np.ndarray) -> Rows:
        labels = [name for name, taken in zip(names, rows, strict=True) if taken]
        return Rows.of(torch.from_numpy(vectors[rows]).float(), label=labels)

    gallery = Gallery.create(tmp_path / "shop", model)
    labels = [name for name, taken in zip(names, known, strict=True) if taken]
    gallery.add_vectors(vectors[known], [f"{row}" for row in range(len(labels))], labels)

    def passed(threshold: float) -> float:
        nearest = gallery.neighbours(vectors[unknown], 1).distances[:, 0]
        return float((nearest <= threshold).mean())

    before = calibrate(model, of(held_out), rate=0.05)
    after = calibrate(model, gallery=gallery, rate=0.05)
    assert passed(before.threshold) > 10 * 0.05
    assert passed(after.threshold) < 2 * 0.05
    assert after.low < passed(after.threshold) < after.high
    assert (after.classes, after.images, after.searched) == (60, 360, 360)
    assert Calibration.read(model.path or "", model.checksum) == before, "it belongs to the gallery"
    assert gallery.read_calibration() == after
    # The report names the replaced threshold, and how many pictures pass it.
    said: list[str] = []
    calibrate(gallery=gallery, rate=0.1, report=said.append)
    assert f"the threshold {after.threshold:.4f} for a rate of 0.05" in said[0]
    assert "learnt from 360 photos of 60 classes" in said[0]
    assert f"{100 * after.false_accepts:.2f} % of the unknown photos here pass it" in said[0]
    assert gallery.read_calibration().rate == 0.1


def embedder_at(folder: Path) -> Embedder:
    return Embedder(nn.Flatten(), lambda _: torch.zeros(24, 1, 1), checksum="m" * 64, path=folder / "model.safetensors")


def test_a_gallery_is_searched_as_in_plain_python(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(43, 24))
    labels = [f"class {row % 8}" if row < 40 else None for row in range(43)]
    gallery = Gallery.create(tmp_path / "shop", embedder_at(tmp_path), distance="euclidean")
    gallery.add_vectors(vectors, [str(row) for row in range(43)], labels)
    found = calibrate(gallery.embedder, gallery=tmp_path / "shop", rate=0.2)

    def nearest(query: np.ndarray, own: str | None) -> float:
        far = [math.dist(query, row) for row, of in zip(vectors, labels, strict=True) if of not in (None, own)]
        return min(far)

    alone = [nearest(vectors[row], labels[row]) for row in range(40)]
    possible = {sum(item <= limit for item in alone) for limit in alone}  # two may be the nearest of each other
    assert sum(item <= found.threshold for item in alone) == max(count for count in possible if count <= 8)
    unknown = vectors[:6] + rng.normal(size=(6, 24)) * 2
    file = tmp_path / "unknown.parquet"
    write_embeddings(file, Rows.of(torch.from_numpy(unknown).float(), label=["class 3", "new"] * 3))
    own = calibrate(gallery.embedder, file, gallery=gallery, rate=0.5)
    distances = [nearest(item, ["class 3", "new"][row % 2]) for row, item in enumerate(unknown)]
    assert sum(distance <= own.threshold for distance in distances) == 3
    assert (own.classes, own.images, own.searched, own.distance) == (2, 6, 40, "euclidean")
    np.save(tmp_path / "loose.npy", unknown)
    loose = calibrate(gallery.embedder, tmp_path / "loose.npy", gallery=gallery, rate=0.5)
    assert (loose.classes, loose.images) == (1, 6), "pictures without labels are one class"


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content | {"format": 2},
        lambda content: content | {"distance": "hamming"},
        lambda content: content | {"classes": "many"},
        lambda content: {name: value for name, value in content.items() if name != "model"},
    ],
)
def test_a_damaged_file_is_one_sentence(damage, rows: Rows, tmp_path: Path) -> None:
    path = calibrate(embedder(), rows).write(tmp_path)
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
        f"validation classes of {copy}: 18 photos of 3 classes",
        "This means little",
        "20 classes and 180 photos",
    ):
        assert words in " ".join(result.stdout.split()), result.stdout
    kept = json.loads((copy / "calibration.json").read_text())
    assert kept["model"] == read_checksum(copy)
    assert (kept["classes"], kept["images"]) == (3, 18)  # as classes.json has them
    assert kept["rate"] == 1 / 18
    words = ("--format", "json", "--rate", "0.2", "--split", "test")
    found = json.loads(here("calibrate", copy, *words).stdout)
    assert (found["rate"], found["data"], found["images"]) == (0.2, f"test classes of {copy}", 24)
    assert found["low"] is None
    table = here("calibrate", copy, "--format", "csv").stdout
    assert table.startswith("model,distance,data,classes,images,searched,rate,threshold,false_accepts,")


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
    assert not (copy / "calibration.json").exists(), "it belongs to the gallery"
    again = here("calibrate", "--gallery", tmp_path / "shop", "--rate", "0.2")
    assert f"the threshold {found['threshold']:.4f} for a rate of 0.0238" in again.stderr
    assert "learnt from 42 photos of 7 classes" in again.stderr
    assert f"Kept in {tmp_path / 'shop'}" in again.stdout
    assert "20" in again.stdout.split("│")[1], "rates and shares are all in percent"
    for name in classes["train"][:2]:
        shutil.copytree(folder / name, tmp_path / "trained" / name)
    assert here("gallery", "create", tmp_path / "old", tmp_path / "trained", "--model", copy).returncode == 0
    refused = here("calibrate", copy, "--gallery", tmp_path / "old")
    assert_refused(refused, ["was trained on all classes", "--data.root"])
    unknown = here(
        "calibrate", copy, "--gallery", tmp_path / "old", "--data.root", folder, "--rate", "0.3", "--format", "json"
    )
    found = json.loads(unknown.stdout)
    assert (found["classes"], found["images"], found["searched"]) == (7, 42, 12)
    assert "30 of 72 photos belong to classes that were trained on: left out." in unknown.stderr
    assert_refused(here("calibrate", copy, "--gallery", tmp_path / "old", "--split", "test"), ["leave the split"])
    table = here("report", tmp_path / "old", "--out", tmp_path / "old.html")
    assert table.returncode == 0, table.stderr
    page = (tmp_path / "old.html").read_text()
    assert "42 photos of 7 classes" in page
    assert "20 classes and 34 photos" in page


def test_vectors_that_the_model_made_are_taken(rows: Rows, copy: Path, tmp_path: Path, here: Here) -> None:
    file = tmp_path / "vectors.parquet"
    assert rows.embeddings is not None
    content = replace(rows, embeddings=rows.embeddings[:, :16])
    write_embeddings(file, replace(content, made_by=read_checksum(copy)))
    result = here("calibrate", copy, "--data.root", file, "--format", "json")
    found = json.loads(result.stdout)
    assert (found["images"], found["data"]) == (200 - 9 * 8, str(file)), "9 are of other splits"
    write_embeddings(file, replace(content, made_by="another"))
    assert_refused(here("calibrate", copy, "--data.root", file), ["were made by another model (checksum another)"])
    write_embeddings(file, rows)
    assert_refused(here("calibrate", copy, "--data.root", file), ["has 24 dimensions", "have 16"])
    np.save(tmp_path / "bare.npy", rows.embeddings[:, :16].numpy())
    assert_refused(here("calibrate", copy, "--data.root", tmp_path / "bare.npy"), ["gives no labels"])


def test_what_cannot_be_done_is_one_sentence(copy: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("model.safetensors", "model.json"):
        shutil.copy(copy / name, bare)
    assert_refused(here("calibrate", bare), ["is not a run", "--data.root"])
    assert_refused(here("calibrate", copy, "--rate", "2"), ["rate is 2"])
    assert_refused(here("calibrate"), ["--gallery"])
    one = tmp_path / "one"
    shutil.copytree(folder / "class 01", one / "only")
    result = here("calibrate", bare, "--data.root", one)
    assert_refused(result, ["only one class"])
    assert not (bare / "calibration.json").exists()


def families() -> tuple[torch.Tensor, torch.Tensor]:
    """Features of 40 classes that come in families, and their classes."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 48, generator=generator)[torch.arange(40) % 10]
    centres = centres + 0.6 * torch.randn(40, 48, generator=generator)
    labels = torch.arange(40).repeat_interleave(12)
    return centres[labels] + 0.6 * torch.randn(480, 48, generator=generator), labels


@pytest.mark.parametrize("kept", ["whitened", "trained 3/4"])
def test_classes_are_left_out_of_the_head_that_a_gallery_learnt_on_them(
    kept: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.retrieval.improving.improvement._LEAST_STEPS", 40)
    features, labels = families()
    known = labels < 20
    own, names = labels[known], [f"{label:02d}" for label in labels[known].tolist()]
    head = whitened_head(features[known])
    if kept != "whitened":
        head = between(head, trained_head(head, features[known], own), 0.75)
    with create_with_head(tmp_path / "shop", head, kept, None, None) as store, torch.no_grad():
        items = make_items(Rows.of(path=[f"{row}" for row in range(240)], label=names))
        store.add(head(features[known]).numpy(), items, features[known].numpy())
    found = calibrate(gallery=tmp_path / "shop", rate=0.1)
    gallery = Gallery.open(tmp_path / "shop")
    vectors = gallery.embedder.embed(features[~known])

    def passed(threshold: float) -> float:
        return float((gallery.neighbours(vectors, 1).distances[:, 0] <= threshold).mean())

    made = gallery.embedder.embed(features[known])
    distances, _ = nearest_other_classes(made, own, made, own, distance="cosine", k=1)
    assert passed(float(distances.quantile(0.1))) > 0.3, "the head has seen the classes that play the unknown ones"
    assert 0.05 < passed(found.threshold) < 0.2
    assert found.low < passed(found.threshold) < found.high
    assert recognize(gallery, saved(tmp_path / "x.npy", features[~known]), rate=0.1).threshold == found.threshold


def test_a_whitening_without_a_class_is_that_of_the_other_classes() -> None:
    features, labels = families()
    groups = torch.where(labels < 38, labels // 10, -1)
    heads = dict(heads_without(features, labels, groups, "whitened", dim=20))
    assert [*heads] == [0, 1, 2, 3]
    for group, head in heads.items():
        expected = whitened_head(features[groups != group], 20)
        torch.testing.assert_close(head(features), expected(features), atol=1e-5, rtol=0)


def saved(path: Path, vectors: torch.Tensor) -> Path:
    np.save(path, vectors.numpy())
    return path


def test_a_threshold_of_one_gallery_is_not_that_of_another_with_the_same_network(
    named: str, folder: Path, tmp_path: Path, here: Here
) -> None:
    cars, faces = tmp_path / "cars", tmp_path / "faces"
    for place in (cars, faces):
        assert here("gallery", "create", place, folder, "--model", named).returncode == 0
    learnt = here("calibrate", named, "--gallery", faces, "--rate", "0.2", "--format", "json")
    assert learnt.returncode == 0, learnt.stderr
    query = folder / "class 00" / "0.png"
    assert here("recognize", faces, query).returncode == 0
    assert_refused(here("recognize", cars, query), ["has no threshold", f"proxemic calibrate --gallery {cars}"])
    # Without a gallery, the threshold is printed and kept nowhere.
    alone = here("calibrate", named, "--data.root", folder, "--rate", "0.2")
    assert "Not kept" in alone.stdout
    assert_refused(here("recognize", cars, query), ["has no threshold"])
    grouped = here("cluster", folder, "--model", named, "--min-size", "3")
    assert grouped.returncode == 0, grouped.stderr
    assert "Groups are joined" not in grouped.stderr


def test_a_whitened_gallery_is_calibrated_with_the_name_of_its_network(
    named: str, folder: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxemic.retrieval.galleries.gallery.ENOUGH_TO_WHITEN", 70)
    gallery = Gallery.create(tmp_path / "shop", named, folder)
    assert gallery.store.info.head == "whitened"
    found = calibrate(named, gallery=gallery, rate=0.2)
    assert found == Gallery.open(tmp_path / "shop").read_calibration()
    with pytest.raises(UserError, match="is not the model of"):
        calibrate("timm:tf_efficientnet_lite0", gallery=gallery)
