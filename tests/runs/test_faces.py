"""Embeddings of faces are the sum for a picture and its mirror image, scaled to unit length."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from proxemic.data import ArrayPixels, ImageSet, Preprocessing
from proxemic.models import ModelConfig, build_model
from proxemic.runs.embed import embed_images
from proxemic.runs.faces import FlipSum

PREPROCESSING = Preprocessing(size=16, resize=None, channels=1, mean=(0.5,), std=(0.5,))
IMAGES = ImageSet.from_names(
    ArrayPixels(np.random.default_rng(0).integers(0, 256, (5, 16, 16), dtype=np.uint8)), ["a"] * 5
)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("flip", [False, True])
def test_the_sum_is_of_what_comes_before_the_scaling(scaled: bool, flip: bool) -> None:
    torch.manual_seed(0)
    plain = build_model(ModelConfig(in_channels=1, embedding_size=8, width=4, normalize=False)).eval()
    model = build_model(ModelConfig(in_channels=1, embedding_size=8, width=4, normalize=scaled))
    model.load_state_dict(plain.state_dict())
    model.train()
    inputs = torch.stack([PREPROCESSING.evaluation()(IMAGES.pictures[place]) for place in range(5)])
    with torch.no_grad():
        expected = plain(inputs) + plain(torch.from_numpy(inputs.numpy()[..., ::-1].copy())) if flip else plain(inputs)
    found = embed_images(FlipSum(model) if flip else model, IMAGES, PREPROCESSING, batch_size=2)
    torch.testing.assert_close(found, normalize(expected, dim=1) if scaled else expected)
    assert model.training, "its mode is put back"
    assert model.backbone.training
    assert model.config.normalize == scaled


def test_weights_are_shared() -> None:
    model = build_model(ModelConfig(in_channels=1, embedding_size=8, width=4))
    assert {id(parameter) for parameter in FlipSum(model).parameters()} == {
        id(parameter) for parameter in model.parameters()
    }


def test_another_number_of_channels_is_refused() -> None:
    model = build_model(ModelConfig(in_channels=3, embedding_size=8, width=4))
    with pytest.raises(ValueError, match="images have 1 channels but the model takes 3"):
        embed_images(FlipSum(model), IMAGES, PREPROCESSING)
