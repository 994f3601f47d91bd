"""Weights and activations of an ONNX file in 8 bits, for processors."""

import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from proxemic.data import ImageSet
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.exporting.graphs import INPUT

CALIBRATED_ON = 256
"""Training images, drawn at random, on which the range of each activation is measured."""
_BATCH = 8


def is_convolutional(model: nn.Module) -> bool:
    """Whether a network has more than the one convolution that cuts an image into patches."""
    return sum(isinstance(part, nn.Conv2d) for part in model.modules()) > 1


def quantize(file: Path, quantized: Path, embedder: Embedder, training: ImageSet | None) -> None:
    """Write an ONNX file in 8 bits.

    Convolutional networks have the ranges of their activations measured on `training` (static quantisation). Those of
    other networks vary too much with the image: they are measured in each batch when it runs (dynamic quantisation), if
    there is no `training`. The last matrix product, the head, stays as it is: it takes little time, and its error would
    go into the embeddings as they are.
    """
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Batches(CalibrationDataReader):
        def __init__(self, batches: Iterator[Tensor]) -> None:
            self.batches = batches

        def get_next(self) -> Any:
            batch = next(self.batches, None)
            return None if batch is None else {INPUT: batch.numpy()}

    root = logging.getLogger()
    level = root.level
    with TemporaryDirectory() as folder:
        simplified = Path(folder) / "simplified.onnx"
        try:
            root.setLevel(logging.ERROR)  # which it tells how it goes
            quant_pre_process(file, simplified, skip_symbolic_shape=True)
            products = [node for node in onnx.load_model(simplified).graph.node if node.op_type in ("Gemm", "MatMul")]
            # The second is the name under which dynamic quantisation puts a product without its bias.
            head = [products[-1].name, f"{products[-1].name}_MatMul"] if products else []
            if training is None:
                quantize_dynamic(
                    simplified,
                    quantized,
                    op_types_to_quantize=["MatMul", "Gemm"],
                    per_channel=True,
                    reduce_range=True,
                    nodes_to_exclude=head,
                )
                return
            quantize_static(
                simplified,
                quantized,
                Batches(_some(embedder, training)),
                per_channel=True,
                reduce_range=True,  # else sums overflow on processors without VNNI, whatever was measured here
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                nodes_to_exclude=head,
            )
        finally:
            root.setLevel(level)


def _some(embedder: Embedder, training: ImageSet) -> Iterator[Tensor]:
    chosen = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))[:CALIBRATED_ON]
    for batch, places, _ in embedder.prepare.batches(training.select(chosen).pixels, _BATCH, 0, strict=False):
        if places:
            yield batch
