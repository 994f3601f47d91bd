"""Networks of transformers as backbones, read from a folder or the hub, only from JSON and safetensors files."""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from math import isqrt, prod
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from proxemic.addresses import TRANSFORMERS
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.models.backbones.text_towers import TOKENIZER_SETTINGS, TOKENS, read_tokenizer
from proxemic.models.config import SIZE, ModelConfig
from proxemic.models.description import TOKENIZER
from proxemic.models.weights_files import load_weights_file

_CONFIG, _PROCESSOR, _PROCESSORS = "config.json", "preprocessor_config.json", "processor_config.json"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LARGEST_FILE = 2**20  # bytes of JSON; published files have a few thousand
_LARGEST, _MOST_LAYERS = 2**20, 2**10
# Keys that say how a network is stored or called, not what it computes; some name foreign code and paths.
_DROPPED = ("auto_map", "_name_or_path", "dtype", "torch_dtype", "quantization_config", "architectures")


class TransformersBackbone(nn.Module):
    """Wrapper of a vision network of transformers; its output is always `[B, num_features, h, w]`.

    The output of a transformer is `[B, num_features, tokens, 1]`, without class and register tokens. With ``pooler``,
    it is `[B, num_features, 1, 1]`: the network's `pooler_output`, or the class token, or the mean of the other tokens.
    A network for texts and images (CLIP, SigLIP) then returns its features in the space that texts and images share,
    and ``tokenizer`` is the content of its `tokenizer.json`, if there is one.

    Parameters that do not affect the output, such as the token for masked patches, are not trained.
    """

    def __init__(self, network: Any, *, pooler: bool, prefix_tokens: int = 0, num_features: int = 0) -> None:
        super().__init__()
        self.network = network
        self.pooler, self.prefix_tokens, self.num_features = pooler, prefix_tokens, num_features
        self.has_text_tower = _has_text_tower(type(network))
        self.tokenizer: str | None = None
        self._interpolates = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        return self.to_map(self.output(images))

    def to_map(self, output: Any) -> Tensor:
        """Return the feature map from the network's own output."""
        hidden, pooled = output.last_hidden_state, getattr(output, "pooler_output", None)
        if self.pooler and pooled is not None:
            return pooled.flatten(1)[:, :, None, None]
        if hidden.ndim == 3:
            hidden = hidden[:, :1] if self.pooler and self.prefix_tokens else hidden[:, self.prefix_tokens :]
            hidden = hidden.transpose(1, 2).unsqueeze(3)
        return hidden.mean((2, 3), keepdim=True) if self.pooler else hidden

    def output(self, images: Tensor) -> Any:
        """Compute the network's own output for images."""
        config = _vision(self.network.config)
        if images.shape[1] == 1 and getattr(config, "num_channels", 3) == 3:
            images = images.expand(-1, 3, -1, -1)
        side = getattr(config, "image_size", None)
        sides = tuple(side) if isinstance(side, list | tuple) else (side, side)
        is_other_size = self._interpolates and sides != tuple(images.shape[-2:])
        forward = self.network.get_image_features if self.has_text_tower else self.network
        return forward(images, return_dict=True, **({"interpolate_pos_encoding": True} if is_other_size else {}))

    def text_features(self, tokens: Int64[Tensor, "texts length"]) -> Float[Tensor, "texts features"]:
        """Compute features of texts, in the same space as the features of images."""
        return self.network.get_text_features(tokens).pooler_output

    def description(self) -> dict[str, Any]:
        """Return the configuration as plain data, from which the network can be rebuilt without its folder."""
        return {name: value for name, value in self.network.config.to_dict().items() if name not in _DROPPED}


