"""Read ONNX files as models; the preprocessing is read from the JSON file next to them or from the files."""

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from proxemic.data import Preprocessing
from proxemic.errors import UserError
from proxemic.files import read_json
from proxemic.models import EmbeddingModel, ModelConfig, OnnxBackbone
from proxemic.models.backbones.onnx_backbone import read_note, read_onnx

ONNX_NOTE = "proxemic"
"""The metadata key of our ONNX files for the JSON that states how images are prepared and embeddings compared."""


def read_onnx_model(path: Path) -> tuple[EmbeddingModel, Preprocessing, dict[str, Any], Path]:
    """Read a model, its preprocessing, other notes on its use such as the distance, and the file of these notes.

    Raises:
        UserError: If the preprocessing of images is not described.
        ValueError: If a file is malformed.
        ImportError: If onnxruntime is missing.
    """
    content = read_onnx(path)
    file, usage = path.with_suffix(".json"), dict[str, Any]()
    if file.exists():
        usage = read_json(file)
    elif (noted := read_note(content, ONNX_NOTE)) is not None:
        file = path
        with suppress(ValueError, RecursionError):
            usage = json.loads(noted)
        if not isinstance(usage, dict) or not usage:
            raise ValueError(f"{path} has no {path.stem}.json next to it, and its own note is damaged.")
    else:
        raise UserError(
            f"{path} does not say how images are prepared: write {file.name} next to it, such as "
            '{"preprocessing": {"size": 224, "resize": 256, "mean": [0.485, 0.456, 0.406], '
            '"std": [0.229, 0.224, 0.225], "interpolation": "bicubic"}}.'
        )
    made = hashlib.sha256(content).hexdigest()
    if usage.get("sha256", made) != made:
        raise ValueError(
            f"{path} is not the file that {file} describes: the sha256 differs. Put the two files that "
            "belong together next to each other."
        )
    if "preprocessing" not in usage:
        raise ValueError(f"{file} does not say how images are prepared: preprocessing is missing.")
    if "library" in (usage["preprocessing"] or ()):
        raise ValueError(f"{file}: ONNX files are not prepared by other libraries: give size, resize, mean and std.")
    preprocessing = Preprocessing.read(usage["preprocessing"], file)
    size, channels = preprocessing.size, preprocessing.channels
    config = ModelConfig(str(path), head="none", normalize=False, in_channels=channels, image_size=size)
    backbone = OnnxBackbone(content, config)
    model = EmbeddingModel(replace(config, embedding_size=backbone.num_features), backbone)
    return model.eval(), preprocessing, usage, file
