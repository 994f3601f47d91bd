"""Corruptions follow their definitions pixel by pixel, and the rules that make runs comparable."""

import colorsys
import itertools
import math
import pickle
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxemic.data import ArrayPixels, EmbeddingDataset, ImageSet, Preprocessing
from proxemic.data.corruptions import CORRUPTIONS, KINDS, SEVERITIES, CorruptedPixels, Corruption

GREY = Preprocessing(size=24, resize=30, channels=1, mean=(0.4,), std=(0.3,))
HUE = "hue-and-saturation"


def picture(channels: int = 3, height: int = 32, width: int = 32, seed: int = 0) -> Tensor:
    return torch.rand(channels, height, width, generator=torch.Generator().manual_seed(seed))


def level(name: str, severity: int) -> float:
    return KINDS[name][1][severity - 1]


@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize(("name", "per_level"), [("gaussian-noise", 1.0), ("uniform-noise", 1 / math.sqrt(3))])
def test_noise_has_the_standard_deviation_that_it_says(name: str, per_level: float, severity: int) -> None:
    noise = Corruption(name, severity)(torch.full((3, 200, 200), 0.5), 7) - 0.5
    assert float(noise[0].std()) == pytest.approx(per_level * level(name, severity), rel=0.02)
    assert abs(float(noise.mean())) < 4 * per_level * level(name, severity) / 200
    assert torch.equal(noise[0], noise[1])  # grey noise
    if name == "uniform-noise":
        assert 0.99 * level(name, severity) < noise.abs().max() <= level(name, severity) + 1e-6


@pytest.mark.parametrize("severity", SEVERITIES)
def test_as_many_pixels_are_lost_as_it_says(severity: int) -> None:
    grey = torch.full((3, 400, 400), 0.5)

    def deviation(share: float) -> float:
        return 4 * math.sqrt(share * (1 - share)) / 400

    share = level("dropout", severity)
    dropped = Corruption("dropout", severity)(grey, 0)
    assert float((dropped[1] == 0).float().mean()) == pytest.approx(share, abs=deviation(share))
    assert dropped.unique().tolist() == [0, 0.5]
    share = level("salt-and-pepper", severity) / 2
    spiced = Corruption("salt-and-pepper", severity)(grey, 0)
    for value in (0, 1):
        assert float((spiced[1] == value).float().mean()) == pytest.approx(share, abs=deviation(share))
    assert spiced.unique().tolist() == [0, 0.5, 1]
    for corrupted in (dropped, spiced):
        assert torch.equal(corrupted[0], corrupted[2])


@pytest.mark.parametrize("severity", SEVERITIES)
def test_cutout_is_one_grey_square_inside_of_the_picture(severity: int) -> None:
    places = set()
    for index in range(40):
        cut = Corruption("cutout", severity)(torch.zeros(3, 20, 31), index)
        rows, columns = (cut[0] == 0.5).nonzero().T
        side = round(level("cutout", severity) * 20)
        assert int((cut != 0).sum()) == 3 * side * side
        assert rows.max() - rows.min() + 1 == columns.max() - columns.min() + 1 == side
        places.add((int(rows.min()), int(columns.min())))
    assert len(places) > 20


def sheared(image: Tensor, angle: float) -> Tensor:
    """Shift each row by tan(angle) times its height above the centre; pixels from outside are black."""
    _, height, width = image.shape
    result = torch.zeros_like(image)
    for y, x in itertools.product(range(height), range(width)):
        source = x + math.tan(angle) * (y - (height - 1) / 2)
        for near in (math.floor(source), math.floor(source) + 1):
            if 0 <= near < width:
                result[:, y, x] += (1 - abs(source - near)) * image[:, y, near]
    return result


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shear_moves_rows_by_the_tangent_of_the_angle(severity: int) -> None:
    image, angle = picture(3, 13, 16), math.radians(level("shear", severity))
    ways = [sheared(image.double(), way * angle) for way in (1, -1)]
    found = [Corruption("shear", severity)(image, index).double() for index in range(12)]
    which = [[torch.allclose(item, way, atol=1e-4) for way in ways] for item in found]
    assert all(sum(item) == 1 for item in which)
    assert 0 < sum(left for left, _ in which) < 12


def tiles(image: Tensor) -> list[tuple[float, ...]]:
    """Return the values of the 36 middle tiles, row by row."""
    _, height, width = image.shape
    down, across, top, left = height // 6, width // 6, height % 6 // 2, width % 6 // 2
    return [
        tuple(
            image[:, top + row * down :, left + column * across :][:, :down, :across].flatten().tolist()
        )
        for row in range(6)
        for column in range(6)
    ]  # fmt: skip