def transformers_backbone(config: ModelConfig, described: Mapping[str, Any] | None = None) -> TransformersBackbone:
    """Build a network of transformers as a backbone.

    `config.backbone` is `hf:` with a folder that `save_pretrained` wrote, or with a name on the hub. Neither is used if
    ``described``, the result of `TransformersBackbone.description`, is given. Raises `ValueError` if the folder is
    missing, damaged or without a vision network, or if images do not fit, and `UserError` if the hub cannot be reached.
    """
    with optional_dependency("transformers"):
        from transformers import AutoModel
    name, folder, joint = config.backbone_name, None, config.pooling == "joint"
    if described is None:
        folder = find_folder(name, weights=config.pretrained)
        network_config, kind = _read_config(name, _read_json(folder / _CONFIG), config.backbone_args, joint=joint)
    else:
        network_config, kind = _read_config(name, described, {}, joint=joint)
    # ViT's pooler is a layer for classification, which most published weights lack.
    pools = "add_pooling_layer" in inspect.signature(kind.__init__).parameters
    options = {"dtype": torch.float32, "trust_remote_code": False, **({"add_pooling_layer": False} if pools else {})}
    pooler, vision = config.pooling in ("pooler", "joint"), _vision(network_config)
    side = config.image_size or getattr(vision, "image_size", None)
    sides = side if isinstance(side, list | tuple) else [side if isinstance(side, int) else SIZE] * 2
    # A trial pass over two images, without memory for weights.
    with torch.device("meta"), torch.enable_grad():
        trial = TransformersBackbone(AutoModel.from_config(network_config, **options).eval(), pooler=pooler)
        features = _try(trial, config.in_channels, sides, name)
        trained = {key: parameter for key, parameter in trial.network.named_parameters() if parameter.requires_grad}
        gradients = torch.autograd.grad(features.sum(), [*trained.values()], allow_unused=True)
    if folder is not None and config.pretrained:
        needed = sum(parameter.numel() for parameter in trial.parameters())
        network = _load(name, kind, folder, needed, {"config": network_config, **options})
    else:
        network = AutoModel.from_config(network_config, **options)
    if config.weights is not None:
        load_weights_file(network, Path(config.weights).expanduser(), name)
    for key, gradient in zip(trained, gradients, strict=True):
        if gradient is None:
            network.get_parameter(key).requires_grad_(False)
    wrapper = TransformersBackbone(
        network, pooler=pooler, prefix_tokens=trial.prefix_tokens, num_features=features.shape[1]
    )
    if joint and folder is not None:
        settings = _read_json(folder / TOKENIZER_SETTINGS) if (folder / TOKENIZER_SETTINGS).is_file() else {}
        text = network_config.text_config
        wrapper.tokenizer = read_tokenizer(folder, settings, text.max_position_embeddings, text.pad_token_id or 0)
    return wrapper


def _vision(config: Any) -> Any:
    """Return the configuration of the vision tower of CLIP or SigLIP, or the configuration itself of other networks."""
    return getattr(config, "vision_config", config)


def _has_text_tower(kind: Any) -> bool:
    return hasattr(kind, "get_text_features") and hasattr(kind, "get_image_features")


def has_text_tower(folder: Path) -> bool:
    """Return whether a folder of transformers holds a network for texts and images, such as CLIP."""
    with optional_dependency("transformers"):
        from transformers.models.auto import CONFIG_MAPPING, MODEL_MAPPING
    kind = _read_json(folder / _CONFIG).get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return False
    return _has_text_tower(MODEL_MAPPING.get(CONFIG_MAPPING[kind], None))


