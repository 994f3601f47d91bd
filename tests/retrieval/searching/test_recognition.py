"""Queries are named by the nearest labelled picture within a threshold, or unknown."""

import csv
import io
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
from proxemic.data.embeddings import write_embeddings
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.retrieval import Calibration, Embedder, Gallery, calibrate, recognize

FAR, NEAR = [-1.0, 0.0], [1.0, 0.05]


@pytest.fixture
def shop(tmp_path: Path) -> Gallery:
    """A shoe at 0 degrees, unlabelled pictures to 20, a hat at 30."""
    gallery = Gallery.create(tmp_path / "shop", dim=2)
    angles = np.radians([0, *np.linspace(1, 20, 40), 30])
    paths = ["shoe.jpg", *(f"new {number}.jpg" for number in range(40)), "hat.jpg"]
    gallery.add_vectors(np.stack([np.cos(angles), np.sin(angles)], 1), paths, ["shoe", *[None] * 40, "hat"])
    return gallery


def at(*degrees: float) -> np.ndarray:
    angles = np.radians(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


def saved(path: Path, vectors: np.ndarray) -> Path:
    np.save(path, vectors)
    return path


def test_the_nearest_labelled_picture_within_the_threshold_names_a_query(shop: Gallery, tmp_path: Path) -> None:
    file = saved(tmp_path / "queries.npy", at(0, 40, 18, 14, 180, 10.2))
    threshold = 1 - math.cos(math.radians(12.5))
    found = [item for _, item in recognize(shop, file, threshold=threshold).queries]
    # Unlabelled pictures that are nearer are passed over, as many as they are.
    assert [item.label for item in found] == ["shoe", "hat", "hat", None, None, "shoe"]
    assert [item.nearest and item.nearest.path for item in found][:3] == ["shoe.jpg", "hat.jpg", "hat.jpg"]
    assert found[2].distance == pytest.approx(1 - math.cos(math.radians(12)), abs=1e-6)
    assert found[3].nearest is not None
    assert found[3].nearest.label is None, "of an unknown query the nearest picture, with a label or without"
    assert found[4].distance == pytest.approx(1 - math.cos(math.radians(150)), abs=1e-6)


def test_the_threshold_itself_is_within(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "line", dim=1, distance="euclidean")
    gallery.add_vectors([[0.0], [10.0]], ["a", "b"], ["a", "b"])
    file = saved(tmp_path / "queries.npy", np.array([[0.5], [9.0], [10.5000001]]))
    found = recognize(gallery, file, threshold=0.5)
    assert [item.label for _, item in found.queries] == ["a", None, "b"]
    assert [item.label for _, item in recognize(gallery, file, threshold=math.nextafter(0.5, 0)).queries] == [None] * 3


def test_an_empty_gallery_knows_nothing(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "empty", dim=2)
    found = recognize(gallery, saved(tmp_path / "queries.npy", at(0)), threshold=1.0)
    ((_, query),) = found.queries
    assert (query.label, query.distance, query.nearest) == (None, math.inf, None)
    assert json.loads(found.text("json"))[0]["distance"] is None
    assert "unknown" in found.text()


@pytest.mark.parametrize("threshold", [-0.1, math.nan, math.inf, True, "near"])
def test_what_is_no_threshold_is_refused(shop: Gallery, tmp_path: Path, threshold: float) -> None:
    with pytest.raises(ValueError, match="must be a distance"):
        recognize(shop, saved(tmp_path / "queries.npy", at(0)), threshold=threshold)


def calibrated(tmp_path: Path) -> tuple[Embedder, torch.Tensor, list[str]]:
    """Return a model with a threshold from 40 classes, and vectors of 40 other classes."""
    embedder = Embedder(
        nn.Flatten(), lambda _: torch.zeros(24, 1, 1), checksum="m" * 64, path=tmp_path / "model.safetensors"
    )
    rng, labels = np.random.default_rng(0), np.arange(80 * 12) % 80
    vectors = rng.normal(size=(80, 24))[labels] + 0.7 * rng.normal(size=(80 * 12, 24))
    rows, names = torch.from_numpy(vectors).float(), np.array([f"class {label:02d}" for label in labels])
    held_out = torch.from_numpy(labels < 40)
    content = Rows.of(rows[held_out], label=names[held_out.numpy()].tolist())
    calibrate(embedder, content, rate=0.1)
    return embedder, rows[~held_out], names[~held_out.numpy()].tolist()


def test_known_classes_are_recognised_and_few_unknown_ones_at_the_calibrated_rate(tmp_path: Path) -> None:
    embedder, rows, names = calibrated(tmp_path)
    half = torch.arange(len(rows)) < len(rows) // 2  # images; classes alternate
    known = torch.tensor([name < "class 60" for name in names])
    gallery = Gallery.create(tmp_path / "shop", embedder)
    add = (half & known).nonzero().squeeze(1).tolist()
    gallery.add_vectors(rows[add], [f"{row}" for row in add], [names[row] for row in add])
    counts = {}
    for kind, chosen in (("known", ~half & known), ("unknown", ~known)):
        places = chosen.nonzero().squeeze(1).tolist()
        found = recognize(gallery, saved(tmp_path / "queries.npy", rows[places].numpy()), rate=0.1)
        assert found.rate == 0.1
        assert not found.notes
        labels = [item.label for _, item in found.queries]
        right = sum(label == names[place] for label, place in zip(labels, places, strict=True))
        counts[kind] = (right, sum(label is not None for label in labels), len(labels))
    # Named rightly, named at all, and asked; of unknown classes fewer than the rate says, as the gallery is smaller
    # than that of the calibration.
    assert counts == {"known": (113, 113, 120), "unknown": (0, 11, 240)}


def test_a_larger_gallery_than_the_thresholds_were_learnt_with_is_said(tmp_path: Path) -> None:
    embedder, rows, names = calibrated(tmp_path)
    gallery = Gallery.create(tmp_path / "shop", embedder)
    many = rows.repeat(3, 1)
    gallery.add_vectors(many, [f"{row}" for row in range(len(many))], names * 3)
    found = recognize(gallery, saved(tmp_path / "queries.npy", rows[:2].numpy()))
    note, advice = found.notes
    assert "among 480 photos, while this gallery has 1,440: more unknown photos" in note
    assert f"proxemic calibrate --gallery {tmp_path / 'shop'}" in advice
    assert "learnt from 40 classes (in nine of ten halves of them, " in " ".join(found.text().split())


def test_thresholds_from_few_classes_are_doubted_wherever_they_are_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    embedder, rows, names = calibrated(tmp_path)
    replace(Calibration.read(tmp_path), classes=5, low=math.nan, high=math.nan).write(tmp_path / "model.safetensors")
    gallery = Gallery.create(tmp_path / "shop", embedder)
    gallery.add_vectors(rows, [f"{row}" for row in range(len(rows))], names)
    file = saved(tmp_path / "queries.npy", rows[:2].numpy())
    assert "learnt from 5 classes, and with fewer than 20" in recognize(gallery, file, rate=0.1).notes[0]
    assert recognize(gallery, file, threshold=0.3).notes == ()
    gallery.recognize([torch.ones(24, 1, 1)])
    assert "learnt from 5 classes" in caplog.text


def test_labelled_queries_are_counted(shop: Gallery, tmp_path: Path) -> None:
    file = tmp_path / "queries.parquet"
    labels = ["shoe", "hat", "hat", "shoe", "glove", "glove", None]
    vectors = torch.from_numpy(at(0, 40, 1, 180, 0, 180, 0))
    write_embeddings(file, Rows.of(vectors, label=labels))
    found = recognize(shop, file, threshold=1 - math.cos(math.radians(12.5)))
    assert found.counts() == {
        "known": {"right": 2, "wrong": 1, "unknown": 1},
        "new": {"right": 0, "wrong": 1, "unknown": 1},
    }
    said = " ".join(found.text().split())
    assert "4 labelled queries of classes of the gallery: 2 right, 1 wrong, 1 unknown." in said
    assert "2 labelled queries of other classes: 1 named, which is wrong, 1 unknown." in said
    lines = [*csv.DictReader(io.StringIO(found.text("csv")))]
    assert [line["query_label"] or None for line in lines] == labels
    assert [line["label"] for line in lines] == ["shoe", "hat", "shoe", "", "shoe", "", "shoe"]
    assert lines[3]["nearest_label"] == "hat", "of an unknown query, too"
    assert "labelled queries" not in recognize(shop, saved(tmp_path / "x.npy", at(0)), threshold=0.1).text()


def test_thresholds_of_another_model_or_none_are_refused(tmp_path: Path, shop: Gallery) -> None:
    embedder, rows, _ = calibrated(tmp_path)
    file = saved(tmp_path / "queries.npy", at(0))
    with pytest.raises(UserError, match=r"has no threshold: learn it with proxemic calibrate --gallery"):
        recognize(shop, file)
    with pytest.raises(UserError, match="A threshold and a false accept rate are given"):
        recognize(shop, file, rate=0.1, threshold=0.1)
    wide = saved(tmp_path / "wide.npy", rows[:1].numpy())
    gallery = Gallery.create(tmp_path / "two", embedder, distance="euclidean")
    with pytest.raises(UserError, match=r"is on the cosine distance, but .* is searched by the euclidean distance"):
        recognize(gallery, wide)
    other = Gallery.create(
        tmp_path / "three", Embedder(embedder.model, embedder.transform, checksum="o", path=embedder.path)
    )
    with pytest.raises(UserError, match="belongs to another model"):
        recognize(other, wide)
    with pytest.raises(UserError, match=r"for a false accept rate of 0\.1, not 0\.2"):
        recognize(Gallery.create(tmp_path / "four", embedder), wide, rate=0.2)


def test_as_a_user_types_it(run: Path, folder: Path, tmp_path: Path, here: Here) -> None:
    model = Path(shutil.copytree(run, tmp_path / "run"))
    tested = json.loads((model / "classes.json").read_text())["test"]
    for name in tested[:2]:
        (tmp_path / "shop photos" / name).mkdir(parents=True)
        for number in range(3):
            shutil.copy(folder / name / f"{number}.png", tmp_path / "shop photos" / name)
    assert here("gallery", "create", tmp_path / "shop", tmp_path / "shop photos", "--model", model).returncode == 0
    queries = [folder / tested[0] / "4.png", folder / tested[3] / "4.png", folder / tested[1]]
    assert_refused(
        here("recognize", tmp_path / "shop", *queries), ["has no threshold", f"calibrate --gallery {tmp_path / 'shop'}"]
    )
    assert here("calibrate", model, "--rate", "0.2").returncode == 0
    result = here("recognize", tmp_path / "shop", *queries, "--rate", "0.2", "--format", "json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found) == 2 + 6
    # The oracle: the gallery by hand.
    embedder = Embedder.load(model)
    paths = sorted((tmp_path / "shop photos").rglob("*.png"))
    gallery = nn.functional.normalize(embedder.embed([*paths]).double())
    asked = nn.functional.normalize(embedder.embed([item["query"] for item in found]).double())
    distances = 1 - asked @ gallery.T
    threshold = json.loads((model / "calibration.json").read_text())["threshold"]
    for item, row in zip(found, distances, strict=True):
        nearest = int(row.argmin())
        assert item["threshold"] == threshold
        assert item["distance"] == pytest.approx(float(row[nearest]), abs=1e-5)
        assert item["label"] == (paths[nearest].parent.name if float(row[nearest]) <= threshold else None)
    own = [item for item in found if Path(item["query"]).name in ("0.png", "1.png", "2.png")]
    assert [item["label"] for item in own] == [tested[1]] * 3, "pictures of the gallery find themselves"
    table = here("recognize", tmp_path / "shop", *queries, "--threshold", "0").stdout
    assert "8 queries recognised within a distance of 0.0000" in table
    assert "unknown" in table


def test_queries_that_cannot_be_read_are_listed_and_the_others_answered(
    run: Path, folder: Path, tmp_path: Path, here: Here
) -> None:
    names = sorted(path.name for path in folder.iterdir())
    created = here("gallery", "create", tmp_path / "shop", folder / names[0], "--model", run)
    assert created.returncode == 0, created.stderr
    bad = tmp_path / "bad.png"
    bad.write_text("nothing")
    good = folder / names[0] / "0.png"
    result = here("recognize", tmp_path / "shop", bad, good, "--threshold", "0.5", "--format", "json")
    assert result.returncode == 0
    assert "1 query cannot be read" in result.stderr
    assert [load["query"] for load in json.loads(result.stdout)] == [str(good)]
    assert_refused(here("recognize", tmp_path / "shop", bad, "--threshold", "0.5"), ["bad.png", "cannot be read"])
    assert_refused(here("recognize", tmp_path / "none", good, "--threshold", "0.5"), ["none"])
    assert_refused(here("recognize", tmp_path / "shop", good, "--threshold", "-1"), ["must be a distance"])
    gallery = Gallery.open(tmp_path / "shop")
    assert gallery.recognize(good, threshold=0.5)[0].label is None, "pictures in the folder itself have no label"
    assert gallery.recognize([good, good], threshold=0.5)[1].distance == pytest.approx(0, abs=1e-5)
