"""BN-Inception's published weights: from a file, from torch's cache or from the network."""

from pathlib import Path
from urllib.request import urlopen

import torch

from proxemic.errors import UserError
from proxemic.models.bn_inception import BNInception
from proxemic.models.weights_files import load_weights_file

URL = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"


def bn_inception_backbone(
    *, pretrained: bool = False, in_channels: int = 3, weights: str | Path | None = None
) -> BNInception:
    """Build BN-Inception as a backbone.

    Args:
        pretrained: Load the published weights, from torch's cache or else from the network.
        in_channels: Of the images; the published weights have 3.
        weights: A file of published weights, in place of `pretrained`: `.safetensors`, or `.pth`, `.pt` or `.pth.tar`,
            which is read without running code from it. A checksum in its name (`bn_inception-52deb4733.pth`) is
            verified.

    Raises:
        ValueError: If the file is damaged or does not fit.
        UserError: If pretrained weights cannot be had; it says what to fetch and where to put it.

    >>> bn_inception_backbone(in_channels=1).num_features
    1024
    """
    backbone = BNInception(in_channels)
    file = Path(weights).expanduser() if weights is not None else _published_file() if pretrained else None
    if file is not None:
        load_weights_file(backbone, file, "bn_inception", unused=("last_linear.", "fc."))
    return backbone


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
