"""BN-Inception, the network of many published results, with its published weights."""

from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d

from proxemic.errors import UserError
from proxemic.models.weights_files import load_weights_file

URL = "http://data.lip6.fr/cadene/pretrainedmodels/bn_inception-52deb4733.pth"


class _Block(NamedTuple):
    """Channels of a block's branches: 1×1; reduced, 3×3; reduced, twice 3×3; 1×1 after the pool (0 for no layer)."""

    one: int
    reduce: int
    three: int
    double_reduce: int
    double: int
    pool: int


# A block without the 1×1 branch halves the map.
_BLOCKS = {
    "3a": _Block(64, 64, 64, 64, 96, 32),
    "3b": _Block(64, 64, 96, 64, 96, 64),
    "3c": _Block(0, 128, 160, 64, 96, 0),
    "4a": _Block(224, 64, 96, 96, 128, 128),
    "4b": _Block(192, 96, 128, 96, 128, 128),
    "4c": _Block(160, 128, 160, 128, 160, 128),
    "4d": _Block(96, 128, 192, 160, 192, 128),
    "4e": _Block(0, 128, 192, 192, 256, 0),
    "5a": _Block(352, 192, 320, 160, 224, 128),
    "5b": _Block(352, 192, 320, 192, 224, 128),
}


class BNInception(nn.Module):
    """Inception with batch norm, from images `[B, C, H, W]` to a map `[B, 1024, H/32, W/32]`.

    Layers have the names and shapes of the published weights, which were trained on BGR images from 0 to 255 less
    (104, 117, 128): `Preprocessing(channel_order="bgr", white=255, mean=(104, 117, 128), std=(1, 1, 1))`.

    Source: Ioffe & Szegedy, Batch Normalization, 2015, fig. 5. Layers follow the Caffe model that was converted for
    Cadene's `pretrained-models.pytorch`, which differs from that figure in a few widths.

    Args:
        in_channels: Channels of the images, at least 1.

    Raises:
        ValueError: In `forward`, if the sides of the images are not multiples of 32, so that a map cannot be halved.

    >>> net = BNInception()
    >>> net.num_features, net(torch.zeros(2, 3, 64, 64)).shape
    (1024, torch.Size([2, 1024, 2, 2]))
    """

    def __init__(self, in_channels: int = 3) -> None:
        super().__init__()
        self._add("conv1_7x7_s2", in_channels, 64, 7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, 1)
        self._add("conv2_3x3", 64, 192, 3)
        channels = 192
        for name, block in _BLOCKS.items():
            channels = self._add_block(f"inception_{name}", block, channels)
        self.num_features = channels

    def _add(self, name: str, inputs: int, outputs: int, side: int, stride: int = 1) -> None:
        self.add_module(name, nn.Conv2d(inputs, outputs, side, stride, side // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(outputs))

    def _add_block(self, name: str, block: _Block, inputs: int) -> int:
        stride = 1 if block.one else 2
        if block.one:
            self._add(f"{name}_1x1", inputs, block.one, 1)
        self._add(f"{name}_3x3_reduce", inputs, block.reduce, 1)
        self._add(f"{name}_3x3", block.reduce, block.three, 3, stride)
        self._add(f"{name}_double_3x3_reduce", inputs, block.double_reduce, 1)
        self._add(f"{name}_double_3x3_1", block.double_reduce, block.double, 3)
        self._add(f"{name}_double_3x3_2", block.double, block.double, 3, stride)
        if block.pool:
            self._add(f"{name}_pool_proj", inputs, block.pool, 1)
        return block.one + block.three + block.double + (block.pool or inputs)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        features = max_pool2d(self._apply_layers(images, "conv1_7x7_s2"), 3, 2, ceil_mode=True)
        features = max_pool2d(self._apply_layers(features, "conv2_3x3_reduce", "conv2_3x3"), 3, 2, ceil_mode=True)
        for name, block in _BLOCKS.items():
            if not block.one and (features.shape[2] % 2 or features.shape[3] % 2):
                size = " by ".join(str(side) for side in images.shape[2:])
                raise ValueError(
                    f"images are {size} pixels but BN-Inception needs maps that it can halve: take multiples of 32"
                )
            features = self._apply_block(f"inception_{name}", block, features)
        return features

    def _apply_layers(self, features: Tensor, *names: str) -> Tensor:
        for name in names:
            features = self.get_submodule(f"{name}_bn")(self.get_submodule(name)(features)).relu_()
        return features

    def _apply_block(self, name: str, block: _Block, features: Tensor) -> Tensor:
        branches = [self._apply_layers(features, f"{name}_1x1")] if block.one else []
        branches.append(self._apply_layers(features, f"{name}_3x3_reduce", f"{name}_3x3"))
        double = (f"{name}_double_3x3_reduce", f"{name}_double_3x3_1", f"{name}_double_3x3_2")
        branches.append(self._apply_layers(features, *double))
        if not block.pool:
            branches.append(max_pool2d(features, 3, 2, ceil_mode=True))
        else:
            # Only the last block pools by the maximum.
            pool = max_pool2d if name == "inception_5b" else avg_pool2d
            branches.append(self._apply_layers(pool(features, 3, 1, 1), f"{name}_pool_proj"))
        return torch.cat(branches, 1)


def bn_inception_backbone(
    *, pretrained: bool = False, in_channels: int = 3, weights: str | Path | None = None
) -> BNInception:
    """Build BN-Inception as a backbone.

    Args:
        pretrained: Load the published weights from torch's cache, or download them.
        in_channels: Channels of the images; the published weights require 3.
        weights: A file of published weights instead of `pretrained`: `.safetensors`, `.pth`, `.pt` or `.pth.tar`. No
            code in it is run. A checksum in its name (`bn_inception-52deb4733.pth`) is verified.

    Raises:
        ValueError: If the file is damaged or does not fit.
        UserError: If pretrained weights are not available; the message says what to fetch and where to put it.

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
        # Checks the connection first, as the download itself would wait for minutes.
        urlopen(URL, timeout=5).close()
        folder.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(URL, str(file), file.stem.rpartition("-")[2], progress=False)
    except Exception as error:  # whatever the cause, the remedy is the same
        raise UserError(
            f"pretrained weights of bn_inception are not in the cache and cannot be downloaded: fetch {URL} elsewhere "
            f"and pass the file as `weights`, or put it into {folder}"
        ) from error
    return file
