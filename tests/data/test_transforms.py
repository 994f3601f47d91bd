import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from proxemic.data import Augmentation, Preprocessing, read_image
from proxemic.data.transforms import CenterCrop, Resize

GREY = Preprocessing(size=32, resize=None, channels=1, mean=(0.5,), std=(0.25,))


def noise_image(size: tuple[int, int] = (50, 40), channels: int = 3) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 255, (size[1], size[0], channels), dtype=np.uint8))


def test_bgr_in_0_to_255_is_what_networks_from_caffe_were_trained_on() -> None:
    caffe = Preprocessing(32, 32, channel_order="bgr", white=255, mean=(104.0, 117.0, 128.0), std=(1.0, 1.0, 1.0))
    image = noise_image((32, 32))
    blue_first = np.asarray(image, np.float32)[:, :, ::-1] - np.array([104, 117, 128], np.float32)
    for transform in (caffe.evaluation(), Augmentation().training(caffe)):
        np.testing.assert_array_equal(transform(image).numpy(), blue_first.transpose(2, 0, 1))
    mirrored = Augmentation(horizontal_flip=1.0).training(caffe)(image)
    np.testing.assert_array_equal(mirrored.numpy(), blue_first.transpose(2, 0, 1)[:, :, ::-1])


@pytest.mark.parametrize("order", ["rgb", "bgr"])
@pytest.mark.parametrize("white", [1, 255])
def test_order_and_range_are_those_of_the_formula(order: Any, white: Any) -> None:
    mean, std = (0.1 * white, 0.2 * white, 0.3 * white), (0.5, 0.6, 0.7)
    image = noise_image((32, 32))
    pixels = np.asarray(image, np.float64)[:, :, :: -1 if order == "bgr" else 1]
    expected = ((pixels * white / 255 - mean) / std).transpose(2, 0, 1)
    found = Preprocessing(32, 32, 3, mean, std, order, white).evaluation()(image)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-4 * white)


def test_training_crops_may_be_smaller_than_evaluations() -> None:
    preprocessing, image = Preprocessing(size=32, resize=40), noise_image()
    augmentation = Augmentation(random_resized_crop=(1.0, 1.0), size=24)
    assert augmentation.training(preprocessing)(image).shape == (3, 24, 24)
    torch.manual_seed(0)
    found = augmentation.training(preprocessing)(image)
    torch.manual_seed(0)
    expected = Augmentation(random_resized_crop=(1.0, 1.0)).training(Preprocessing(size=24, resize=40))(image)
    assert torch.equal(found, expected)


def test_the_shorter_side_follows_the_size() -> None:
    published = {112: 128, 224: 256, 256: 288, 64: 72, 32: 32, 1: 1}
    assert {size: Preprocessing(size).shorter_side for size in published} == published
    image, found = noise_image((90, 120)), Preprocessing(64)
    assert torch.equal(found.evaluation()(image), Preprocessing(64, 72).evaluation()(image))
    assert found.as_dict() == asdict(Preprocessing(64, 72))
    assert Preprocessing(**json.loads(json.dumps(found.as_dict()))).shorter_side == 72
    assert [Preprocessing(64, None).shorter_side, replace(found, size=112).shorter_side] == [None, 128]


def test_centre_crop_after_resizing_the_shorter_side() -> None:
    image = Image.new("L", (80, 40), 0)
    image.paste(255, (20, 0, 60, 40))  # the centre square is white
    seen = replace(GREY, size=20, resize=20).evaluation()(image)
    assert seen[:, 1:-1, 1:-1].min() == 2.0
    squeezed = replace(GREY, size=20).evaluation()(image)
    assert squeezed[0, 10, 0] == -2.0


