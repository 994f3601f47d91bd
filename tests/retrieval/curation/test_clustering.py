"""Groups of pictures: the clusters, the table, the folder of links, and refusals."""

import itertools
import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from command_line import csv_rows
from images import write_folder
from leftovers import killed_at
from proxemic.data import FilePixels
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.metrics import Distance, partition_agreement
from proxemic.retrieval import Embedder, calibrate
from proxemic.retrieval.curation import clustering
from proxemic.retrieval.curation.clustering import Clusters, Method, average_linkage, best_cut, cluster, cut


def prepare(image: Image.Image) -> Tensor:
    array = np.array(image.convert("RGB").resize((4, 4), Image.Resampling.BOX))
    return torch.from_numpy(array).permute(2, 0, 1).float() / 255 - 0.5


@pytest.fixture
def embedder() -> Embedder:
    return Embedder(nn.Flatten(), prepare)


def write_groups(path: Path, sizes: tuple[int, ...] = (6, 9, 7), alone: int = 4) -> list[int]:
    """Vectors in tight groups, and some far from all; the group of each, from 0, -1 for those alone."""
    rng = np.random.default_rng(0)
    centres = np.linalg.qr(rng.normal(size=(16, 16)))[0]
    parts = [centres[group] + 0.05 * rng.normal(size=(size, 16)) for group, size in enumerate(sizes)]
    lonely = centres[len(sizes) : len(sizes) + alone]
    np.save(path, np.concatenate([*parts, lonely]).astype(np.float32) * 3)
    return [group for group, size in enumerate(sizes) for _ in range(size)] + [-1] * alone


@pytest.mark.parametrize(("method", "threshold"), [("hdbscan", None), ("agglomerative", 0.3)])
def test_finds_groups_and_leaves_out_what_is_alone(tmp_path: Path, method: Method, threshold: float | None) -> None:
    true = write_groups(tmp_path / "x.npy")
    found = cluster(tmp_path / "x.npy", method=method, threshold=threshold)
    # The largest has number 1.
    assert found.numbers.tolist() == [{0: 3, 1: 1, 2: 2, -1: -1}[group] for group in true]
    assert found.agreement is None
    assert found.summary() == "26 photos: 3 clusters of 6 to 9, 4 photos in none."
    x = np.load(tmp_path / "x.npy").astype(float).tolist()

    def apart(one: list[float], other: list[float]) -> float:
        return 1 - sum(a * b for a, b in zip(one, other, strict=True)) / math.hypot(*one) / math.hypot(*other)

    for number, medoid in enumerate(found.medoids, start=1):
        members = [row for row, item in enumerate(found.numbers.tolist()) if item == number]
        assert medoid == min(members, key=lambda row: sum(apart(x[row], x[other]) for other in members))
        for row in members:
            assert float(found.distances[row]) == pytest.approx(apart(x[row], x[medoid]), abs=1e-5)
    assert found.distances[-4:].isnan().all()


@pytest.mark.parametrize("method", ["hdbscan", "agglomerative"])
def test_equal_pictures_are_one_group(tmp_path: Path, method: Method) -> None:
    np.save(tmp_path / "x.npy", np.full((12, 5), 0.3) + np.linspace(0, 1e-7, 12)[:, None])
    found = cluster(tmp_path / "x.npy", method=method, threshold=0.3 if method == "agglomerative" else None)
    assert found.numbers.tolist() == [1] * 12


def test_average_linkage_is_cut_at_the_threshold(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[0.0, 1.0], [0.1, 1.0], [1.0, 0.1], [1.0, 0.0]], np.float32))
    x = np.load(tmp_path / "x.npy").astype(float)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    mean = float((1 - x[:2] @ x[2:].T).mean())
    for threshold, expected in ((mean - 1e-4, [1, 1, 2, 2]), (mean + 1e-4, [1, 1, 1, 1])):
        found = cluster(tmp_path / "x.npy", method="agglomerative", threshold=threshold, min_size=2)
        assert found.numbers.tolist() == expected
    assert cluster(tmp_path / "x.npy", method="agglomerative", threshold=0.1).numbers.tolist() == [-1] * 4
    assert cluster(tmp_path / "x.npy").numbers.tolist() == [-1] * 4
    assert cluster(tmp_path / "x.npy").medoids == ()


