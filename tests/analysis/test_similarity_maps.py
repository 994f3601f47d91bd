"""Maps of similarity against sums over pairs of places, written out, in float64."""

import math

import pytest
import torch
from torch import nn

from proxemic.analysis import gradient_map, similarity_maps

GENERATOR = torch.Generator().manual_seed(0)
FIRST = torch.randn(5, 2, 3, generator=GENERATOR, dtype=torch.float64)
SECOND = torch.randn(5, 4, 1, generator=GENERATOR, dtype=torch.float64)


def naive() -> list[list[float]]:
    """What each pair of places contributes, by plain Python."""
    ones, others = FIRST.flatten(1).T.tolist(), SECOND.flatten(1).T.tolist()
    f = [sum(column) / len(ones) for column in zip(*ones, strict=True)]
    g = [sum(column) / len(others) for column in zip(*others, strict=True)]
    scale = len(ones) * len(others) * math.hypot(*f) * math.hypot(*g)
    return [[sum(a * b for a, b in zip(x, y, strict=True)) / scale for y in others] for x in ones]


def test_every_pair_contributes_what_the_formula_says() -> None:
    maps = similarity_maps(FIRST, SECOND)
    torch.testing.assert_close(maps.pairs.reshape(6, 4), torch.tensor(naive(), dtype=torch.float64))
    torch.testing.assert_close(maps.first.flatten(), torch.tensor(naive(), dtype=torch.float64).sum(1))
    assert maps.second.shape == (4, 1)


def test_contributions_add_up_to_the_cosine() -> None:
    maps = similarity_maps(FIRST, 7 * SECOND)
    cosine = torch.cosine_similarity(FIRST.mean((1, 2)), SECOND.mean((1, 2)), dim=0).item()
    for whole in (maps.similarity, maps.pairs.sum().item(), maps.first.sum().item(), maps.second.sum().item()):
        assert whole == pytest.approx(cosine, abs=1e-12)


def test_nothing_is_similar_to_zeros() -> None:
    maps = similarity_maps(torch.zeros(5, 2, 2), SECOND)
    assert maps.similarity == 0
    assert maps.pairs.abs().sum() == 0


@pytest.mark.parametrize("other", [torch.zeros(4, 1, 1), torch.zeros(5, 0, 1)])
def test_what_does_not_fit_is_refused(other: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"first has shape \[5, 2, 3\] and second"):
        similarity_maps(FIRST, other)


def test_gradients_of_a_linear_network_are_the_exact_map() -> None:
    layer = nn.Linear(5, 4, bias=False).double()
    x = FIRST.clone().requires_grad_()
    other = layer(SECOND.mean((1, 2)))
    places = [layer(value.movedim(0, 2)).movedim(2, 0) for value in (FIRST, SECOND)]
    torch.testing.assert_close(gradient_map(x, layer(x.mean((1, 2))), other), similarity_maps(*places).first)


def test_an_embedding_without_a_gradient_is_refused() -> None:
    with pytest.raises(ValueError, match="has no gradient"):
        gradient_map(FIRST, FIRST.mean((1, 2)), SECOND.mean((1, 2)))
