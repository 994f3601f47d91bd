"""Networks of transformers as backbones: from a folder or the hub, read as JSON and safetensors alone."""

import inspect
from collections.abc import Mapping
from difflib import get_close_matches
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.extras import optional_dependency
from proxemic.models.config import ModelConfig
from proxemic.models.transformers_files import CONFIG, find_folder, read_json
from proxemic.models.weights_files import load_weights_file

_SIZE = 224  # side of the trial images where neither the recipe nor the network has one
_LARGEST, _MOST_LAYERS = 2**20, 2**10
# What says how a network is stored or called rather than what it computes; code and paths of others are among it.
_DROPPED = ("auto_map", "_name_or_path", "dtype", "torch_dtype", "quantization_config", "architectures")


class TransformersBackbone(nn.Module):
    """A vision network of transformers, whose output is always `[B, num_features, h, w]`.

    That of a transformer is `[B, num_features, tokens, 1]`, without class and register tokens, or with ``pooler``
    `[B, num_features, 1, 1]`: the network's `pooler_output`, or its class token, or else the mean of the others.

    Parameters that the output does not depend on, such as the token that stands for masked patches, are not trained.
    """

    def __init__(self, network: Any, *, pooler: bool, prefix_tokens: int = 0) -> None:
        super().__init__()
        self.network = network
        self.pooler, self.prefix_tokens = pooler, prefix_tokens
        self.num_features = 0
        self._interpolates = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        return self.to_map(self.output(images))

    def to_map(self, output: Any) -> Tensor:
        """Return the map of features in what the network itself returns."""
        hidden, pooled = output.last_hidden_state, getattr(output, "pooler_output", None)
        if self.pooler and pooled is not None:
            return pooled.flatten(1)[:, :, None, None]
        if hidden.ndim == 3:
            hidden = hidden[:, :1] if self.pooler and self.prefix_tokens else hidden[:, self.prefix_tokens :]
            hidden = hidden.transpose(1, 2).unsqueeze(3)
        return hidden.mean((2, 3), keepdim=True) if self.pooler else hidden

    def output(self, images: Tensor) -> Any:
        """Return what the network itself returns."""
        config = self.network.config
        if images.shape[1] == 1 and getattr(config, "num_channels", 3) == 3:
            images = images.expand(-1, 3, -1, -1)
        other = self._interpolates and getattr(config, "image_size", None) != images.shape[-1]
        return self.network(images, return_dict=True, **({"interpolate_pos_encoding": True} if other else {}))

    def description(self) -> dict[str, Any]:
        """Return the configuration of the network as plain data, from which it is built again without its folder."""
        return {name: value for name, value in self.network.config.to_dict().items() if name not in _DROPPED}


class _Trial:
    """What one pass over two images tells about a network, without the memory of its weights."""

    def __init__(self, kind: "_Kind", config: ModelConfig) -> None:
        side = config.image_size or getattr(kind.config, "image_size", None)
        side = side if isinstance(side, int) else _SIZE
        with torch.device("meta"), torch.enable_grad():
            backbone = TransformersBackbone(kind.build().eval(), pooler=config.pooling == "pooler")
            images = torch.zeros(2, config.in_channels, side, side)
            try:
                output = backbone.output(images)
                patch = getattr(kind.config, "patch_size", None)
                self.prefix_tokens = backbone.prefix_tokens = _prefix_tokens(output.last_hidden_state, side, patch)
                features = backbone.to_map(output)
            except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
                raise ValueError(
                    f"backbone {kind.name!r} cannot take images of {side} by {side} pixels "
                    f"({' '.join(str(error).split())[:200].rstrip('.')}); give the size that it is made for"
                ) from error
            trained = [each for each in backbone.network.named_parameters() if each[1].requires_grad]
            names, parameters = zip(*trained, strict=True)
            gradients = torch.autograd.grad(features.sum(), parameters, allow_unused=True)
        self.num_features = features.shape[1]
        self.weights = sum(parameter.numel() for parameter in backbone.parameters())
        self.unused = {name for name, gradient in zip(names, gradients, strict=True) if gradient is None}