def test_a_number_of_groups_divides_all_pictures(tmp_path: Path) -> None:
    true = write_groups(tmp_path / "x.npy", alone=0)
    found = cluster(tmp_path / "x.npy", groups=3)
    assert found.numbers.tolist() == [{0: 3, 1: 1, 2: 2}[group] for group in true]
    assert len(cluster(tmp_path / "x.npy", groups=22).medoids) == 22
    np.save(tmp_path / "same.npy", np.ones((12, 4), np.float32))
    assert cluster(tmp_path / "same.npy", groups=2).numbers.tolist() == [1] * 12


def test_most_pictures_in_no_group_is_said(tmp_path: Path) -> None:
    write_groups(tmp_path / "x.npy")
    assert "Most photos are in no group" in cluster(tmp_path / "x.npy", threshold=1e-6).summary()
    assert "Most photos" not in cluster(tmp_path / "x.npy", threshold=0.3).summary()


@pytest.mark.parametrize("most", [26, 25])
def test_the_threshold_that_was_learnt_for_groups_is_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    true = write_groups(tmp_path / "x.npy")
    embedder = Embedder(
        nn.Flatten(), lambda _: torch.zeros(16, 1, 1), checksum="m", path=tmp_path / "model.safetensors"
    )
    content = Rows.of(torch.from_numpy(np.load(tmp_path / "x.npy")), label=[str(at) for at in true])
    learnt = calibrate(embedder, content, rate=0.3)
    monkeypatch.setattr(clustering, "MOST", most)
    said: list[str] = []
    found = cluster(tmp_path / "x.npy", embedder, report=said.append)
    if most == 26:
        assert found.threshold == learnt.grouping
        assert f"{learnt.grouping:.4f}" in said[0]
    else:
        assert found.threshold is None
        assert "HDBSCAN is used for 26" in said[1]
    assert found.numbers.tolist() == [{0: 3, 1: 1, 2: 2, -1: -1}[group] for group in true]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos", classes=4)


def test_pictures_with_labels_are_compared_with_these(photos: Path, embedder: Embedder, tmp_path: Path) -> None:
    (photos / "class 00" / "damaged.png").write_bytes(b"")
    notes: list[str] = []
    found = cluster(photos, embedder, out=tmp_path / "groups.csv", report=notes.append)
    unreadable, embedded, written = notes
    assert unreadable == "1 photos cannot be read, and are left out."
    assert embedded == "24 photos were embedded by the model, and 0 are known from before."
    assert written == f"Written: {tmp_path / 'groups.csv'}"
    labels = torch.tensor([int(Path(name).parent.name[-2:]) for name in found.names])
    assert found.agreement == partition_agreement(labels, found.numbers)
    assert found.agreement is not None
    assert found.agreement.f1 > 0.9
    assert "With the labels: NMI " in found.summary()
    rows = csv_rows(tmp_path / "groups.csv")
    assert [row["path"] for row in rows] == [*found.names]
    assert [int(row["cluster"]) for row in rows] == found.numbers.tolist()
    for row, distance in zip(rows, found.distances.tolist(), strict=True):
        assert float(row["distance"] or "nan") == pytest.approx(distance, rel=1e-5, abs=1e-9, nan_ok=True)