def test_a_square_before_the_crop_squeezes_the_whole_image() -> None:
    """The MPA paper's "resized to 256×256 and cropped to 224×224 at the image center", an eighth as large."""
    image: Any = noise_image((50, 40))
    preprocessing = Preprocessing(28, (32, 32))
    whole = Preprocessing(32, None).evaluation()(image)
    seen = preprocessing.evaluation()(image)
    assert torch.equal(seen, whole[:, 2:30, 2:30])
    assert not torch.equal(seen, Preprocessing(28, 32).evaluation()(image))
    assert torch.equal(seen, Augmentation().training(preprocessing)(image))
    torch.manual_seed(0)
    random = Augmentation(random_crop=True).training(preprocessing)(image)
    assert any(torch.equal(random, whole[:, y : y + 28, x : x + 28]) for y in range(5) for x in range(5))
    # As model.json keeps it, and the grey and already fitted forms.
    again = Preprocessing(**json.loads(json.dumps(preprocessing.as_dict())))
    assert again.resized == preprocessing.resized
    assert torch.equal(again.evaluation()(image), seen)
    assert torch.equal(replace(again, resize=None).evaluation()(again.fit()(image)), seen)
    assert [again.resized, again.shorter_side] == [(32, 32), 32]
    assert Preprocessing(28, (32, 40)).fit()(Image.new("L", (9, 9))).size == (28, 28)


@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(random_resized_crop=(0.2, 1.0)),
        Augmentation(random_crop=True),
        Augmentation(degrees=30.0),
        Augmentation(translate=0.3),
        Augmentation(scale=(0.5, 1.5)),
        Augmentation(shear=30.0),
        Augmentation(noise=0.1),
        Augmentation(rand_augment=(2, 9)),
        Augmentation(trivial_augment=True),
        Augmentation(brightness=0.4),
        Augmentation(contrast=0.4),
        Augmentation(saturation=0.4),
        Augmentation(hue=0.1),
        Augmentation(grey=0.5),
        Augmentation(erase=0.5),
        Augmentation(before_crop=[v2.RandomVerticalFlip()]),
        Augmentation(after_crop=[v2.RandomVerticalFlip()]),
        Augmentation(on_tensor=[v2.RandomVerticalFlip()]),
    ],
)
def test_every_augmentation_acts_and_draws_from_torch_alone(augmentation: Augmentation) -> None:
    transform = augmentation.training(Preprocessing(32, 40))
    image = noise_image()
    torch.manual_seed(0)
    found = [transform(image) for _ in range(8)]
    torch.manual_seed(0)
    assert all(torch.equal(item, transform(image)) for item in found)
    assert not all(torch.equal(item, found[0]) for item in found)
    assert augmentation.training(replace(GREY, resize=40))(image).shape == (1, 32, 32)


