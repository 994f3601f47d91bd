"""What a user is told before the training."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxemic.recipes.reader import load
from proxemic.training.advice import advice

LITE = {"model.backbone": "tf_efficientnet_lite0", "model.pretrained": True}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, ("[0.485, 0.456, 0.406]", "[0.5, 0.5, 0.5]")),
        ({"images.channels": 1, "images.mean": [0.449], "images.std": [0.226]}, ("[0.449]", "[0.5]")),
        ({"images.white": 255, "images.channel_order": "bgr"}, ("[0.485, 0.456, 0.406]", "[127.5, 127.5, 127.5]")),
    ],
)
def test_images_that_are_normalised_otherwise_than_those_of_the_weights(
    overrides: dict[str, Any], expected: tuple[str, str]
) -> None:
    (said,) = advice(load("own", **LITE, **overrides))
    given, mean = expected
    assert f"images.mean is {given} and" in said
    assert f"the pretrained weights of tf_efficientnet_lite0 were trained with others: give --images.mean '{mean}'" in (
        said
    )
    right = eval(mean)
    assert not [*advice(load("own", **LITE, **{**overrides, "images.mean": right, "images.std": right}))]
    assert not [*advice(load("own", **{**overrides, **LITE, "model.pretrained": False}))]


def test_the_colours_of_weights_are_turned_with_those_of_the_images() -> None:
    flags: dict[str, Any] = {"images.channel_order": "bgr", "model.backbone": "resnet50", "model.pretrained": True}
    (said,) = advice(load("own", **flags))
    assert "give --images.mean '[0.406, 0.456, 0.485]' --images.std '[0.225, 0.224, 0.229]'." in said


def test_the_images_of_a_network_of_transformers(tmp_path: Path) -> None:
    flags: dict[str, Any] = {"model.backbone": f"hf:{tmp_path}", "model.pretrained": True, "images.size": 64}
    (tmp_path / "config.json").write_text("{}")
    assert not [*advice(load("own", **flags))]
    said = {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}, "do_center_crop": True}
    said |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    size, normalisation = advice(load("own", **flags))
    assert "images.size is 64, but the pretrained weights of hf:" in size
    assert "were trained with 224: give --images.size 224 unless you mean it." in size
    assert "give --images.mean '[0.5, 0.4, 0.3]' --images.std '[0.2, 0.2, 0.2]'." in normalisation
    right = {"images.size": 224, "images.mean": [0.5, 0.4, 0.3], "images.std": [0.2, 0.2, 0.2]}
    assert not [*advice(load("own", **flags | right))]
    (tmp_path / "preprocessor_config.json").write_text('{"size": 64, "do_normalize": false, "image_mean": "grey"}')
    (normalisation,) = advice(load("own", **flags))
    assert "give --images.mean '[0, 0, 0]' --images.std '[1, 1, 1]'." in normalisation