class _Kind:
    """A class of networks of transformers with its configuration, as a `config.json` or a `model.json` describes it."""

    def __init__(self, name: str, described: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        with optional_dependency("transformers"):
            from transformers import AutoModel
            from transformers.models.auto import CONFIG_MAPPING, MODEL_MAPPING
        self.name, self._auto = name, AutoModel
        described = {key: value for key, value in described.items() if key not in _DROPPED}
        kind = described.pop("model_type", None)
        if not isinstance(kind, str) or kind not in CONFIG_MAPPING or kind == "timm_wrapper":
            hint = "give its name in timm" if kind == "timm_wrapper" else "code that comes with weights is not run"
            raise ValueError(
                f"backbone {name!r} has the model_type {kind!r}, but must be of an architecture of transformers: {hint}"
            )
        try:
            _check_sizes(described)
            config: Any = CONFIG_MAPPING[kind](**described)
        except Exception as error:  # each architecture has checks of its own
            message = " ".join(str(error).split())[:200]
            raise ValueError(f"backbone {name!r} has a configuration that is none of {kind}: {message}") from error
        self.config = config = getattr(config, "vision_config", config)  # of the two towers of CLIP and SigLIP
        known = {key for key in config.to_dict() if key not in _DROPPED}
        for key, value in arguments.items():
            if key not in known:
                near = get_close_matches(key, known, n=3) or sorted(known)[:3]
                raise ValueError(
                    f"backbone_args has {key}, but the configuration of {name!r} does not; did you mean "
                    f"{' or '.join(near)}?"
                )
            setattr(config, key, value)
        if hasattr(config, "mask_ratio"):
            config.mask_ratio = 0.0  # a masked autoencoder would embed a random part of the image
        made = MODEL_MAPPING.get(type(config), None)
        if getattr(made, "main_input_name", None) != "pixel_values":
            raise ValueError(f"backbone {name!r} is {kind!r} of transformers, which is no network for images")
        self.made: Any = made

    @property
    def _options(self) -> dict[str, Any]:
        # ViT's pooler is a layer for classification, which few of the published weights have.
        pools = "add_pooling_layer" in inspect.signature(self.made.__init__).parameters
        return {"dtype": torch.float32, **({"add_pooling_layer": False} if pools else {})}

    def build(self) -> Any:
        """Build the network with initial weights."""
        return self._auto.from_config(self.config, trust_remote_code=False, **self._options)

    def load(self, folder: Path, needed: int) -> Any:
        """Load the network with the weights of a folder, of which `needed` are expected."""
        from transformers.utils import logging

        files = [*folder.glob("*.safetensors")]
        if not files or (folder / "adapter_config.json").exists():
            what = "the weights of an adapter, not of a network" if files else "no .safetensors file"
            raise ValueError(
                f"backbone {self.name!r}: {folder} has {what}, and pickled weights are not read; save it by "
                "save_pretrained, or set pretrained to false"
            )
        if (size := sum(file.stat().st_size for file in files)) < needed:
            raise ValueError(
                f"backbone {self.name!r}: the weights in {folder} have {size:,} bytes, but its {CONFIG} describes "
                f"{needed:,} weights; fetch both again"
            )
        bar = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            network, report = self.made.from_pretrained(
                folder,
                config=self.config,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
                **self._options,
            )
        except Exception as error:  # transformers raises what its readers and converters raise
            message = " ".join(str(error).split())[:200]
            raise ValueError(f"weights in {folder} do not fit {self.name!r}: {message}") from error
        finally:
            if bar:
                logging.enable_progress_bar()
        if missing := sorted(report["missing_keys"]):
            raise ValueError(
                f"weights in {folder} do not fit {self.name!r}: {len(missing)} tensors are missing, as {missing[0]}"
            )
        return network


def transformers_backbone(config: ModelConfig, described: Mapping[str, Any] | None = None) -> TransformersBackbone:
    """Build a network of transformers as a backbone.

    Args:
        config: Its `backbone` is `hf:` with a folder that `save_pretrained` wrote, or a name on the hub.
        described: What `description` of the backbone gave; with it, neither the folder nor the hub is asked.

    Raises:
        ValueError: If there is no such folder, what lies in it is damaged or no vision network, or images do not fit.
        UserError: If it must be fetched from the hub and cannot be; it says what to fetch and where to put it.
        ImportError: If transformers is not installed.
    """
    if described is None:
        folder = find_folder(config.backbone_name, weights=config.pretrained)
        kind = _Kind(config.backbone_name, read_json(folder / CONFIG), config.backbone_args)
        trial = _Trial(kind, config)
        network = kind.load(folder, trial.weights) if config.pretrained else kind.build()
    else:
        kind = _Kind(config.backbone_name, described, {})
        trial, network = _Trial(kind, config), kind.build()
    if config.weights is not None:
        load_weights_file(network, Path(config.weights).expanduser(), config.backbone_name)
    for name, parameter in network.named_parameters():
        if name in trial.unused:
            parameter.requires_grad_(False)
    backbone = TransformersBackbone(network, pooler=config.pooling == "pooler", prefix_tokens=trial.prefix_tokens)
    backbone.num_features = trial.num_features
    return backbone


def _check_sizes(described: Mapping[str, Any]) -> None:
    """Raise `ValueError` for numbers that no published network has, which would take the memory or the day."""
    for name, value in described.items():
        most = _MOST_LAYERS if "layers" in name or name == "depths" else _LARGEST
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, int) and each > most:
                raise ValueError(f"{name} is {value}, but may be {most:,}")
        if isinstance(value, Mapping):
            _check_sizes(value)


def _prefix_tokens(hidden: Tensor, side: int, patch: Any) -> int:
    """Count the class and register tokens: those beside the patches of the image."""
    if hidden.ndim == 4:
        return 0
    patches = (side // patch) ** 2 if isinstance(patch, int) and patch > 0 else 0
    tokens = hidden.shape[1]
    # A network that joins patches has fewer tokens, which are a square as well.
    return tokens - (patches if 0 < patches <= tokens else isqrt(tokens) ** 2)