def test_a_folder_of_links(photos: Path, embedder: Embedder, tmp_path: Path) -> None:
    long = photos / "class 01" / ("é" * 120 + ".png")
    (photos / "class 01" / "0.png").rename(long)
    Image.effect_noise((32, 32), 90).save(photos / "class 02" / "<b>.png")
    out = tmp_path / "groups"
    stale = killed_at(out, "work")
    (stale / "cluster-0001").mkdir(parents=True)
    found = cluster(photos, embedder, out=out, min_size=4, report=lambda _: None)
    assert not stale.exists()
    links = {path: path.resolve() for path in out.rglob("*") if path.is_symlink()}
    assert sorted(map(str, links.values())) == sorted(map(str, (Path(name).resolve() for name in found.names)))
    for number, medoid in enumerate(found.medoids, start=1):
        first = min((out / f"cluster-{number:04d}").iterdir())
        assert first.resolve() == Path(found.names[medoid]).resolve()
        assert first.name.startswith("00001-")
    for path, target in links.items():
        number = int(found.numbers[found.names.index(str(target))])
        assert path.parent.name == (f"cluster-{number:04d}" if number > 0 else "none")
        assert len(os.fsencode(path.name)) <= 255
        with Image.open(path) as image:
            image.load()
    with pytest.raises(UserError, match="exists: name a new folder"):
        cluster(photos, embedder, out=out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["groups", "photos"]


def test_a_folder_is_whole_or_not_there(
    photos: Path, embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = cluster(photos, embedder)
    made: list[Path] = []
    link = Path.symlink_to

    def fail(self: Path, target: Path) -> None:
        made.append(self)
        if len(made) == 5:
            raise OSError(28, "No space left on device")
        link(self, target)

    monkeypatch.setattr(Path, "symlink_to", fail)
    with pytest.raises(UserError, match="the disk is full"):
        found.write(tmp_path / "groups")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["photos"]


def test_refuses_in_a_sentence(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_groups(tmp_path / "x.npy")
    x = tmp_path / "x.npy"
    with pytest.raises(ValueError, match="method is 'spectral', but must be hdbscan"):
        cluster(x, method="spectral")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="min_size is 1, but must be 2 or more"):
        cluster(x, min_size=1)
    with pytest.raises(ValueError, match="threshold is nan"):
        cluster(x, method="agglomerative", threshold=math.nan)
    with pytest.raises(UserError, match="HDBSCAN has no threshold"):
        cluster(x, method="hdbscan", threshold=0.5)
    with pytest.raises(UserError, match="needs a distance: give one"):
        cluster(x, method="agglomerative")
    with pytest.raises(UserError, match="vectors are not photos"):
        cluster(x, out=tmp_path / "links")
    away = replace(cluster(x), pixels=FilePixels(["s3://bucket/a.jpg"]))
    with pytest.raises(UserError, match=r"s3://bucket/a\.jpg is not a file on this machine"):
        away.write(tmp_path / "links")
    np.save(tmp_path / "zero.npy", np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="row 0: its vector is zero"):
        cluster(tmp_path / "zero.npy", method="agglomerative", threshold=0.5)
    monkeypatch.setattr(clustering, "MOST", 20)
    with pytest.raises(UserError, match="takes 20 photos at most, but there are 26: take the method hdbscan"):
        cluster(x, method="agglomerative", threshold=0.5)
    assert isinstance(cluster(x), Clusters)


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_the_best_threshold_is_better_than_all_others(distance: Distance) -> None:
    rng = np.random.default_rng(0)
    labels = torch.arange(60) % 9
    x = torch.from_numpy(rng.normal(size=(9, 6))[labels] + 0.8 * rng.normal(size=(60, 6)))
    merges, distances = average_linkage(x, distance)
    tried = [float(distance) + 1e-9 for distance in distances]
    scores = [partition_agreement(labels, cut(merges, distances, threshold)).f1 for threshold in tried]
    best = best_cut(merges, distances, labels)
    assert 0.2 < max(scores) < 1
    assert partition_agreement(labels, cut(merges, distances, best)).f1 == max(scores)


def test_groups_are_joined_at_their_mean_distance() -> None:
    x = torch.tensor([[0.0], [1.0], [3.0], [10.0]])
    merges, distances = average_linkage(x, "euclidean")
    mean = [1.0, (3 + 2) / 2, (10 + 9 + 7) / 3]
    assert distances.tolist() == pytest.approx(mean)
    for threshold, groups in zip((1.0, 1.01, 2.51, 9), (4, 3, 2, 1), strict=True):
        numbers = cut(merges, distances, threshold).tolist()
        assert len({*numbers}) == groups == 1 + sum(one != other for one, other in itertools.pairwise(numbers))
    assert cut(*average_linkage(x[:1], "euclidean"), 1.0).tolist() == [0]
