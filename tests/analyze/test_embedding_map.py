"""``proxemic analyze map`` as a user runs it."""

from pathlib import Path

import pytest
import torch

from command_line import Here, assert_refused, cells, csv_rows
from proxemic.analysis.geometry import alignment, class_distances, hubness, uniformity
from proxemic.losses import ProxyLoss
from proxemic.studies.finished import FinishedRun

PARTS = ("pca", "tsne", "distances", "hubs")


def test_measures_and_maps(run: Path, tmp_path: Path, here: Here) -> None:
    stem = tmp_path / "new" / "look"
    result = here("analyze", "map", run, "--split", "train", "--classes", "3", "--out", stem)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in stem.parent.iterdir()) == sorted(
        f"look-{part}.{kind}" for part in PARTS for kind in ("png", "svg", "csv")
    )
    opened = FinishedRun(run)
    images, loss = opened.splits.train, opened.loss
    assert isinstance(loss, ProxyLoss)
    embeddings = opened.embed(images)
    hubs, distances = hubness(embeddings), class_distances(embeddings, images.labels)
    assert dict(cells(result.stdout)) == {
        "hubness, skewness of N_10": f"{hubs.skewness:.3f}",
        "images in no neighbours' list": f"{100 * hubs.antihubs:.1f} %",
        "largest N_10": str(hubs.largest),
        "distance within a class": f"{distances.within_mean:.4g} ± {distances.within_std:.4g}",
        "distance between classes": f"{distances.between_mean:.4g} ± {distances.between_std:.4g}",
        "P(within < between)": f"{distances.auc:.4f}",
        "alignment, α = 2": f"{alignment(embeddings, images.labels):.4f}",
        "uniformity, t = 2": f"{uniformity(embeddings):.4f}",
    }
    assert f"Drawn: 3 of {images.num_classes} classes, 18 images." in result.stdout
    assert "16 dimensions projected to 2 by PCA, which keep" in result.stdout

    for method in ("pca", "tsne"):
        rows = csv_rows(stem.with_name(f"look-{method}.csv"))
        kinds = [row["kind"] for row in rows]
        assert kinds == ["image"] * 18 + ["proxy"] * 6, "both proxies of each class"
        for row in rows:
            index = int(row["index"])
            label = int(images.labels[index]) if row["kind"] == "image" else index // loss.proxies_per_class
            assert images.class_names[label] == row["class"]
        assert len({row["class"] for row in rows}) == 3
    occurrences = csv_rows(stem.with_name("look-hubs.csv"))
    assert [int(row["images"]) for row in occurrences] == hubs.occurrences.bincount().tolist()
    pairs = csv_rows(stem.with_name("look-distances.csv"))
    assert sum(int(row["pairs_within"]) for row in pairs) == int(distances.within.sum())
    assert sum(int(row["pairs_between"]) for row in pairs) == int(distances.between.sum())
    assert len(pairs) == 64


def test_the_projection_is_of_unit_vectors_where_cosines_count(
    run: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed = FinishedRun.embed
    lengths = torch.arange(1.0, 1000.0)[:, None]
    monkeypatch.setattr(FinishedRun, "embed", lambda *given: lengths[: len(given[1])] * embed(*given))
    words = ["--split", "train", "--classes", "99", "--method", "pca", "--no-thumbnails"]
    result = here("analyze", "map", run, *words, "--out", tmp_path / "a")
    assert result.returncode == 0, result.stderr
    assert not (tmp_path / "a-tsne.png").exists()
    opened = FinishedRun(run)
    points = torch.nn.functional.normalize(opened.embed(opened.splits.train).double())
    proxies = torch.nn.functional.normalize(opened.loss.get_parameter("proxies").detach().double(), dim=2).flatten(0, 1)
    _, values, directions = torch.linalg.svd(points - points.mean(0), full_matrices=False)
    kept = 100 * values[:2].square().sum() / values.square().sum()
    assert f"keep {kept:.1f} % of the variance" in result.stdout
    expected = (torch.cat([points, proxies]) - points.mean(0)) @ directions[:2].T
    found = torch.tensor([[float(row["x"]), float(row["y"])] for row in csv_rows(tmp_path / "a-pca.csv")])
    torch.testing.assert_close(found.double().abs(), expected.abs(), atol=1e-4, rtol=1e-3)


def test_proxies_of_other_classes_and_the_same_files_again(run: Path, tmp_path: Path, here: Here) -> None:
    written = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        result = here("analyze", "map", run, "--classes", "2", "--seed", "5", "--out", tmp_path / name / "map")
        assert result.returncode == 0, result.stderr
        written.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert written[0] == written[1]
    assert "Grey stars: proxies of 2 of" in result.stdout
    classes = {kind: set() for kind in ("image", "proxy")}
    for row in csv_rows(tmp_path / "one" / "map-pca.csv"):
        classes[row["kind"]].add(row["class"])
    assert classes["image"] <= set(FinishedRun(run).test.class_names)
    assert classes["proxy"] <= set(FinishedRun(run).splits.train.class_names)
    assert {kind: len(names) for kind, names in classes.items()} == {"image": 2, "proxy": 2}


def test_without_proxies_in_the_plane(pairwise: Path, here: Here) -> None:
    result = here("analyze", "map", pairwise, "--method", "pca")
    assert result.returncode == 0, result.stderr
    assert "PairwiseLoss has no proxies: the map has none." in result.stdout
    assert "2 dimensions, and are drawn without a projection." in result.stdout
    opened = FinishedRun(pairwise)
    rows = csv_rows(pairwise / "map-pca.csv")
    embeddings = opened.embed(opened.test)
    assert {row["kind"] for row in rows} == {"image"}
    for row in rows:
        expected = embeddings[int(row["index"])].tolist()
        assert [float(row["x"]), float(row["y"])] == pytest.approx(expected, rel=1e-4)
    assert_refused(here("analyze", "map", pairwise, "--split", "validation"), ["has no validation classes", "split"])


def test_no_proxies_where_they_are_not_wanted(run: Path, tmp_path: Path, here: Here) -> None:
    words = ["--split", "validation", "--method", "pca", "--no-proxies", "--no-thumbnails", "--out", tmp_path / "map"]
    result = here("analyze", "map", run, *words)
    assert result.returncode == 0, result.stderr
    assert "stars" not in result.stdout
    assert {row["kind"] for row in csv_rows(tmp_path / "map-pca.csv")} == {"image"}


def test_a_sample_is_said_to_be_one(run: Path, tmp_path: Path, here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    def few(*rows: torch.Tensor, **options: object) -> object:
        return class_distances(*rows, max_pairs=100, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("proxemic.analyze._embedding_map.class_distances", few)
    result = here("analyze", "map", run, "--method", "pca", "--no-thumbnails", "--out", tmp_path / "map")
    assert result.returncode == 0, result.stderr
    assert "4 random images, compared with all" in result.stdout


def test_refused(run: Path, tmp_path: Path, here: Here) -> None:
    assert_refused(here("analyze", "map", run, "--classes", "0"), ["classes is 0", "at least 1"])
    assert_refused(here("analyze", "map", run, "--seed", "-1"), ["seed is -1"])
    images = FinishedRun(run).test
    few = images.select([0, 1, 6])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FinishedRun, "test", few)
        assert_refused(here("analyze", "map", run), ["classes is 20", "draws 3 images", "at least 4"])
    (tmp_path / "file").write_text("")
    words = ["--method", "pca", "--no-thumbnails", "--out", tmp_path / "file" / "map"]
    assert_refused(here("analyze", "map", run, *words), ["could not be written"])
