"""Contributions of places against the networks' embeddings."""

from dataclasses import replace

import pytest
import torch

from proxemic.models import EmbeddingModel, ModelConfig, build_model, is_mean_over_places, place_embeddings

CONFIG = ModelConfig(embedding_size=6, width=4, normalize=False)


def trained(config: ModelConfig) -> EmbeddingModel:
    """Make a network with a random head."""
    model = build_model(config).eval()
    for parameter in model.head.parameters():
        torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("pooling", ["avg", "max", "avg+max"])
@pytest.mark.parametrize(
    "head",
    [
        {"head": "linear"},
        {"head": "linear", "layer_norm": True},
        {"head": "linear", "unit_features": True},
        {"head": "linear+layer_norm"},
        {"head": "none", "embedding_size": 32},
    ],
    ids=str,
)
def test_the_mean_over_places_is_the_embedding(pooling: str, head: dict[str, object]) -> None:
    model = trained(replace(CONFIG, pooling=pooling, **head))  # pyright: ignore[reportArgumentType]
    features = model.backbone(torch.rand(3, 3, 24, 40)).detach()
    features[0, 0] = 1.0  # the maximum is everywhere
    expected = model.embed_features(model.pooling(features)).detach()
    torch.testing.assert_close(place_embeddings(model, features).mean((2, 3)).float(), expected)


def test_a_maximum_is_of_the_place_that_has_it() -> None:
    model = trained(replace(CONFIG, pooling="max", head="none", embedding_size=32))
    features = torch.zeros(1, 32, 2, 2)
    features[0, :, 1, 0] = 5.0
    assert place_embeddings(model, features)[0, 0].tolist() == [[0.0, 0.0], [20.0, 0.0]]


@pytest.mark.parametrize(
    "config",
    [
        {"pooling": "gem"},
        {"head": "mlp"},
        {"head": "residual"},
        {"backbone": "none", "input_size": 4},
    ],
    ids=str,
)
def test_other_networks_are_none(config: dict[str, object]) -> None:
    model = trained(replace(CONFIG, **config))  # pyright: ignore[reportArgumentType]
    assert not is_mean_over_places(model)
    with pytest.raises(ValueError, match=r"not means over positions: pooling must be one of avg, max, avg\+max"):
        place_embeddings(model, torch.rand(1, 32, 2, 2))
