"""A network in an ONNX file as a frozen backbone, run by ONNX Runtime."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from proxemic.extras import optional_dependency
from proxemic.models.config import SIZE, ModelConfig

_LARGEST = 2**31 - 1  # bytes of one protobuf message


class OnnxBackbone(nn.Module):
    """A network in an ONNX file, without parameters to train, with output `[B, num_features, h, w]`.

    It runs on a GPU if both ONNX Runtime and torch support CUDA, and otherwise on the CPU with torch's number of
    threads. A network for batches of a fixed size gets the images in such batches; the last batch is padded.

    Args:
        content: Content of the file.
        config: Configuration of the model; its `backbone_args` may name an `output` other than the first.

    Raises:
        ValueError: If the content is not such a network, or the network does not fit the images.
        ImportError: If onnxruntime is not installed.
    """

    def __init__(self, content: bytes, config: ModelConfig) -> None:
        super().__init__()
        self.content, self.name = content, config.backbone_name
        self._session: Any = None
        self._threads = 0
        inputs = self._runtime().get_inputs()
        shape = list(inputs[0].shape) if inputs else []
        if len(inputs) != 1 or inputs[0].type != "tensor(float)" or len(shape) != 4:
            described = ", ".join(f"{input_.name}: {input_.type} {list(input_.shape)}" for input_ in inputs)
            raise ValueError(
                f"{self.name} has the inputs {described}, but must have a single one, float32 images [batch, channels, "
                "height, width]; export it with this input"
            )
        if unknown := sorted(config.backbone_args.keys() - {"output"}):
            raise ValueError(f"backbone_args has {unknown[0]}, but an ONNX file has only the argument output")
        self._input, outputs = inputs[0].name, self._outputs()
        self._output = str(config.backbone_args.get("output", outputs[0]))
        if self._output not in outputs:
            raise ValueError(f"backbone_args has output {self._output!r}, but {self.name} has {', '.join(outputs)}")
        self._batch = shape[0] if isinstance(shape[0], int) else None
        side = self._check_images(shape, config)
        self.num_features = self(torch.zeros(2, config.in_channels, side, side, device="cpu")).shape[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_session": None}  # a copy or another process makes its own session

    def description(self) -> dict[str, Any]:
        """Return what identifies the network, as plain data."""
        return {"sha256": hashlib.sha256(self.content).hexdigest(), "output": self._output}

    @torch.no_grad()
    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        array = images.float().contiguous().cpu().numpy()
        size = self._batch or len(array) or 1
        parts = [self._run(array[first : first + size]) for first in range(0, len(array), size)]
        features = torch.from_numpy(np.concatenate(parts)).to(images.device)
        return features if features.ndim == 4 else features[:, :, None, None]

    def _run(self, images: Float32[np.ndarray, "batch channels height width"]) -> np.ndarray:
        count, filled = len(images), self._batch or len(images)
        images = np.pad(images, ((0, filled - count), (0, 0), (0, 0), (0, 0)))
        try:
            features = np.asarray(self._runtime().run([self._output], {self._input: images})[0])
        except Exception as error:  # ONNX Runtime raises classes of its own
            message = " ".join(str(error).split())[:200]
            raise ValueError(f"{self.name} cannot be run on images of shape {list(images.shape)}: {message}") from error
        if features.ndim not in (2, 4) or len(features) != filled or features.dtype.kind != "f":
            raise ValueError(
                f"{self.name}: its output {self._output} has type {features.dtype} and shape {list(features.shape)} "
                f"for {filled} images, but must be floats [batch, features] or [batch, features, height, width]; name "
                f"another of its outputs, {', '.join(self._outputs())}, as model.backbone_args {{output: NAME}}"
            )
        return features[:count].astype(np.float32, copy=False)

    def _runtime(self) -> Any:
        """Return the session for torch's current number of threads."""
        if self._session is not None and self._threads == torch.get_num_threads():
            return self._session
        with optional_dependency("onnx"):
            import onnxruntime
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads = torch.get_num_threads()
        options.log_severity_level = 3
        cuda = torch.cuda.is_available() and "CUDAExecutionProvider" in onnxruntime.get_available_providers()
        providers = [*(["CUDAExecutionProvider"] if cuda else []), "CPUExecutionProvider"]
        with tempfile.TemporaryDirectory() as empty:
            # Weights outside the file could come only from this empty folder.
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", empty)
            try:
                self._session = onnxruntime.InferenceSession(self.content, options, providers=providers)
            except Exception as error:  # ONNX Runtime raises classes of its own
                message = " ".join(str(error).split())[:200]
                raise ValueError(
                    f"{self.name} cannot be loaded by ONNX Runtime, which must find all operators and weights in the "
                    f"file itself: {message}"
                ) from error
        return self._session

    def _outputs(self) -> list[str]:
        return [output.name for output in self._runtime().get_outputs()]

    def _check_images(self, shape: list[Any], config: ModelConfig) -> int:
        """Return the side of the images; raise `ValueError` if the network takes other images."""
        _, channels, *sides = shape
        if isinstance(channels, int) and channels != config.in_channels:
            first = shape[3] == config.in_channels
            hint = "export it with the channels first" if first else f"set images.channels to {channels}"
            raise ValueError(
                f"{self.name} takes images of {channels} channels, but they have {config.in_channels}; {hint}"
            )
        fixed = [side for side in sides if isinstance(side, int)]
        side = config.image_size or (fixed or [SIZE])[0]
        if any(item != side for item in fixed):
            raise ValueError(
                f"{self.name} takes images of {' by '.join(map(str, sides))} pixels, but they have {side} by {side}; "
                f"set images.size to {fixed[0]}, or export it for any size"
            )
        return side


def read_onnx(file: Path) -> bytes:
    """Read an ONNX file; raise `ValueError` if it is missing or larger than such a file can be."""
    try:
        if not file.is_file():
            raise ValueError(f"backbone is {str(file)!r}, but there is no such file; give one that ends in .onnx")
        if (size := file.stat().st_size) > _LARGEST:
            raise ValueError(f"{file} has {size:,} bytes, but an ONNX file has at most {_LARGEST:,}")
        return file.read_bytes()
    except OSError as error:
        raise ValueError(f"{file} cannot be read: {error.strerror or error}") from error


def read_note(content: bytes, key: str) -> str | None:
    """Read the value of a key in the ``metadata_props`` of an ONNX file; None without one."""
    with optional_dependency("onnx"):
        import onnx
        from google.protobuf.message import DecodeError
    try:
        notes = onnx.ModelProto.FromString(content).metadata_props
    except DecodeError:
        return None
    return next((note.value for note in notes if note.key == key), None)