def _read_config(
    name: str, described: Mapping[str, Any], arguments: Mapping[str, Any], *, joint: bool
) -> tuple[Any, Any]:
    """Return the configuration that a `config.json` or a `model.json` describes, and the class of its network.

    For a network for texts and images, these belong to its vision tower, or with `joint` to the whole.
    """
    from transformers.models.auto import CONFIG_MAPPING, MODEL_MAPPING

    described = {key: value for key, value in described.items() if key not in _DROPPED}
    kind = described.pop("model_type", None)
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING or kind == "timm_wrapper":
        hint = "give its name in timm" if kind == "timm_wrapper" else "code that comes with weights is not run"
        raise ValueError(
            f"backbone {name!r} has the model_type {kind!r}, which is not an architecture of transformers: {hint}"
        )
    try:
        _check_sizes(described)
        config: Any = CONFIG_MAPPING[kind](**described)
    except Exception as error:  # each architecture has checks of its own
        message = " ".join(str(error).split())[:200]
        raise ValueError(f"backbone {name!r} has a configuration that does not fit {kind}: {message}") from error
    whole, config = config, _vision(config)
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
        config.mask_ratio = 0.0  # otherwise, a masked autoencoder embeds a random part of the image
    if joint:
        if not _has_text_tower(made := MODEL_MAPPING.get(type(whole), None)):
            raise ValueError(f"pooling is 'joint' but {name!r} has no text tower; take pooler")
        return whole, made
    made = MODEL_MAPPING.get(type(config), None)
    if getattr(made, "main_input_name", None) != "pixel_values":
        raise ValueError(f"backbone {name!r} is {kind!r} of transformers, which is not a network for images")
    return config, made


def _check_sizes(described: Mapping[str, Any]) -> None:
    """Raise `ValueError` for sizes far above those of published networks, which would exhaust memory or time."""
    for name, value in described.items():
        most = _MOST_LAYERS if "layers" in name or name == "depths" else _LARGEST
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int) and number > most:
                raise ValueError(f"{name} is {value}, but may be at most {most:,}")
        if isinstance(value, Mapping):
            _check_sizes(value)


def _try(backbone: TransformersBackbone, channels: int, sides: Sequence[int], name: str) -> Tensor:
    """Run two images through the network, count class and register tokens, and return the feature map."""
    try:
        output = backbone.output(torch.zeros(2, channels, *sides))
        hidden, patch = output.last_hidden_state, getattr(_vision(backbone.network.config), "patch_size", None)
        if hidden.ndim == 3:
            patches = prod(side // patch for side in sides) if isinstance(patch, int) and patch > 0 else 0
            tokens = hidden.shape[1]
            # A network that merges patches has fewer patch tokens, but still a square number.
            backbone.prefix_tokens = tokens - (patches if 0 < patches <= tokens else isqrt(tokens) ** 2)
        return backbone.to_map(output)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"backbone {name!r} cannot take images of {' by '.join(map(str, sides))} pixels "
            f"({' '.join(str(error).split())[:200].rstrip('.')}); give the size that it was made for"
        ) from error


def _load(name: str, kind: Any, folder: Path, needed: int, options: dict[str, Any]) -> Any:
    """Load a network with the weights of a folder; the configuration requires `needed` weights."""
    from transformers.utils import logging

    files = [*folder.glob("*.safetensors")]
    if not files or (folder / "adapter_config.json").exists():
        problem = "the weights of an adapter, not of a network" if files else "no .safetensors file"
        raise ValueError(
            f"backbone {name!r}: {folder} has {problem}, and pickled weights are not read; save it by save_pretrained, "
            "or set pretrained to false"
        )
    if (size := sum(file.stat().st_size for file in files)) < needed:
        raise ValueError(
            f"backbone {name!r}: the weights in {folder} have {size:,} bytes, but its {_CONFIG} describes {needed:,} "
            "weights; fetch both again"
        )
    has_bar = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        network, report = kind.from_pretrained(
            folder, use_safetensors=True, local_files_only=True, output_loading_info=True, **options
        )
    except Exception as error:  # the readers and converters of transformers may raise anything
        message = " ".join(str(error).split())[:200]
        raise ValueError(f"weights in {folder} do not fit {name!r}: {message}") from error
    finally:
        if has_bar:
            logging.enable_progress_bar()
    if missing := sorted(report["missing_keys"]):
        raise ValueError(
            f"weights in {folder} do not fit {name!r}: {len(missing)} tensors are missing, as {missing[0]}"
        )
    return network


