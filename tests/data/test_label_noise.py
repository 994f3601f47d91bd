from collections import Counter

import numpy as np
import pytest
import torch

from proxemic.data import ArrayPixels, ImageSet
from proxemic.data.label_noise import flip_labels
from proxemic.data.vectors.stores import VectorArray, Vectors
from proxemic.recipes import load


def images(classes: int, each: int) -> ImageSet:
    labels = torch.arange(classes).repeat_interleave(each)
    names = tuple(f"{name:03}" for name in range(classes))
    return ImageSet(ArrayPixels(np.zeros((classes * each, 2, 2), np.uint8)), labels, names)


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


def test_no_noise_is_no_change() -> None:
    clean = images(3, 4)
    assert flip_labels(clean, 0.0, seed=0) is clean


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


def test_labels_of_vectors_are_flipped_as_those_of_images() -> None:
    vectors = Vectors(VectorArray(torch.zeros(20, 3)))
    clean = ImageSet(vectors, torch.arange(4).repeat(5), ("a", "b", "c", "d"))
    assert int(flip_labels(clean, 0.4, seed=0).labels.ne(clean.labels).sum()) == 8
