"""Write a network as a program that runs without its code: an ONNX file, also in 8 bits, or a program of torch."""

import copy
import logging
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from proxemic.data import ImageSet
from proxemic.errors import UserError
from proxemic.models import EmbeddingModel, OnnxBackbone
from proxemic.retrieval.vectors.embedder import Embedder

INPUT, OUTPUT = "images", "embeddings"
_LARGEST = 2**31 - 2**22  # most bytes of weights in an ONNX file, with room for the graph


class HalfPrecision(nn.Module):
    """A copy of a network with its backbone in float16; images, pooling, head and embeddings stay in float32."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = copy.deepcopy(model)
        self.model.backbone.half()

    def forward(self, images: Tensor) -> Tensor:
        features = self.model.backbone(images.half())
        return self.model.embed_features(self.model.pooling(features.float()))


class Program(nn.Module):
    """An exported program as a module without parameters, as it takes float32 whatever the type of its weights."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._run = (torch.export.load(file).module(),)

    def forward(self, images: Tensor) -> Tensor:
        return self._run[0](images)


def check_exportable(model: nn.Module) -> None:
    """Raise `UserError` for a network that cannot be exported."""
    if any(isinstance(part, OnnxBackbone) for part in model.modules()):
        raise UserError(
            "The backbone of this model is an ONNX file already, run by ONNX Runtime: torch cannot export what is in "
            "it. Use that file, and the head of the model.safetensors."
        )
    if isinstance(model, EmbeddingModel) and model.config.takes_vectors:
        raise UserError("This model takes vectors: export is for models of images, and it is a head alone.")


def write_program(model: nn.Module, images: Tensor, file: Path) -> None:
    """Write an exported program of torch, for batches of any size."""
    with _quiet():
        torch.export.save(_export(model, images), file)


def write_onnx(model: nn.Module, images: Tensor, file: Path) -> None:
    """Write an ONNX file, for batches of any size."""
    size = sum(part.numel() * part.element_size() for part in (*model.parameters(), *model.buffers()))
    if size > _LARGEST:
        raise UserError(
            f"The weights have {size / 2**30:.1f} GiB, but an ONNX file holds 2 GiB at most: take --half, or --to "
            "torch."
        )
    import onnx

    with _quiet():
        made = torch.onnx.export(
            _export(model, images), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
        )
    assert made is not None
    content = made.model_proto
    for node in content.graph.node:  # remove the names of our classes
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    # Older versions of torch write inner shapes for another batch size; programs infer them if they need them.
    content.graph.ClearField("value_info")
    for value in (*content.graph.input, *content.graph.output, *content.graph.initializer):
        value.ClearField("metadata_props")
        value.ClearField("doc_string")
    for value in (*content.graph.input, *content.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    onnx.save_model(content, file)


def trace_onnx(model: nn.Module, images: Tensor) -> bytes:
    """Return an ONNX file for batches of any size, six times as fast as `write_onnx`: operations are only recorded."""
    content: Any = BytesIO()
    with _quiet(), torch.no_grad():
        torch.onnx.export(
            model,
            (images,),
            content,
            dynamo=False,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_axes={INPUT: {0: "batch"}, OUTPUT: {0: "batch"}},
        )
    return content.getvalue()


def note(file: Path, key: str, text: str) -> None:
    """Store a text in an ONNX file, under a key of its ``metadata_props``."""
    import onnx

    content = onnx.load_model(file)
    added = content.metadata_props.add()
    added.key, added.value = key, text
    onnx.save_model(content, file)


def _export(model: nn.Module, images: Tensor) -> Any:
    try:
        with torch.no_grad():
            made = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch", min=1)},))
    except Exception as error:  # torch has many exceptions for networks that cannot be traced
        message = " ".join(str(error).split())[:200]
        raise UserError(f"torch cannot export this network: {type(error).__name__}: {message}") from error
    for part in made.graph_module.modules():
        for node in part.graph.nodes if isinstance(part, fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # paths on this machine
    return made


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence messages of torch and ONNX Runtime for their own developers."""
    before = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


CALIBRATED_ON = 256
"""Number of random training images on which the range of each activation is measured."""
_BATCH = 8


def is_convolutional(model: nn.Module) -> bool:
    """Return whether a network has several convolutions; a transformer has one, which cuts images into patches."""
    return sum(isinstance(part, nn.Conv2d) for part in model.modules()) > 1


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Let ONNX Runtime write its temporary files to a folder, because a kill leaves them there."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


def quantize(file: Path, quantized: Path, embedder: Embedder, training: ImageSet | None) -> None:
    """Write an ONNX file in 8 bits, and intermediate files next to it.

    With `training`, the ranges of activations are measured on these images (static quantisation), as convolutional
    networks need. In other networks, they vary too much between images: without `training`, they are measured in each
    batch at run time (dynamic quantisation). The last matrix product, the head, stays in float32: it takes little time,
    and its error would reach the embeddings directly.
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

    with _temporary_files_in(quantized.parent), _quiet():
        simplified = quantized.with_name("simplified.onnx")
        quant_pre_process(file, simplified, skip_symbolic_shape=True)
        products = [node for node in onnx.load_model(simplified).graph.node if node.op_type in ("Gemm", "MatMul")]
        # Dynamic quantisation renames a product without its bias to the second name.
        head = [products[-1].name, f"{products[-1].name}_MatMul"] if products else []
        # Without a reduced range, sums overflow on processors without VNNI.
        options: dict[str, Any] = {"per_channel": True, "reduce_range": True, "nodes_to_exclude": head}
        if training is None:
            quantize_dynamic(simplified, quantized, op_types_to_quantize=["MatMul", "Gemm"], **options)
            return
        chosen = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))[:CALIBRATED_ON]
        batches = embedder.prepare.batches(training.select(chosen).pixels, _BATCH, 0, strict=False)
        given = Batches(batch for batch, places, _ in batches if places)
        options |= {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
        quantize_static(simplified, quantized, given, **options)
