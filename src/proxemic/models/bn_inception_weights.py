"""BN-Inception's published weights: from a file, from torch's cache or from the network."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
from safetensors.torch import load_file
from torch import Tensor

from proxemic.errors import UserError
from proxemic.models.bn_inception import BNInception

URL = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"


def bn_inception_backbone(
    *, pretrained: bool = False, in_channels: int = 3, weights: str | Path | None = None
) -> BNInception:
    """Build BN-Inception as a backbone.

    Args:
        pretrained: load the published weights, from torch's cache or else from the network.
        in_channels: of the images; the published weights have 3.
        weights: a file of published weights, in place of `pretrained`: `.safetensors`, or `.pth` or `.pt`, which is
            read without running code from it. A checksum in its name (`bn_inception-52deb4733.pth`) is verified.

    Raises:
        ValueError: for a file that is damaged or does not fit.
        UserError: where pretrained weights cannot be had; it says what to fetch and where to put it.

    >>> bn_inception_backbone(in_channels=1).num_features
    1024
    """
    backbone = BNInception(in_channels)
    file = Path(weights).expanduser() if weights is not None else _published_file() if pretrained else None
    if file is not None:
        _load(backbone, file)
    return backbone


def _load(backbone: BNInception, file: Path) -> None:
    found = {name: value for name, value in _read(file).items() if not name.startswith(("last_linear.", "fc."))}
    # Files older than this counter lack it.
    needed = {name: value for name, value in backbone.state_dict().items() if not name.endswith("num_batches_tracked")}
    problems = [f"{name} is missing" for name in needed if name not in found]
    problems += [f"{name} is unknown" for name in found if name not in backbone.state_dict()]
    # Conversions from Caffe give batch norm's weights as [1, channels].
    problems += [
        f"{name} has shape {list(found[name].shape)} but must be {list(value.shape)}"
        for name, value in needed.items()
        if name in found and _without_ones(found[name]) != _without_ones(value)
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"weights in {file} do not fit 'bn_inception': {', '.join(problems[:3])}{more}")
    with torch.no_grad():
        for name, value in needed.items():
            value.copy_(found[name].reshape(value.shape))


def _without_ones(tensor: Tensor) -> list[int]:
    return [size for size in tensor.shape if size != 1]


def _read(file: Path) -> Mapping[str, Tensor]:
    if file.suffix not in (".safetensors", ".pth", ".pt") or not file.is_file():
        raise ValueError(f"weights is {str(file)!r} but must be an existing .safetensors, .pth or .pt file")
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    named = re.search(r"-([0-9a-f]{8,64})\.\w+$", file.name)
    if named and not digest.startswith(named[1]):
        raise ValueError(
            f"weights in {file} are damaged: their SHA-256 begins with {digest[: len(named[1])]} but, by the file's "
            f"name, should with {named[1]}; fetch the file again"
        )
    try:
        found: Any = (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
    except Exception as error:  # torch.load raises almost anything for a file that is not its own
        message = " ".join(str(error).split())[:200]
        raise ValueError(f"weights in {file} are not readable as a file of tensors: {message}") from error
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise ValueError(f"weights in {file} are not a mapping of names to tensors; save a model's state_dict()")
    return found


def _published_file() -> Path:
    folder = Path(torch.hub.get_dir()) / "checkpoints"
    file = folder / Path(URL).name
    if file.is_file():
        return file
    try:
        # The download itself would wait for minutes.
        urlopen(URL, timeout=5).close()
        folder.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(URL, str(file), file.stem.rpartition("-")[2], progress=False)
    except Exception as error:  # whatever kept the file away, the remedy is the same
        raise UserError(
            f"pretrained weights of bn_inception are not in the cache and cannot be downloaded: fetch {URL} elsewhere "
            f"and pass the file as `weights`, or put it into {folder}"
        ) from error
    return file
