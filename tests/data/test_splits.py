import math
from collections import Counter
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
    Rows,
)
from proxemic.data.splits import flip_labels, hold_out, split_classes
from proxemic.recipes import load


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
    with pytest.raises(ValueError, match=f"split_seed is {seed}, but must be at least 0 and below 9"):
        source(split_seed=seed)


def test_known_split() -> None:
    assert split_classes(8, 0.5, seed=0)[1].tolist() == [0, 3, 4, 7]
    assert split_classes(8, 0.5, seed=1)[1].tolist() != [0, 3, 4, 7]


@pytest.mark.parametrize("fraction", [-0.1, 1.0, 1.5, float("nan")])
def test_fraction_out_of_range(fraction: float) -> None:
    with pytest.raises(ValueError, match=r"test_fraction is .*, but must be .*at least 0 and below 1"):
        split_classes(10, fraction, seed=0, name="test_fraction")


@pytest.mark.parametrize(("classes", "fraction"), [(3, 0.5), (1, 0.0), (10, 0.1), (10, 0.9)])
def test_too_few_classes(classes: int, fraction: float) -> None:
    with pytest.raises(ValueError, match=f"fraction={fraction} of {classes} classes keeps .* at least 2: change"):
        split_classes(classes, fraction, seed=0)


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


def images(classes: int, each: int) -> ImageSet:
    labels = torch.arange(classes).repeat_interleave(each)
    names = tuple(f"{name:03}" for name in range(classes))
    return ImageSet(Rows.of(ArrayPixels(np.zeros((classes * each, 2, 2), np.uint8))), labels, names)


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.4])
def test_as_many_labels_as_asked_for_are_others_each_as_likely(fraction: float) -> None:
    clean = images(5, 2000)
    noisy = flip_labels(clean, fraction, seed=3)
    wrong = noisy.labels.ne(clean.labels)
    assert int(wrong.sum()) == round(fraction * 10_000)
    moves = Counter(((noisy.labels - clean.labels) % 5)[wrong].tolist())
    expected = fraction * 10_000 / 4
    assert all(abs(moves[step] - expected) < 5 * expected**0.5 for step in range(1, 5))
    assert torch.equal(noisy.labels, flip_labels(clean, fraction, seed=3).labels)
    assert not torch.equal(noisy.labels, flip_labels(clean, fraction, seed=4).labels)


def test_every_class_keeps_an_image() -> None:
    clean = images(50, 3)
    noisy = flip_labels(clean, 0.66, seed=0)
    right = noisy.labels.eq(clean.labels)
    assert clean.labels[right].unique().tolist() == list(range(50))


@pytest.mark.parametrize(
    ("fraction", "sentence"),
    [(-0.1, "at least 0 and below 1"), (1.0, "at least 0 and below 1"), (0.9, "gives 18 of 20 .*: lower it")],
)
def test_what_is_refused(fraction: float, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        flip_labels(images(5, 4), fraction, seed=0)


def test_a_recipe_flips_labels_of_training_alone_by_its_seed() -> None:
    clean = load("glyphs-small/softmax").load()
    recipes = [load("glyphs-small/softmax", training={"label_noise": 0.2}, seed=seed) for seed in (0, 0, 1)]
    first, again, other = (recipe.load() for recipe in recipes)
    assert float(first.train.labels.ne(clean.train.labels).float().mean()) == pytest.approx(0.2, abs=0.001)
    assert torch.equal(first.train.labels, again.train.labels)
    assert not torch.equal(first.train.labels, other.train.labels)
    assert first.validation is not None
    assert clean.validation is not None
    assert torch.equal(first.validation.labels, clean.validation.labels)
    assert torch.equal(first.test_images.labels, clean.test_images.labels)
    with pytest.raises(ValueError, match=r"training\.label_noise is 1\.0"):
        load("glyphs-small/softmax", training={"label_noise": 1.0})
