"""Noise and mixing of vectors, against the formula in float64."""

import random

import numpy as np
import pytest
import torch

from proxemic.data.vectors import VectorArray, VectorAugmentation, Vectors

LABELS = torch.tensor([0, 1, 0, 2, 1, 0])
SEEDS = [11, 5, 2**62, 0, 3, 9]


def some_vectors(dim: int = 8) -> Vectors:
    return Vectors(VectorArray(torch.randn(6, dim, generator=torch.Generator().manual_seed(1))))


def test_the_noise_has_the_norm_that_is_asked_for_and_depends_on_the_seed_alone() -> None:
    vectors = some_vectors(4096)
    fetch = VectorAugmentation(noise=0.5).training(vectors, LABELS)
    plain, noisy = vectors.fetch(range(6)), fetch(range(6), SEEDS)
    assert torch.allclose((noisy - plain).norm(dim=1), 0.5 * plain.norm(dim=1), rtol=0.05)
    assert torch.equal(fetch([4, 2], [SEEDS[4], SEEDS[2]]), noisy[[4, 2]])
    assert not torch.equal(fetch([4], [7])[0], noisy[4])


def test_mixing_is_with_another_vector_of_the_class() -> None:
    vectors, mix = some_vectors(), 0.4
    mixed = VectorAugmentation(mix=mix).training(vectors, LABELS)(range(6), SEEDS).double()
    plain = vectors.fetch(range(6)).double()
    for index, seed in enumerate(SEEDS):
        share = random.Random(seed).betavariate(mix, mix)
        others = [other for other in range(6) if LABELS[other] == LABELS[index] and other != index] or [index]
        allowed = torch.stack([share * plain[index] + (1 - share) * plain[other] for other in others])
        assert (allowed - mixed[index]).norm(dim=1).min() < 1e-6


def test_every_other_vector_of_the_class_is_drawn_equally_often() -> None:
    vectors = Vectors(VectorArray(torch.eye(5)))
    fetch = VectorAugmentation(mix=1.0).training(vectors, torch.tensor([0, 0, 0, 0, 1]))
    for index in range(4):
        mixed = fetch([index] * 600, list(range(600)))
        mixed[:, index] = 0
        counts = np.bincount(mixed.argmax(1).numpy(), minlength=5)
        assert counts[[index, 4]].tolist() == [0, 0]
        assert all(150 < count < 250 for place, count in enumerate(counts) if place not in (index, 4))


@pytest.mark.parametrize("arguments", [{"noise": -0.1}, {"noise": float("nan")}, {"mix": 0.0}, {"mix": float("inf")}])
def test_values_out_of_their_range(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^vectors\.(noise|mix) is .* but must be a number"):
        VectorAugmentation(**arguments)
