"""Any timm network as a backbone, with pretrained weights from the cache, a download or a local file."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor, nn

from proxemic.errors import UserError
from proxemic.models.backbones.installed_weights import how_to_get, installed_weights
from proxemic.models.backbones.iresnet import IRESNETS

if TYPE_CHECKING:
    from timm.models import PretrainedCfg


class TimmBackbone(nn.Module):
    """Wrapper of a timm network without pooling and classifier; its output is always `[B, num_features, h, w]`.

    The output of a transformer is `[B, num_features, tokens, 1]`, without class and register tokens.

    Args:
        network: A network made by `timm.create_model(..., num_classes=0, global_pool="")`.

    Raises:
        ValueError: In `forward`, if the network returns neither a map nor tokens.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.num_features: int = getattr(network, "head_hidden_size", network.num_features)
        self.channels_last: bool = getattr(network, "output_fmt", "NCHW") == "NHWC"
        self.prefix_tokens: int = getattr(network, "num_prefix_tokens", 0)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        features = self.network(images)
        shape = tuple(getattr(features, "shape", ()))
        if len(shape) == 3:
            features = features[:, self.prefix_tokens :].transpose(1, 2).unsqueeze(3)
        elif len(shape) == 4 and self.channels_last:
            features = features.permute(0, 3, 1, 2)
        if len(shape) not in (3, 4) or features.shape[1] != self.num_features:
            raise ValueError(
                f"backbone returns features of shape {shape}, neither a map of {self.num_features} channels nor "
                "tokens; choose another timm model"
            )
        return features


def check_timm_name(name: str) -> None:
    """Raise `ValueError` if timm has no such network, or `ImportError` if timm is not installed."""
    try:
        import timm
    except ImportError as error:
        raise ImportError(f"backbone {name!r} needs timm, which is missing: pip install timm") from error
    known = timm.list_models()
    if name not in known and name not in timm.list_pretrained():
        near = get_close_matches(name, [*known, *IRESNETS], n=3) or ["resnet50"]
        raise ValueError(
            f"backbone is {name!r} but must be 'convnet', 'bn_inception', 'iresnet18' to 'iresnet200' or a timm model; "
            f"did you mean {' or '.join(near)}?"
        )


def timm_backbone(
    name: str,
    *,
    pretrained: bool = False,
    in_channels: int = 3,
    weights: str | Path | None = None,
    image_size: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> TimmBackbone:
    """Build a timm network as a backbone.

    Args:
        name: A timm model, with or without a tag, such as `resnet50` or `resnet50.a1_in1k`.
        pretrained: Load timm's weights from the Hugging Face cache, or download them; for `tf_efficientnet_lite0`, use
            the package of the extra `pretrained` if it is installed.
        in_channels: Channels of the images; timm adapts pretrained first layers.
        weights: A `.safetensors` file with timm's weights for this model, instead of `pretrained`.
        image_size: Side of the images, for networks of a fixed size such as vision transformers; their pretrained
            position embeddings are resampled to it.
        arguments: Other arguments of the model, such as `drop_path_rate`; `img_size` overrides `image_size`.

    Raises:
        ValueError: If timm has no such model, the model does not take the arguments, or the file does not fit.
        UserError: If pretrained weights are not available; the message says what to fetch and where to put it.
        ImportError: If timm is not installed.

    >>> backbone = timm_backbone("resnet18", in_channels=1)
    >>> backbone.num_features, backbone(torch.zeros(1, 1, 64, 64)).shape
    (512, torch.Size([1, 512, 2, 2]))
    """
    check_timm_name(name)
    import timm

    arguments = dict(arguments or {})
    # These arguments decide which weights are loaded and what the network returns.
    own = {*inspect.signature(timm.create_model).parameters, "num_classes", "global_pool", "in_chans", "features_only"}
    if refused := sorted(own & {*arguments}):
        raise ValueError(f"backbone_args has {refused[0]}, which other settings decide; leave it out")
    configuration = timm.get_pretrained_cfg(name)
    fixed = configuration.input_size[-1] if configuration and configuration.fixed_input_size else None
    if image_size is not None and fixed is not None and image_size != fixed:
        arguments = {"img_size": image_size, **arguments}
    create = partial(_create, name, in_channels, arguments)
    installed = installed_weights(name) if pretrained and weights is None else None
    if installed is not None:
        network: Any = create({"state_dict": installed, "custom_load": False})
        network.pretrained_cfg.pop("state_dict")  # timm would keep this second copy
        return TimmBackbone(network)
    file = _pretrained_file(name, configuration) if pretrained and weights is None else None
    if weights is not None:
        file = Path(weights).expanduser()
        if file.suffix != ".safetensors" or not file.is_file():
            raise ValueError(f"weights is {str(weights)!r} but must be an existing .safetensors file")
    return TimmBackbone(create() if file is None else _create_from(file, name, create))


def _create_from(file: Path, name: str, create: Callable[..., nn.Module]) -> nn.Module:
    try:
        with torch.random.fork_rng(devices=[]):
            network = create({"file": str(file), "custom_load": False})
    except (RuntimeError, SafetensorError) as error:
        raise ValueError(f"weights in {file} do not fit {name}: {' '.join(str(error).split())[:200]}") from error
    # timm only logs missing tensors. Tensors that the same random state reproduces were not in the file.
    fresh = dict(create().named_parameters())
    lacking = [
        key
        for key, value in network.named_parameters()
        if value.numel() > 1 and value.std() > 0 and torch.equal(value, fresh[key])
    ]
    if lacking:
        raise ValueError(f"weights in {file} do not fit {name}: {len(lacking)} tensors are missing, as {lacking[0]}")
    return network


def _create(
    name: str, in_channels: int, arguments: Mapping[str, Any], overlay: dict[str, Any] | None = None
) -> nn.Module:
    import timm

    try:
        return timm.create_model(
            name,
            pretrained=overlay is not None,
            pretrained_cfg_overlay=overlay,
            num_classes=0,
            global_pool="",
            in_chans=in_channels,
            **arguments,
        )
    except TypeError as error:
        raise ValueError(f"backbone {name!r} cannot be made with {dict(arguments)}: {error}") from error
    except AssertionError as error:
        raise ValueError(f"backbone {name!r} cannot be used, as its pooling cannot be removed: {error}") from error


def _pretrained_file(name: str, configuration: "PretrainedCfg | None") -> Path:
    import huggingface_hub

    repository = configuration.hf_hub_id if configuration else None
    if configuration is None or repository is None:
        raise UserError(f"timm has no pretrained weights for {name}; set pretrained=False, or pass `weights`")
    filename = configuration.hf_hub_filename or "model.safetensors"
    cached = huggingface_hub.try_to_load_from_cache(repository, filename)
    if isinstance(cached, str):
        return Path(cached)
    url = huggingface_hub.hf_hub_url(repository, filename)
    try:
        # Checks the connection once, as the download itself retries for most of a minute.
        huggingface_hub.get_hf_file_metadata(url, timeout=5)
        return Path(huggingface_hub.hf_hub_download(repository, filename))
    except Exception as error:  # whatever the cause, the remedy is the same
        folder = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
        raise UserError(
            f"pretrained weights of {name} are not in the cache and cannot be downloaded: fetch {url} elsewhere and "
            f"pass the file as `weights`, or copy the folder {folder} from a machine that has it{how_to_get(name)}"
        ) from error