def read_image_processor(folder: Path) -> Any | None:
    """Build transformers' own image processor of a folder; None if the folder does not describe one."""
    files = [file for name in (_PROCESSORS, _PROCESSOR) if (file := folder / name).is_file()]
    described = [_read_json(file) for file in files]
    settings = next((found["image_processor"] for found in described if "image_processor" in found), None)
    if settings is None and (folder / _PROCESSOR).is_file():
        settings = described[-1]
    return None if settings is None else image_processor(settings, _read_json(folder / _CONFIG).get("model_type"))


def image_processor(settings: Any, model_type: Any = None) -> Any:
    """Build an image processor of transformers, of its Pillow variant if there is one.

    Raises:
        ValueError: If the settings, or the default for the architecture, do not name a processor of transformers, or it
            does not take them.
    """
    with optional_dependency("transformers"):
        import transformers
        from transformers.image_processing_utils import BaseImageProcessor
        from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES as DEFAULTS
    settings = settings if isinstance(settings, dict) else {}
    old = str(settings.get("feature_extractor_type", "")).replace("FeatureExtractor", "ImageProcessor")
    default = next(iter(DEFAULTS.get(model_type, {}).values()), "") if isinstance(model_type, str) else ""
    name = str(settings.get("image_processor_type") or old or default).removesuffix("Fast").removesuffix("Pil")
    for kind in (getattr(transformers, f"{name}Pil", None), getattr(transformers, name, None) if name else None):
        if isinstance(kind, type) and issubclass(kind, BaseImageProcessor):
            try:
                return kind.from_dict({key: value for key, value in settings.items() if key != "auto_map"})
            except Exception as error:  # each processor has checks of its own
                message = " ".join(str(error).split())[:200]
                raise ValueError(f"{name} of transformers does not take its settings: {message}") from error
    raise ValueError(
        f"the settings of the images name {name or 'no processor'!r}, which is not an image processor of transformers "
        f"{transformers.__version__}: write its name as image_processor_type into {_PROCESSOR}"
    )


def find_folder(backbone: str, *, weights: bool) -> Path:
    """Return the folder of `hf:FOLDER`, or the folder with the hub's files of `hf:NAME`; download them if needed."""
    name = backbone.removeprefix(TRANSFORMERS)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / _CONFIG).is_file():
            raise ValueError(f"backbone {backbone!r}: {folder} has no {_CONFIG}; give a folder of save_pretrained")
        return folder
    if not _HUB_NAME.fullmatch(name):
        raise ValueError(
            f"backbone is {backbone!r}, but there is no such folder; give one that save_pretrained wrote, or a name on "
            "the Hugging Face hub, such as hf:facebook/dinov2-small"
        )
    with optional_dependency("transformers"):
        import huggingface_hub
    patterns = [_CONFIG, _PROCESSOR, _PROCESSORS]
    if weights:
        patterns += ["model*.safetensors", "model.safetensors.index.json", TOKENIZER, TOKENIZER_SETTINGS, *TOKENS]
    with suppress(Exception):  # not there
        cached = Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns, local_files_only=True))
        if (cached / _CONFIG).is_file() and (not weights or any(cached.glob("*.safetensors"))):
            return cached
    url = huggingface_hub.hf_hub_url(name, _CONFIG)
    try:
        # Checks the connection once, as the download itself retries for most of a minute.
        huggingface_hub.get_hf_file_metadata(url, timeout=5)
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=patterns))
    except Exception as error:  # whatever the cause, the remedy is the same
        cache = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
        files = f"{_CONFIG}, {_PROCESSOR}" + (" and model.safetensors" if weights else "")
        raise UserError(
            f"backbone {backbone!r} is not in the cache and cannot be downloaded: fetch {files} from "
            f"{url.partition('/resolve/')[0]} elsewhere and give their folder as hf:FOLDER, or copy the folder {cache} "
            "from a machine that has it"
        ) from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        if (size := file.stat().st_size) > _LARGEST_FILE:
            raise ValueError(f"it has {size:,} bytes, but may have {_LARGEST_FILE:,}")
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return content
