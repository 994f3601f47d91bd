"""Eight bits: what has which of the two ways, and that the head keeps all its digits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from images import write_folder
from proxemic.data import Preprocessing
from proxemic.models import ModelConfig, build_model
from proxemic.retrieval import Embedder
from proxemic.retrieval.exporting.graphs import write_onnx
from proxemic.retrieval.exporting.parity import labelled_images
from proxemic.retrieval.exporting.quantizing import is_convolutional, quantize

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


def test_a_transformer_needs_no_images(tmp_path: Path) -> None:
    import onnx
    import onnxruntime

    small: dict[str, Any] = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    model = build_model(ModelConfig("vit_tiny_patch16_224", 8, image_size=32, backbone_args=small)).eval()
    assert not is_convolutional(model)
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        expected = model(images)
    file = tmp_path / "net.onnx"
    write_onnx(model, torch.zeros(2, 3, 32, 32), file)
    before = file.stat().st_size
    quantize(file, file, Embedder(model, Preprocessing(size=32)), None)
    assert file.stat().st_size < 0.85 * before
    (given,) = onnxruntime.InferenceSession(file).run(None, {"images": images.numpy()})
    assert 1e-5 < np.abs(np.asarray(given) - expected.numpy()).max() < 0.05
    weights = {each.name: onnx.numpy_helper.to_array(each) for each in onnx.load_model(file).graph.initializer}
    assert any(sorted(each.shape) == [8, 32] and each.dtype == np.float32 for each in weights.values()), "the head"


def test_more_than_one_convolution_is_a_convolutional_network() -> None:
    assert is_convolutional(build_model(ModelConfig("convnet", 8, in_channels=3)))


class Deep(nn.Sequential):
    """Sixteen convolutions, without shortcuts."""

    def __init__(self) -> None:
        super().__init__()
        for layer in range(16):
            stride = 2 if layer in (1, 8) else 1
            self.append(nn.Conv2d(8 if layer else 3, 8, 3, stride, padding=1, bias=False))
            self.append(nn.BatchNorm2d(8))
            self.append(nn.ReLU())


def test_what_batch_norms_have_not_learnt_yet_is_lost(tmp_path: Path) -> None:
    """The error of eight bits is small beside what tells pictures apart.

    Running statistics begin at 0 and 1. As long as these weigh, each layer leaves pictures less different than it
    should, and after all of them eight bits do not tell them apart.
    """
    images = labelled_images(write_folder(tmp_path / "photos", classes=6, images=4))
    model, how = build_model(ModelConfig(Deep, 8, image_size=32)), Preprocessing(32)
    ((batch, _, _),) = Embedder(model, how).prepare.batches(images.pixels, len(images), 0, strict=True)
    errors = []
    for momentum, steps in ((0.1, 9), (None, 1)):  # as in training; the statistics of this batch
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.reset_running_stats()
                part.momentum = momentum
        with torch.no_grad():
            for _ in range(steps):
                model.train()(batch)
            expected = model.eval()(batch)
        file = tmp_path / "net.onnx"
        write_onnx(model, torch.zeros(2, 3, 32, 32), file)
        quantize(file, file, Embedder(model, how), images)
        given = torch.from_numpy(onnx_embeddings(file, batch))
        spread = (expected - expected.mean(0)).norm(dim=1).mean()
        errors.append(float((given - expected).norm(dim=1).mean() / spread))
    assert errors[0] > 2
    assert errors[1] < 1


def onnx_embeddings(file: Path, images: torch.Tensor) -> np.ndarray:
    import onnxruntime

    return np.asarray(onnxruntime.InferenceSession(file).run(None, {"images": images.numpy()})[0])
