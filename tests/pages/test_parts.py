"""Pictures of a page."""

from PIL import Image

from proxemic.pages import data_url


def test_a_thumbnail_has_no_more_than_its_side() -> None:
    assert len(data_url(Image.effect_noise((3000, 2000), 90), 96)) < 15_000