@pytest.mark.parametrize(("height", "width"), [(36, 36), (32, 45), (8, 11)])
def test_jigsaw_swaps_neighbouring_tiles_and_leaves_the_edge(height: int, width: int) -> None:
    image = torch.arange(3.0 * height * width).view(3, height, width) / (3 * height * width)
    before = tiles(image)
    for severity in SEVERITIES:
        puzzle = Corruption("jigsaw", severity)(image, 4)
        after = tiles(puzzle)
        assert Counter(after) == Counter(before)
        moved = [place for place in range(36) if after[place] != before[place]]
        assert 0 < len(moved) <= 2 * level("jigsaw", severity)
        edge = torch.ones(height, width, dtype=torch.bool)
        top, left = height % 6 // 2, width % 6 // 2
        edge[top : top + height // 6 * 6, left : left + width // 6 * 6] = False
        assert torch.equal(puzzle[:, edge], image[:, edge])
    # A few swaps take no tile far: each moves at most one step a swap.
    few = tiles(Corruption("jigsaw", 1)(image, 4))
    steps = [
        abs(place // 6 - few.index(tile) // 6) + abs(place % 6 - few.index(tile) % 6)
        for place, tile in enumerate(before)
    ]
    assert 0 < max(steps) <= 4
    assert sum(steps) <= 2 * 4


@pytest.mark.parametrize("severity", SEVERITIES)
def test_hue_and_saturation_change_as_in_the_colour_cone(severity: int) -> None:
    image, change = picture(3, 8, 8), level(HUE, severity)
    ways = []
    for hue_way, saturation_way in itertools.product((1, -1), repeat=2):
        expected = torch.empty(3, 8, 8, dtype=torch.float64)
        for y, x in itertools.product(range(8), range(8)):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, y, x].double().tolist())
            saturation = min(max(saturation + saturation_way * change, 0), 1)
            pixel = colorsys.hsv_to_rgb((hue + hue_way * change) % 1, saturation, value)
            expected[:, y, x] = torch.tensor(pixel, dtype=torch.float64)
        ways.append(expected)
    found = [Corruption(HUE, severity)(image, index).double() for index in range(30)]
    which = [[torch.allclose(item, way, atol=1e-5) for way in ways] for item in found]
    assert all(sum(item) == 1 for item in which)
    assert all(map(any, zip(*which, strict=True)))  # every way occurs


@pytest.mark.parametrize(("severity", "side"), [(1, 23), (1, 67), (1, 187), (5, 223)])
def test_the_blur_of_a_point_is_a_disk_by_bilinear_weights(severity: int, side: int) -> None:
    radius = level("defocus-blur", severity) / 224 * side
    reach, middle = math.ceil(radius), side // 2
    point = torch.zeros(1, side, side)
    point[0, middle, middle] = 1
    blurred = Corruption("defocus-blur", severity)(point, 0)[0].double()
    disk = blurred[middle - reach : middle + reach + 1, middle - reach : middle + reach + 1]
    assert float(disk.sum()) == pytest.approx(float(blurred.sum())) == pytest.approx(1, abs=1e-5)
    assert torch.allclose(disk, disk.T)
    assert torch.allclose(disk, disk.flip(0))
    # A sunflower's seeds cover a disk evenly.
    seeds = torch.arange(200_000, dtype=torch.float64)
    away, angle = radius * ((seeds + 0.5) / len(seeds)).sqrt(), math.pi * (3 - math.sqrt(5)) * seeds
    x, y = away * angle.cos(), away * angle.sin()
    for i, j in ((0, 0), (0, 1), (1, 1), (0, reach), (reach, reach)):
        weight = ((1 - (y - i).abs()).clamp(min=0) * (1 - (x - j).abs()).clamp(min=0)).mean()
        assert float(disk[reach + i, reach + j]) == pytest.approx(float(weight), rel=0.02, abs=1e-5)


