"""Why two pictures are near, for every kind of network that the recipes take."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from onnx_files import network
from proxemic.data import Preprocessing
from proxemic.errors import UserError
from proxemic.models import ModelConfig, build_model
from proxemic.retrieval import Embedder, explain_similarity

RNG = np.random.default_rng(0)
PICTURES = [Image.fromarray(RNG.integers(0, 256, (40, 50, 3), dtype=np.uint8)) for _ in range(2)]
CONFIG = ModelConfig(embedding_size=6, width=4, in_channels=3)
VIT = replace(CONFIG, backbone="vit_tiny_patch16_224", image_size=32, backbone_args={"depth": 1})


def embedder(config: ModelConfig) -> Embedder:
    torch.manual_seed(0)
    return Embedder(build_model(config), Preprocessing(size=config.image_size or 32, resize=None))


def cosine(made: Embedder) -> float:
    one, other = made.embed(PICTURES)
    return torch.cosine_similarity(one.double(), other.double(), dim=0).item()


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, pooling="avg+max", layer_norm=True),
        replace(CONFIG, backbone="resnet10t", image_size=64, pooling="max"),
        VIT,
    ],
    ids=lambda config: f"{config.backbone_name} {config.pooling}",
)
def test_exact_maps_add_up_to_the_similarity(config: ModelConfig) -> None:
    made = embedder(config)
    why = explain_similarity(made, *PICTURES)
    assert why.method == "exact"
    assert why.similarity == pytest.approx(cosine(made), abs=1e-6)
    for value in why.maps:
        assert value.shape[0] == value.shape[1] > 1
        assert value.sum().item() == pytest.approx(why.similarity, abs=1e-12)
    assert [picture.size for picture in why.pictures] == [(config.image_size or 32,) * 2] * 2


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, head="mlp")], ids=["exact", "gradients"])
def test_a_mean_is_subtracted_from_both_embeddings(config: ModelConfig) -> None:
    made = embedder(config)
    units = torch.nn.functional.normalize(made.embed(PICTURES).double(), dim=1)
    mean = 0.9 * units.mean(0)
    why = explain_similarity(made, *PICTURES, mean=mean)
    one, other = units - mean
    expected = float(one @ other / (one.norm() * other.norm()))
    assert why.similarity == pytest.approx(expected, abs=1e-5)
    assert why.similarity < cosine(made) - 0.01, "what both have in common is gone"
    if why.method == "exact":
        assert [value.sum().item() for value in why.maps] == pytest.approx([expected] * 2, abs=1e-5)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, head="mlp")], ids=["exact", "gradients"])
def test_a_gallery_of_the_first_numbers_is_explained_by_these(config: ModelConfig) -> None:
    first = embedder(config).first(3)
    why = explain_similarity(first, *PICTURES)
    assert why.similarity == pytest.approx(cosine(first), abs=1e-6)
    assert why.similarity != pytest.approx(cosine(embedder(config)), abs=1e-5)
    if why.method == "exact":
        assert [value.sum().item() for value in why.maps] == pytest.approx([why.similarity] * 2, abs=1e-12)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (replace(CONFIG, head="mlp"), (4, 4)),
        (replace(CONFIG, pooling="gem"), (4, 4)),
        (replace(VIT, head="mlp"), (2, 2)),
    ],
    ids=str,
)
def test_other_networks_have_gradients(config: ModelConfig, shape: tuple[int, int]) -> None:
    made = embedder(config)
    why = explain_similarity(made, *PICTURES)
    assert why.method == "gradients"
    assert why.similarity == pytest.approx(cosine(made), abs=1e-6)
    for item in why.maps:
        assert item.shape == shape
        assert 0 < item.abs().sum() < torch.inf


def test_gradients_of_a_power_mean_without_a_bias_add_up() -> None:
    made = embedder(replace(CONFIG, pooling="gem"))
    nn.init.zeros_(made.model.head[1].bias)  # pyright: ignore[reportArgumentType, reportIndexIssue, reportAttributeAccessIssue]
    why = explain_similarity(made, *PICTURES)
    assert why.maps[0].sum().item() == pytest.approx(why.similarity, abs=1e-4)  # but for the floor of 1e-6


@pytest.mark.parametrize("pooling", ["avg", "gem"])
def test_the_place_that_two_pictures_share_is_found(pooling: str) -> None:
    mark = RNG.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    one, other = (np.full((32, 32, 3), 128, np.uint8) for _ in range(2))
    one[:8, :8] = mark
    other[-8:, -8:] = mark
    made = Embedder(
        build_model(replace(CONFIG, pooling=pooling, head="none", embedding_size=32)),  # pyright: ignore[reportArgumentType]
        Preprocessing(size=32, resize=None, mean=(0.5,) * 3, std=(0.5,) * 3),
    )
    maps = explain_similarity(made, one, other).maps
    places = [divmod(int(item.abs().argmax()), 4) for item in maps]
    assert [(row // 2, column // 2) for row, column in places] == [(0, 0), (1, 1)]


def test_a_network_of_ones_own_without_a_map_has_gradients_of_its_pixels() -> None:
    def transform(image: Image.Image) -> torch.Tensor:
        return torch.from_numpy(np.array(image.resize((42, 28)))).movedim(2, 0) / 255

    why = explain_similarity(Embedder(nn.Flatten(), transform), *PICTURES)
    assert why.method == "gradients"
    assert why.maps[0].shape == (14, 14)
    assert why.maps[0].sum().item() == pytest.approx(why.similarity, abs=1e-6)
    assert why.pictures[0].size == (42, 28)


def test_what_has_no_places_or_gradients_is_refused(tmp_path: Path) -> None:
    vectors = embedder(ModelConfig("none", 2, input_size=3))
    with pytest.raises(UserError, match="takes vectors, which have no locations"):
        explain_similarity(vectors, *PICTURES)
    (tmp_path / "model.onnx").write_bytes(network())
    (tmp_path / "model.json").write_text(json.dumps({"preprocessing": vars(Preprocessing(size=32, resize=None))}))
    with pytest.raises(UserError, match=r"model.onnx gives no gradients, .* the run that it was exported from"):
        explain_similarity(Embedder.load(tmp_path / "model.onnx"), *PICTURES)
