"""Files of models: weights in `model.safetensors`, the configuration in `model.json`; nothing is unpickled."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from proxemic.addresses import TRANSFORMERS
from proxemic.files import check_regular, write_atomically
from proxemic.models.backbones.onnx_backbone import OnnxBackbone, read_onnx
from proxemic.models.backbones.transformers_models import TransformersBackbone, transformers_backbone
from proxemic.models.config import ModelConfig
from proxemic.models.description import DESCRIPTION, FORMAT, FROZEN, ONNX, TOKENIZER, WEIGHTS, read_description
from proxemic.models.model import EmbeddingModel, build_model
from proxemic.models.plain import plain_state, shapes_of, unwrapped
from proxemic.models.weights_files import read_shapes


def save_model(
    directory: str | Path, model: nn.Module, preprocessing: Mapping[str, Any], *, features_by: str | None = None
) -> None:
    """Save a model so that `load_model` returns one with bit-identical embeddings.

    Each file is replaced atomically; `model.json` contains the checksum of the weights, so that loading detects an
    interrupted save. The network of an ONNX file is saved as `backbone.onnx`, and the tokenizer of a text tower as
    `tokenizer.json`.

    Wrappers around the model or a part of it (`torch.compile`, `DataParallel`, `DistributedDataParallel` or
    `AveragedModel`) are not saved. Parametrized weights, such as those of
    `torch.nn.utils.parametrizations.weight_norm`, are saved as their values in evaluation mode. The adapters of
    `ModelConfig.lora` are added to the weights; embeddings are then equal up to rounding.

    Args:
        directory: Folder for `model.safetensors` and `model.json`; created if it does not exist.
        model: An `EmbeddingModel` with float32 weights, which may be wrapped.
        preprocessing: Preprocessing of the images as plain JSON data (tuples are loaded as lists).
        features_by: The checksum of the model whose features the head turns into embeddings, if ``model`` combines that
            model and a head.

    Raises:
        ValueError: If preprocessing is not plain data, weights are not float32, or the model has other tensors than
            when it was built.
        UserError: If the files cannot be written.

    >>> from tempfile import mkdtemp
    >>> directory, model = mkdtemp(), build_model(ModelConfig(in_channels=1, embedding_size=4)).eval()
    >>> save_model(directory, model, {"size": 32})
    >>> loaded, preprocessing = load_model(directory)
    >>> preprocessing, torch.equal(loaded(torch.ones(1, 1, 32, 32)), model(torch.ones(1, 1, 32, 32)))
    ({'size': 32}, True)
    """
    model = unwrapped(model)
    if not isinstance(model, EmbeddingModel):
        raise ValueError(f"model is a {type(model).__name__} but must be an EmbeddingModel, as build_model returns")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            raise ValueError(f"model has {name} in {parameter.dtype} but must be float32; call model.float() first")
    state = plain_state(model, model.shapes)
    shapes = shapes_of(state)
    if changed := [name for name in {**model.shapes, **shapes} if shapes.get(name) != model.shapes.get(name)]:
        raise ValueError(
            f"model has {changed[0]} of shape {shapes.get(changed[0], 'none')} but was built with "
            f"{model.shapes.get(changed[0], 'none')}, so it could not be loaded again; undo what changed the network, "
            "such as torch.nn.utils.weight_norm or pruning"
        )
    weights = safetensors.torch.save({name: value.contiguous() for name, value in state.items()})
    custom = {"backbone": {"class_path": model.config.backbone_name}} if model.config.custom_backbone else {}
    backbone = unwrapped(model.backbone)
    description = {
        "format": FORMAT,
        "config": asdict(replace(model.config, lora=None)) | custom,
        **({"network": backbone.description()} if isinstance(backbone, TransformersBackbone | OnnxBackbone) else {}),
        "preprocessing": dict(preprocessing),
        "sha256": hashlib.sha256(weights).hexdigest(),
        **({} if features_by is None else {"features_by": features_by}),
        "libraries": {
            name: distribution.version
            for name in ("proxemic", "torch", "timm", "transformers", "onnxruntime")
            for distribution in distributions(name=name)
        },
    }
    try:
        text = json.dumps(description, indent=2, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise ValueError(f"preprocessing is not plain JSON data: {error}") from error
    files = [(FROZEN, backbone.content)] if isinstance(backbone, OnnxBackbone) else []
    if isinstance(backbone, TransformersBackbone) and backbone.tokenizer is not None:
        files = [(TOKENIZER, backbone.tokenizer.encode())]
    for name, content in (*files, (WEIGHTS, weights), (DESCRIPTION, text.encode())):
        with write_atomically(Path(directory) / name) as temporary:
            temporary.write_bytes(content)


def load_model(path: str | Path, backbone: type[nn.Module] | None = None) -> tuple[EmbeddingModel, dict[str, Any]]:
    """Load a model that `save_model` wrote, on the CPU and in evaluation mode, without internet access.

    Args:
        path: The directory, or its `model.safetensors`.
        backbone: Class of the backbone if it is your own class. It is never imported just because a file names it; it
            is instantiated with the arguments in `model.json`.

    Returns:
        The model and its preprocessing.

    Raises:
        ValueError: If a file is missing, malformed, or belongs to another model.
        UserError: If the model needs the class of its backbone, or ``backbone`` is given without need.
        ImportError: If the backbone needs timm, transformers or onnxruntime, and it is not installed.
    """
    weights_file = Path(path) / WEIGHTS if Path(path).is_dir() else Path(path)
    check_regular(weights_file)
    file = weights_file.with_name(DESCRIPTION)
    description = read_description(weights_file, backbone)
    config, network = description.config, description.network
    onnx = _read_network(file, config, network) if config.backbone_name.endswith(ONNX) else None

    def build() -> EmbeddingModel:
        """Build the network without weights."""
        plain = replace(config, pretrained=False, weights=None)
        if onnx is not None:
            return EmbeddingModel(plain, onnx)
        if plain.backbone_name.startswith(TRANSFORMERS):
            return EmbeddingModel(plain, transformers_backbone(plain, network))
        return build_model(plain)

    try:
        weights_file.open("rb").close()  # safetensors reports a file without read permission as missing
        unfilled = _build_unfilled(build)
        if unfilled is not None:
            _check_shapes(read_shapes(weights_file), unfilled, config.backbone_name, weights_file)
        weights = weights_file.read_bytes()
        tensors = safetensors.torch.load(weights)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{weights_file} is not readable as safetensors: {error}") from error
    if hashlib.sha256(weights).hexdigest() != description.sha256:
        raise ValueError(f"{weights_file} is not the file that {file} describes; save the model again")
    if unfilled is not None and config.custom_backbone is None and _is_filled_by_state(unfilled):
        model = unfilled.to_empty(device="cpu")
    else:
        model = build()
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        message = " ".join(str(error).split())[:200]
        raise ValueError(f"{weights_file} does not fit {config.backbone_name}: {message}") from error
    model.config = config
    if isinstance(model.backbone, TransformersBackbone) and file.with_name(TOKENIZER).is_file():
        model.backbone.tokenizer = file.with_name(TOKENIZER).read_text(encoding="utf-8")
    return model.eval(), description.preprocessing


def _read_network(file: Path, config: ModelConfig, network: Mapping[str, Any]) -> OnnxBackbone:
    """Read the copy of an ONNX network from the folder of the description."""
    frozen, wanted = file.with_name(FROZEN), network.get("sha256")
    try:
        content = read_onnx(frozen)
    except ValueError as error:
        raise ValueError(f"{error}: it is the copy of {config.backbone_name} with SHA-256 {wanted}") from error
    if hashlib.sha256(content).hexdigest() != wanted:
        raise ValueError(f"{frozen} is not the file with SHA-256 {wanted} that {DESCRIPTION} names; restore it")
    return OnnxBackbone(content, config)


def _build_unfilled(build: Callable[[], EmbeddingModel]) -> EmbeddingModel | None:
    """Build a network without memory for its tensors; return None if its constructor computes with values."""
    try:
        with torch.device("meta"), _Unfilled():
            return build()
    except (NotImplementedError, RuntimeError):
        return None


def _is_filled_by_state(model: EmbeddingModel) -> bool:
    """Return whether each tensor of a network is in its state, under one name."""
    state = model.state_dict(keep_vars=True)
    parts = [*model.modules()]
    tensors = [*model.parameters(), *model.buffers(), *(value for part in parts for value in vars(part).values())]
    owned = {id(value) for value in tensors if isinstance(value, Tensor)}
    return len(owned) == len(state) and owned == {*map(id, state.values())}


def _check_shapes(shapes: Mapping[str, list[int]], model: EmbeddingModel, name: str, file: Path) -> None:
    """Raise `ValueError` if the network has other tensors than the file."""
    needed = shapes_of(model.state_dict())
    if wrong := sorted(key for key in needed.keys() | shapes.keys() if needed.get(key) != shapes.get(key)):
        raise ValueError(
            f"{file} does not fit {name}: {wrong[0]} has shape {shapes.get(wrong[0], 'none')} but must have "
            f"{needed.get(wrong[0], 'none')} ({len(wrong)} such tensors)"
        )


class _Unfilled(TorchFunctionMode):
    """Skips random initialisation: on the meta device, torch imports its compiler for it, which takes seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        # Both methods of tensors and functions of torch.nn.init.
        if getattr(func, "__name__", "").endswith(("normal_", "uniform_")):
            return args[0] if args else given["tensor"]
        return func(*args, **given)
