"""Hashes and signatures of pictures: against scipy's transform, and what must and must not change them."""

import io

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from images import write_folder
from proxemic.data import read_image
from proxemic.retrieval.curation.signatures import content_hash, difference, reduced, signature


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Image.Image]:
    root = write_folder(tmp_path_factory.mktemp("signatures") / "images", classes=6, images=1, size=64, noise=8)
    return [read_image(path) for path in sorted(root.rglob("*.png"))]


def altered(image: Image.Image) -> Image.Image:
    content = io.BytesIO()
    smaller = image.resize((image.width * 3 // 4, image.height * 3 // 4), Image.Resampling.BICUBIC)
    ImageEnhance.Brightness(smaller).enhance(0.8).save(content, "JPEG", quality=70)
    return read_image(content.getvalue())


def test_equals_the_low_frequencies_of_scipy(pictures: list[Image.Image]) -> None:
    fft = pytest.importorskip("scipy.fft")
    planes = np.asarray(pictures[0].convert("YCbCr").resize((32, 32), Image.Resampling.BILINEAR)).astype(float)
    light, blue, red = (fft.dctn(planes[..., plane] - 128 * (plane > 0), norm="ortho") for plane in range(3))
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


def test_the_hash_is_of_the_pixels_not_of_the_file(pictures: list[Image.Image]) -> None:
    hashes = set()
    for form, options in (("PNG", {}), ("BMP", {}), ("WEBP", {"lossless": True})):
        content = io.BytesIO()
        pictures[0].save(content, form, **options)
        hashes.add(content_hash(read_image(content.getvalue())))
    assert hashes == {content_hash(pictures[0])}
    turned = pictures[0].transpose(Image.Transpose.ROTATE_90)
    assert content_hash(turned) not in hashes
