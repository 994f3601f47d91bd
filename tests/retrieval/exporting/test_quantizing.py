"""Eight bits: what has which of the two ways, and that the head keeps all its digits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxemic.data import Preprocessing
from proxemic.models import ModelConfig, build_model
from proxemic.retrieval import Embedder
from proxemic.retrieval.exporting.graphs import write_onnx
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
