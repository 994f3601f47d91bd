import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from proxemic.data import (
    CUB200,
    ArrayPixels,
    Digits,
    FashionMNIST,
    GlyphLetters,
    Glyphs,
    ImageSet,
    Omniglot,
    OwnImages,
    OwnVectors,
)
from proxemic.data.splits import hold_out, split_classes


@given(st.integers(4, 500), st.floats(0.01, 0.99), st.integers(0, 2**40))
def test_split_is_a_partition(num_classes: int, fraction: float, seed: int) -> None:
    try:
        kept, held_out = split_classes(num_classes, fraction, seed)
    except ValueError:
        held = num_classes * fraction
        assert min(held, num_classes - held) <= 2.5  # refused only where a side would be too small
        return
    assert torch.cat([kept, held_out]).sort().values.tolist() == list(range(num_classes))
    assert min(len(kept), len(held_out)) >= 2
    assert abs(len(held_out) - num_classes * fraction) <= 0.5
    again = split_classes(num_classes, fraction, seed)
    assert torch.equal(kept, again[0])
    assert kept.tolist() == sorted(kept.tolist())


@pytest.mark.parametrize("seed", [-1, 10**20])
@pytest.mark.parametrize(
    "source", [OwnImages, OwnVectors, Digits, Glyphs, GlyphLetters, CUB200, FashionMNIST, Omniglot]
)
def test_seeds_that_no_generator_takes_are_refused(source: Callable[..., object], seed: int) -> None:
    with pytest.raises(ValueError, match=f"split_seed is {seed}, but it must be from 0 to"):
        source(split_seed=seed)


def test_known_split() -> None:
    assert split_classes(8, 0.5, seed=0)[1].tolist() == [0, 3, 4, 7]
    assert split_classes(8, 0.5, seed=1)[1].tolist() != [0, 3, 4, 7]


def test_a_half_stays_with_the_kept() -> None:
    kept, held_out = split_classes(5, 0.5, seed=0)
    assert (len(kept), len(held_out)) == (3, 2)


def test_zero_holds_out_nothing() -> None:
    kept, held_out = split_classes(3, 0.0, seed=0)
    assert (kept.tolist(), len(held_out)) == ([0, 1, 2], 0)


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5, float("nan")])
def test_fraction_out_of_range(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"test_fraction is .*, but it must be at least 0 and below 1"):
        split_classes(10, fraction, seed=0, name="test_fraction")


@pytest.mark.parametrize(("classes", "fraction"), [(3, 0.5), (1, 0.0), (10, 0.1), (10, 0.9)])
def test_too_few_classes(classes: int, fraction: float) -> None:
    with pytest.raises(ValueError, match=f"fraction={fraction} of {classes} classes keeps .* at least 2: change"):
        split_classes(classes, fraction, seed=0)


def test_hold_out_is_class_disjoint() -> None:
    array = np.zeros((24, 2, 2), dtype=np.uint8)
    images = ImageSet.from_names(ArrayPixels(array), [chr(97 + index % 8) for index in range(24)])
    kept, held_out = hold_out(images, 0.25, seed=3)
    assert held_out is not None
    assert (len(kept), len(held_out)) == (18, 6)
    assert not set(kept.class_names) & set(held_out.class_names)
    assert hold_out(images, 0.0, seed=3) == (images, None)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.floats(0.01, 0.99), st.integers(0, 2**40))
def test_images_of_each_class_are_held_out(counts: list[int], fraction: float, seed: int) -> None:
    names = [chr(97 + label) for label, count in enumerate(counts) for _ in range(count)]
    images = ImageSet.from_names(ArrayPixels(np.arange(len(names), dtype=np.uint8).reshape(-1, 1, 1)), names)
    expected = [max(2, math.ceil(count * fraction - 0.5)) for count in counts]
    expected = [held if count - held >= 2 else 0 for count, held in zip(counts, expected, strict=True)]
    if not any(expected):
        with pytest.raises(ValueError, match=f"of the images of each class holds out none, .* has {max(counts)} "):
            hold_out(images, fraction, seed, "images")
        return
    kept, held_out = hold_out(images, fraction, seed, "images")
    assert held_out is not None
    assert kept.class_names == images.class_names
    assert kept.labels.bincount().tolist() == [count - held for count, held in zip(counts, expected, strict=True)]
    assert held_out.class_names == tuple(chr(97 + label) for label, held in enumerate(expected) if held)
    assert held_out.labels.bincount().tolist() == [held for held in expected if held]
    values = [part.pictures[index].getpixel((0, 0)) for part in (kept, held_out) for index in range(len(part))]
    assert sorted(values) == list(range(len(images)))  # type: ignore[type-var]


def test_no_images_are_held_out() -> None:
    images = ImageSet.from_names(ArrayPixels(np.zeros((4, 2, 2), dtype=np.uint8)), ["a", "a", "b", "b"])
    assert hold_out(images, 0.0, 0, "images") == (images, None)
    with pytest.raises(ValueError, match=r"test_fraction is 1\.0, but it must be at least 0 and below 1"):
        hold_out(images, 1.0, 0, "images", name="test_fraction")
