"""Pictures of a page, and how small they become."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from proxemic.pages import data_url, picture

NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))


def opened(address: str) -> Image.Image:
    head, _, content = address.partition(",")
    assert head == "data:image/jpeg;base64"
    return Image.open(io.BytesIO(base64.b64decode(content)))


def test_a_copy_keeps_its_shape() -> None:
    assert opened(data_url(NOISE, 100)).size == (100, 75)
    assert opened(data_url(NOISE.crop((0, 0, 30, 20)), 100)).size == (30, 20)


@pytest.mark.parametrize("most", [1500, 2000, 6000])
def test_noise_is_made_as_small_as_is_wanted(most: int) -> None:
    assert len(data_url(NOISE, 112)) > most
    address = data_url(NOISE, 112, most)
    assert most / 2 < len(address) <= most
    assert len(picture(NOISE, 112, "noise", most)) < most + 100
    plain = Image.new("RGB", (120, 90), "red")
    assert data_url(plain, 112, most) == data_url(plain, 112), "and what is small stays as it is"