@settings(max_examples=80)
@given(
    name=st.sampled_from(CORRUPTIONS),
    severity=st.sampled_from(SEVERITIES),
    seed=st.integers(0, 2**40),
    index=st.integers(0, 10**9),
    shape=st.tuples(st.sampled_from([1, 3]), st.integers(8, 45), st.integers(8, 45)),
    extreme=st.booleans(),
)
def test_laws(name: str, severity: int, seed: int, index: int, shape: tuple[int, int, int], extreme: bool) -> None:
    if name == HUE:
        shape = (3, *shape[1:])
    image = picture(*shape, seed=index)
    image = image.round() if extreme else image
    before = image.clone()
    torch.manual_seed(index)
    states = torch.get_rng_state(), np.random.get_state()  # noqa: NPY002
    found = Corruption(name, severity, seed)(image, index)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert str(np.random.get_state()) == str(states[1])  # noqa: NPY002
    assert found.shape == image.shape
    assert found.dtype == image.dtype
    assert (found >= 0).all()  # and no NaN
    assert (found <= 1).all()
    assert torch.equal(image, before)
    torch.manual_seed(index + 1)
    assert torch.equal(Corruption(name, severity, seed)(image, index), found)


@pytest.mark.parametrize("name", [name for name in CORRUPTIONS if name != "defocus-blur"])
def test_other_numbers_seeds_and_names_draw_anew(name: str) -> None:
    image = picture()
    first = Corruption(name, 4)(image, 0)
    assert any(not torch.equal(Corruption(name, 4)(image, index), first) for index in range(1, 12))
    assert any(not torch.equal(Corruption(name, 4, seed)(image, 0), first) for seed in range(1, 12))


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_more_severity_changes_more(name: str) -> None:
    rough = [picture(3, 6, 6, seed=seed).unsqueeze(0) for seed in range(20)]
    images = [torch.nn.functional.interpolate(item, (40, 40), mode="bilinear").squeeze(0) for item in rough]
    changes = [
        sum(
            float((Corruption(name, severity)(image, index) - image).abs().mean()) for index, image in enumerate(images)
        )
        for severity in SEVERITIES
    ]
    assert changes[0] > 0
    for weaker, stronger in itertools.pairwise(changes):
        assert stronger > 1.05 * weaker, changes


def test_draws_stay_those_of_earlier_versions() -> None:
    dropped = (Corruption("dropout", 5)(torch.ones(1, 8, 8), 3) == 0).int()[0]
    assert ["".join(map(str, row)) for row in dropped.tolist()] == [
        "00001000",
        "11000010",
        "00100001",
        "11000010",
        "00101011",
        "00100000",
        "00000000",
        "00000010",
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Corruption("blurr", 1), "'blurr'.*gaussian-noise, .*defocus-blur"),
        (lambda: Corruption("shear", 6), "severity is 6"),
        (lambda: Corruption("shear", 3, seed=-1), "seed is -1"),
        (lambda: Corruption("shear", 3)(picture(2), 0), r"\[2, 32, 32\].*1 or 3 channels"),
        (lambda: Corruption("shear", 3)(picture(3, 7, 9), 0), "8 by 8"),
        (lambda: Corruption("shear", 3)(255 * picture(), 0), r"outside of \[0, 1\]"),
        (lambda: Corruption("shear", 3)(picture() * math.nan, 0), "NaN"),
        (lambda: Corruption(HUE, 3)(picture(1), 0), "grey"),
    ],
)
def test_bad_input(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def pictures(count: int = 6) -> ArrayPixels:
    return ArrayPixels(np.random.default_rng(0).integers(0, 256, (count, 40, 50), dtype=np.uint8))


@pytest.mark.parametrize("name", ["gaussian-noise", "shear", "defocus-blur"])
def test_the_network_sees_the_fitted_picture_corrupted(name: str) -> None:
    corruption = Corruption(name, 4, seed=2)
    images = ImageSet.from_names(CorruptedPixels(pictures(), corruption, GREY), ["a", "b"] * 3)
    seen = EmbeddingDataset(images, replace(GREY, resize=None).evaluation())
    for index in range(6):
        fitted = torch.from_numpy(np.array(GREY.fit()(pictures()[index]))).unsqueeze(0) / 255
        expected = (corruption(fitted, index) * 255).round() / 255
        torch.testing.assert_close(seen[index][0], (expected - 0.4) / 0.3)


def test_a_picture_is_corrupted_by_its_number_wherever_it_stands() -> None:
    noisy = CorruptedPixels(pictures(), Corruption("gaussian-noise", 5), GREY)
    whole = [noisy[index].tobytes() for index in range(len(noisy))]
    assert [noisy[index].tobytes() for index in reversed(range(6))] == whole[::-1]
    chosen = noisy.select([4, 1, 4]).select([1, 2])
    assert [chosen[0].tobytes(), chosen[1].tobytes()] == [whole[1], whole[4]]
    assert noisy[-1].tobytes() == whole[-1]
    copy = pickle.loads(pickle.dumps(noisy))  # as a worker process gets it
    assert copy[3].tobytes() == whole[3]
    assert len({*whole}) == 6
