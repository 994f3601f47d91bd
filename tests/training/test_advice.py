"""The advice to the user before and after a training."""

import json
from pathlib import Path
from typing import Any

import pytest

from proxemic.recipes.reader import load
from proxemic.training.advice import advice, curve_advice, epoch_line
from proxemic.training.record import Record

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
    said: dict[str, Any] = {
        "image_processor_type": "BitImageProcessor",
        "size": {"shortest_edge": 256},
        "crop_size": {"height": 224, "width": 224},
        "do_center_crop": True,
    }
    said |= {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    size, normalisation = advice(load("own", **flags))
    assert "images.size is 64, but the pretrained weights of hf:" in size
    assert "were trained with 224: give --images.size 224 unless you mean it." in size
    assert "give --images.mean '[0.5, 0.4, 0.3]' --images.std '[0.2, 0.2, 0.2]'." in normalisation
    right = {"images.size": 224, "images.mean": [0.5, 0.4, 0.3], "images.std": [0.2, 0.2, 0.2]}
    assert not [*advice(load("own", **flags | right))]
    said |= {"size": 64, "do_center_crop": False, "do_normalize": False, "image_mean": "grey"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    (normalisation,) = advice(load("own", **flags))
    assert "give --images.mean '[0, 0, 0]' --images.std '[1, 1, 1]'." in normalisation


RISING = [0.10, 0.18, 0.25, 0.31, 0.36, 0.40, 0.43, 0.46]
PEAKED = [0.20, 0.40, 0.46, 0.41, 0.35, 0.30, 0.28, 0.27]
LEVEL = [0.20, 0.32, 0.40, 0.43, 0.445, 0.452, 0.456, 0.458]
FALLING = [0.46, 0.40, 0.35, 0.30, 0.28, 0.26, 0.25, 0.25]


@pytest.mark.parametrize(
    ("name", "flags", "values", "tried"),
    [
        ("own", {}, PEAKED, "try fewer epochs, --model.train head or a lower --optim.lr, which is"),
        ("own-resnet50", {}, FALLING, "try --model.freeze_batch_norm true, --model.train head or a lower --optim.lr"),
        ("own", {"model.train": "head"}, PEAKED, "try fewer epochs or a lower --optim.lr, which is"),
        ("own-vectors", {}, FALLING, "try a lower --optim.lr, which is 0.001."),
        (
            "own-vectors",
            {},
            RISING,
            "validation was still rising at epoch 8 of 8: try more epochs (--training.epochs 16)",
        ),
    ],
)
def test_after_a_run_that_keeps_its_start(name: str, flags: dict[str, Any], values: list[float], tried: str) -> None:
    said = curve_advice(load(name, **{"data.root": "x", **flags}), values, "start", 0.5)
    assert said is not None
    assert "No epoch was better than the network before training (validation map@r 50.00, " in said
    assert f"the best epoch's {100 * max(values):.2f})" in said
    assert f"before training; {tried}" in said


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (RISING, "Validation map@r was still rising at epoch 8 of 8: try more epochs (--training.epochs 16) or a"),
        (PEAKED, "Validation map@r was best at epoch 3 of 8: try fewer epochs (--training.epochs 3)."),
        (FALLING, "Validation map@r was best at epoch 1 of 8: try fewer epochs (--training.epochs 1)."),
        (LEVEL, None),
        ([*RISING[:6], 0.45, 0.10], None),  # it fell again
        ([0.3, 0.2, 0.1], None),
        ([0.2], None),
        ([], None),
    ],
)
def test_after_a_run_by_the_shape_of_its_validation(values: list[float], said: str | None) -> None:
    found = curve_advice(load("own", data={"root": "x"}), values, "epoch", 0.5)
    assert (found is None) if said is None else (found is not None and said in found)


def test_phases_that_end_by_themselves_need_no_advice_about_their_length() -> None:
    flags: dict[str, Any] = {"data.root": "x", "training.epochs": 8}
    for recipe in (
        load("own", **flags, training={"until_plateau": {"patience": 2}}),
        load("own", **flags, second_phase={"epochs": 4}),
    ):
        assert curve_advice(recipe, RISING, "epoch", 0.5) is None
        assert curve_advice(recipe, FALLING, "untrained", 0.5) is not None


def test_an_epoch_says_how_long_the_others_take() -> None:
    recipe = load("glyphs-small")
    first, last = (
        epoch_line(recipe, Record(), {"epoch": epoch, "loss": 1.5}, 8, rate=750.0, seconds=20.0) for epoch in (1, 8)
    )
    assert first.endswith("750 images/s, 02:20 left")
    assert last.endswith("750 images/s")
