"""What `model.json` says about a saved model, read without torch."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proxemic.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from proxemic.models.config import ModelConfig

FORMAT = 1
WEIGHTS, DESCRIPTION = "model.safetensors", "model.json"
FROZEN, TOKENIZER = "backbone.onnx", "tokenizer.json"  # next to them, for some networks
ONNX = ".onnx"  # suffix of a file with a network


def is_model(path: Path) -> bool:
    """Return whether a file is a model by its name: .onnx, model.safetensors, or .safetensors next to a model.json."""
    is_weights = path.suffix.lower() == ".safetensors" and path.with_name(DESCRIPTION).is_file()
    return path.suffix.lower() == ONNX or path.name == WEIGHTS or is_weights


@dataclass(frozen=True)
class Description:
    """The content of the `model.json` of a saved model.

    Args:
        file: The file.
        settings: The arguments of the configuration of the network.
        preprocessing: The preprocessing of its images.
        network: Further data that are needed to build the network.
        sha256: The checksum of the weights.
        features_by: The checksum of the model whose features the head turns into embeddings; None if the model was
            saved as a whole.
    """

    file: Path
    settings: dict[str, Any]
    preprocessing: dict[str, Any]
    network: dict[str, Any]
    sha256: str
    features_by: str | None

    @cached_property
    def config(self) -> "ModelConfig":
        """The configuration of the network; `ValueError` if it is malformed."""
        from proxemic.models.config import ModelConfig

        try:
            return ModelConfig(**self.settings)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{self.file} does not describe a model: {error}") from error

    @property
    def dim(self) -> int:
        """The dimension of the embeddings; `ValueError` if the file does not state it."""
        if type(size := self.settings.get("embedding_size")) is not int:
            raise ValueError(f"{self.file} does not describe a model: embedding_size is {size!r}")
        return size


def read_description(path: str | Path, backbone: "type[nn.Module] | None" = None) -> Description:
    """Read what `save_model` wrote next to the weights; the arguments and errors are those of `load_model`."""
    file = (Path(path) if Path(path).is_dir() else Path(path).parent) / DESCRIPTION
    try:
        content = _read(file)
        if content["format"] != FORMAT:
            raise ValueError(f"its format is {content['format']!r} but must be {FORMAT}")
        settings: dict[str, Any] = dict(content["config"])
        settings |= _custom_backbone(settings.get("backbone"), backbone)
        facts = (dict(content["preprocessing"]), dict(content.get("network", {})), str(content["sha256"]))
        return Description(file, settings, *facts, content.get("features_by"))
    except KeyError as error:
        raise ValueError(f"{file} does not describe a model: {error} is missing") from error
    except (AttributeError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not describe a model: {error}") from error


def read_checksum(path: str | Path) -> str:
    """Return the checksum of the weights of a model that `save_model` wrote, or of an ONNX file.

    If another library prepares the images of the model, its name, version and settings are part of the checksum.

    Raises:
        ValueError: If the file is missing or malformed.
    """
    if Path(path).suffix.lower() == ONNX:
        from proxemic.models.backbones.onnx_backbone import read_onnx

        return hashlib.sha256(read_onnx(Path(path))).hexdigest()
    weights, preprocessing = str(_described(path, "sha256")), _described(path, "preprocessing")
    if isinstance(preprocessing, Mapping) and "library" in preprocessing:
        return hashlib.sha256(json.dumps([weights, preprocessing], sort_keys=True).encode()).hexdigest()
    return weights


def takes_vectors(path: str | Path) -> bool:
    """Return whether a model that `save_model` wrote takes vectors as inputs; an ONNX file never does.

    Raises:
        ValueError: If the file is missing or malformed.
    """
    if Path(path).suffix.lower() == ONNX:
        return False
    config = _described(path, "config")
    return isinstance(config, Mapping) and config.get("backbone") == "none"


def has_own_backbone(path: str | Path) -> bool:
    """Return whether the backbone of a model that `save_model` wrote is a class of the user."""
    config = _described(path, "config")
    return isinstance(config, Mapping) and isinstance(config.get("backbone"), Mapping)


def _described(path: str | Path, key: str) -> Any:
    file = (Path(path) if Path(path).is_dir() else Path(path).parent) / DESCRIPTION
    try:
        return _read(file)[key]
    except (KeyError, OSError, TypeError, ValueError) as error:
        raise ValueError(f"{file} does not describe a model: {error}") from error


def _read(file: Path) -> Any:
    if file.exists() and not file.is_file():
        raise ValueError("it is not a regular file")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _custom_backbone(named: Any, given: "type[nn.Module] | None") -> "dict[str, type[nn.Module]]":
    if not isinstance(named, Mapping):
        if given is not None:
            raise UserError(f"backbone is {given.__name__} but the backbone of this model is {named}; leave it out")
        return {}
    if given is None:
        path = str(named.get("class_path"))
        raise UserError(
            f"The backbone of this model is the class {path}, which is not imported because a file names it: evaluate "
            f"its run, or import the class and pass it, load_model(path, backbone={path.rpartition('.')[2]})."
        )
    return {"backbone": given}