class Note(nn.Module):
    """Records its inputs and returns them unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, image: Any) -> Any:
        self.seen.append(image.copy() if isinstance(image, Image.Image) else image)
        return image


def test_own_transforms_come_where_they_are_named() -> None:
    before, after, on_tensor = Note(), Note(), Note()
    own: dict[str, Any] = {"before_crop": [before], "after_crop": [after], "on_tensor": [on_tensor]}
    preprocessing = Preprocessing(32, 40)
    found = Augmentation(horizontal_flip=1.0, grey=1.0, erase=1.0, **own).training(preprocessing)(noise_image())
    assert (before.seen[0].size, before.seen[0].mode) == ((50, 40), "RGB")
    image: Any = noise_image()
    mirrored = functional.horizontal_flip(functional.center_crop(functional.resize(image, [40]), [32]))
    np.testing.assert_array_equal(np.asarray(after.seen[0]), np.asarray(functional.rgb_to_grayscale(mirrored, 3)))
    assert torch.equal(on_tensor.seen[0], found)
    untouched = replace(preprocessing, resize=None).evaluation()(after.seen[0])
    assert ((found == untouched) | (found == 0)).all()
    assert 0.02 < (found != untouched).float().mean() < 0.4


def test_a_random_crop_is_a_part_of_the_resized_image() -> None:
    whole = replace(GREY, size=40, resize=40).evaluation()(noise_image((40, 40)))
    crop = Augmentation(random_crop=True).training(replace(GREY, resize=40))
    torch.manual_seed(0)
    places = set()
    for _ in range(100):
        found = crop(noise_image((40, 40)))
        where = [(y, x) for y in range(9) for x in range(9) if torch.equal(whole[:, y : y + 32, x : x + 32], found)]
        assert len(where) == 1
        places.update(where)
    assert {y for y, _ in places} == {x for _, x in places} == set(range(9))
    with pytest.raises(ValueError, match="random_crop is set, but resize is null"):
        Augmentation(random_crop=True).training(GREY)


@pytest.mark.parametrize(("white", "unit"), [(1, 1.0), (255, 255.0)])
def test_noise_has_the_stated_deviation(white: Any, unit: float) -> None:
    torch.manual_seed(0)
    grey = replace(GREY, white=white)
    noisy = Augmentation(noise=0.1).training(grey)(Image.new("L", (32, 32), 128))
    assert noisy.std().item() == pytest.approx(unit * 0.1 / 0.25, rel=0.1)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"size": 224, "resize": 200},
            "resize is 200, but it must be auto, null, a shorter side, or height and width as",
        ),
        ({"resize": (256, 223)}, r"resize is \(256, 223\), but .* of at least size=224 pixels"),
        ({"channels": 2}, "channels is 2, but must be one of 1, 3"),
        ({"std": (0.1, 0.0, 0.1)}, "std is"),
        ({"channels": 1, "mean": (0.5,), "std": (0.5,), "channel_order": "bgr"}, "channels=1 has no colours"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_preprocessing_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preprocessing(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"random_resized_crop": (0.0, 1.0)}, "random_resized_crop"),
        ({"size": 16}, "size is 16, but it must be at least 1 pixel, and belongs to random_resized_crop"),
        ({"random_resized_crop": (0.2, 1.0), "random_crop": True}, "images are cropped once"),
        ({"scale": (1.2, 0.8)}, "scale"),
        ({"horizontal_flip": 1.5}, "horizontal_flip is 1.5, but must be from 0 to 1"),
        ({"noise": float("nan")}, "noise"),
        ({"hue": 0.6}, "hue is 0.6, but must be from 0 to 0.5"),
        ({"rand_augment": (2, 31)}, "rand_augment is"),
        ({"rand_augment": (2, 9), "trivial_augment": True}, "drop one"),
    ],
)
def test_augmentation_refuses(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Augmentation(**values)


def test_reduction_is_twice_what_images_are_resized_to(tmp_path: Path) -> None:
    sides = [Preprocessing(64, resize, reduce=True).reduced_side for resize in ("auto", 80, None, [70, 90])]
    assert sides == [144, 160, 128, 180]
    assert Preprocessing(64).reduced_side is None
    Image.effect_noise((700, 500), 50).save(tmp_path / "a.jpg")
    reduced, whole = Preprocessing(64, reduce=True), Preprocessing(64)
    image = read_image(tmp_path / "a.jpg", 144)
    assert torch.equal(reduced.evaluation()(tmp_path / "a.jpg"), whole.evaluation()(image))
    assert not torch.equal(reduced.evaluation()(tmp_path / "a.jpg"), whole.evaluation()(tmp_path / "a.jpg"))
    augmentation = Augmentation(random_resized_crop=(0.2, 1.0))
    crops = []
    for given, preprocessing in ((tmp_path / "a.jpg", reduced), (image, whole)):
        torch.manual_seed(0)
        crops.append(augmentation.training(preprocessing)(given))
    assert torch.equal(*crops)
    assert Preprocessing(**json.loads(json.dumps(reduced.as_dict()))).reduced_side == 144


SIZES = [(100, 90), (90, 100), (64, 64), (333, 215), (400, 41), (41, 300), (65, 64), (1, 40)]
IMAGES = [
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))
    for width, height in SIZES
]


@pytest.mark.parametrize("method", ["bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("size", [64, 41, 1, (50, 70), (64, 64)])
def test_resizing(size: int | tuple[int, int], method: str) -> None:
    theirs = v2.Resize(size, v2.InterpolationMode[method.upper()])
    for image in IMAGES[:-1]:
        assert Resize(size, Image.Resampling[method.upper()])(image) == theirs(image)


@pytest.mark.parametrize("across", [True, False])
def test_of_a_thin_image_only_the_middle_is_resized(across: bool) -> None:
    """Otherwise a file of some kilobytes could become gigabytes."""
    pixels = np.zeros((2, 20_000), np.uint8)
    pixels[:, 9_900:10_100] = 255
    image = Image.fromarray(pixels if across else pixels.T)
    assert Resize(64)(image) == Image.new("L", (6400, 64) if across else (64, 6400), 255)
    assert Resize((30, 40))(image) == Image.new("L", (40, 30), 255)


@pytest.mark.parametrize("size", [41, 40, 7])
def test_the_middle(size: int) -> None:
    for image in IMAGES[:-1]:
        assert CenterCrop(size)(image) == v2.CenterCrop(size)(image)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_mode_gives_the_channels_asked_for(mode: str, channels: Any) -> None:
    preprocessing = Preprocessing(24, 28, channels, (0.5,) * channels, (0.5,) * channels)
    image = noise_image().convert(mode)
    crop = Augmentation(random_resized_crop=(0.2, 1.0))
    for transform in (preprocessing.evaluation(), crop.training(preprocessing)):
        assert transform(image).shape == (channels, 24, 24)


KINDS = {
    "the default": Preprocessing(size=32, resize=40),
    "of timm's EfficientNet-Lite": Preprocessing(32, 40, mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic"),
    "squeezed": Preprocessing(size=32, resize=None, interpolation="lanczos"),
    "squeezed before the crop": Preprocessing(size=32, resize=(36, 48), crop_rounding="down"),
    "grey": GREY,
    "from Caffe": Preprocessing(32, 40, channel_order="bgr", white=255, mean=(104, 117, 128), std=(1, 1, 1)),
    "reduced": Preprocessing(size=16, resize=18, reduce=True, interpolation="box"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_are_what_torch_makes_to_the_bit(kind: str) -> None:
    preprocessing = KINDS[kind]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (preprocessing.mean, preprocessing.std))
    for size in ((50, 41), (33, 90), (32, 32), (7, 900)):
        image = noise_image(size)
        pixels = functional.pil_to_tensor(preprocessing.fit()(image))
        pixels = pixels.flip(0) if preprocessing.channel_order == "bgr" else pixels
        expected = (pixels.float() if preprocessing.white == 255 else pixels.float() / 255).sub(mean).div(std)
        np.testing.assert_array_equal(preprocessing.arrays()(image), expected.numpy())
        assert torch.equal(preprocessing.evaluation()(image), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    "augmentation",
    [
        Augmentation(degrees=5, translate=0.06, scale=(0.9, 1.1), shear=5),
        Augmentation(degrees=180),
        Augmentation(translate=0.5),
        Augmentation(scale=(0.3, 2.0), shear=60),
    ],
)
def test_an_affine_map_is_torchvisions_pixel_by_pixel(augmentation: Augmentation, channels: Any) -> None:
    preprocessing = Preprocessing(40, None, channels, (0.0,) * channels, (1.0,) * channels, white=255)
    degrees, shift = (-augmentation.degrees, augmentation.degrees), (augmentation.translate,) * 2
    bilinear = v2.InterpolationMode.BILINEAR
    theirs = v2.RandomAffine(
        degrees, shift if any(shift) else None, augmentation.scale, augmentation.shear or None, interpolation=bilinear
    )
    image = noise_image((40, 40)).convert("L" if channels == 1 else "RGB")
    ours = augmentation.training(preprocessing)
    for seed in range(20):
        torch.manual_seed(seed)
        found, left = ours(image), torch.get_rng_state()
        torch.manual_seed(seed)
        expected = np.atleast_3d(np.asarray(theirs(image), np.float32)).transpose(2, 0, 1)
        np.testing.assert_array_equal(found.numpy(), expected)
        assert torch.equal(left, torch.get_rng_state())


@pytest.mark.parametrize("side", [24, 200])
@pytest.mark.parametrize("order", ["rgb", "bgr"])
@pytest.mark.parametrize(
    "augmentation", [Augmentation(), Augmentation(degrees=9, noise=0.1), Augmentation(noise=0.1, erase=0.9)]
)
def test_a_batch_holds_the_tensors_of_its_images(augmentation: Augmentation, order: Any, side: int) -> None:
    transform = augmentation.training(Preprocessing(side, None, channel_order=order))
    images = [noise_image((side, side)), noise_image((50, 40)), noise_image((30, 60))]
    torch.manual_seed(0)
    expected = [transform(image) for image in images]
    torch.manual_seed(0)
    assert all(torch.equal(*pair) for pair in zip(transform.batch(images), expected, strict=True))
