"""Duplicates of pictures, and the hashes and signatures that find them."""

import io

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from images import write_folder
from proxemic.data import read_image
from proxemic.retrieval.curation import duplicates
from proxemic.retrieval.curation.duplicates import (
    Match,
    content_hash,
    difference,
    near_matches,
    near_vectors,
    reduced,
    signature,
)


def units(rows: int, dim: int = 12) -> np.ndarray:
    numbers = np.random.default_rng(0).normal(size=(rows, dim)).astype(np.float32)
    return numbers / np.linalg.norm(numbers, axis=1, keepdims=True)


def test_a_near_duplicate_looks_the_same_and_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = units(40)
    looks[30:33] = looks[3], looks[4], looks[5]
    x = torch.from_numpy(units(40, 6))
    x[30], x[31] = x[3], -x[4]  # the second looks like row 4, but a model sees another
    x[32] = x[5]
    closer: list[tuple[int, int]] = []

    def differ(one: int, other: int) -> float:
        closer.append((one, other))
        return 0.5 if one == 32 else 0.001  # the third differs in a detail

    expected = [Match(30, 3, "near", 0.001, pytest.approx(0.0, abs=1e-6))]  # type: ignore[arg-type]
    assert near_matches(looks, x, differ, range(40), [None] * 40) == expected
    assert closer == [(30, 3), (32, 5)]
    monkeypatch.setattr(duplicates, "_CELLS", 100)  # three rows at a time
    assert near_matches(looks, x, differ, range(40), [None] * 40) == expected


def test_the_copy_in_another_split_counts() -> None:
    looks, x = units(20), torch.from_numpy(units(20, 6))
    for row in (5, 9, 12):
        looks[row], x[row] = looks[2], x[2]
    splits = ["train"] * 3 + ["test"] * 17
    found = near_matches(looks, x, lambda *_: 0.0, range(20), splits)
    assert [(item.row, item.of) for item in found] == [(5, 2), (9, 2), (12, 2)]
    backwards = near_matches(looks, x, lambda *_: 0.0, range(19, -1, -1), splits)
    assert [(backward.row, backward.of) for backward in backwards] == [(9, 12), (5, 9), (2, 5)]
    assert near_matches(looks[:1], x[:1], lambda *_: 0.0, [0], [None]) == []


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_vectors_that_nearly_coincide(distance: duplicates.Distance) -> None:
    x = torch.randn(60, 8)
    x[50], x[51] = x[7], x[8] + 1e-4
    found = near_vectors(x, distance=distance)
    assert [(item.row, item.of, item.kind, item.look) for item in found] == [
        (50, 7, "exact", None),
        (51, 8, "near", None),
    ]
    assert near_vectors(x[:1]) == []
    same = near_vectors(torch.ones(30, 2))
    assert [(item.row, item.of) for item in same] == [(row, 0) for row in range(1, 30)]


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Image.Image]:
    root = write_folder(tmp_path_factory.mktemp("signatures") / "images", classes=6, images=1, size=64, noise=8)
    return [read_image(path) for path in sorted(root.rglob("*.png"))]


def altered(image: Image.Image) -> Image.Image:
    content = io.BytesIO()
    smaller = image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.BICUBIC)
    ImageEnhance.Brightness(smaller).enhance(0.8).save(content, "JPEG", quality=70)
    return read_image(content.getvalue())


def test_a_signature_has_the_low_frequencies_of_the_cosine_transform(pictures: list[Image.Image]) -> None:
    planes = np.asarray(pictures[0].convert("YCbCr").resize((32, 32), Image.Resampling.BILINEAR)).astype(float)
    waves = np.cos(np.pi * np.arange(32)[:, None] * (2 * np.arange(32) + 1) / 64) * np.sqrt(2 / 32)
    waves[0] /= np.sqrt(2)
    light, blue, red = (waves @ (planes[..., plane] - 128 * (plane > 0)) @ waves.T for plane in range(3))
    expected = np.concatenate([light[:8, :8].ravel()[1:], blue[:3, :3].ravel(), red[:3, :3].ravel()])
    np.testing.assert_allclose(signature(pictures[0]), expected / np.linalg.norm(expected), atol=1e-5)


def test_recompressed_resized_and_darker_is_the_same_and_another_is_not(pictures: list[Image.Image]) -> None:
    for place, picture in enumerate(pictures):
        copy = altered(picture)
        assert signature(picture) @ signature(copy) > 0.96
        assert difference(reduced(picture), reduced(copy)) < 0.012
        assert content_hash(picture) != content_hash(copy)
        other = pictures[place - 1]
        assert signature(picture) @ signature(other) < 0.9
        assert difference(reduced(picture), reduced(other)) > 0.1


def test_a_picture_in_another_colour_is_another(pictures: list[Image.Image]) -> None:
    shirt = Image.new("RGB", (64, 64), "white")
    shirt.paste("red", (16, 16, 48, 60))
    blue = shirt.copy()
    blue.paste("blue", (16, 16, 48, 60))
    assert signature(shirt) @ signature(blue) < 0.5


def test_a_picture_without_structure_resembles_nothing() -> None:
    flat = Image.new("L", (40, 40), 200)
    assert not signature(flat).any()
    assert difference(reduced(flat), reduced(flat)) == 1.0
    assert signature(Image.new("L", (1, 1))).shape == signature(Image.new("RGB", (300, 2), "red")).shape
