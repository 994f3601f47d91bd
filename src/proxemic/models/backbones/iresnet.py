"""IResNet, the residual network of face recognition, in the layout of insightface's published weights."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.models.weights_files import load_weights_file

# Number of blocks in each of the four stages.
IRESNETS = {
    "iresnet18": (2, 2, 2, 2),
    "iresnet34": (3, 4, 6, 3),
    "iresnet50": (3, 4, 14, 3),
    "iresnet100": (3, 13, 30, 3),
    "iresnet200": (6, 26, 60, 6),
}
_WIDTHS = (64, 128, 256, 512)
_SIDE = 112


class _Block(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.prelu = nn.PReLU(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        # Only the first block of a stage has a stride; its shortcut must shrink the map as well.
        shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.downsample = shortcut if stride > 1 else None

    def forward(self, features: Tensor) -> Tensor:
        residual = self.prelu(self.bn2(self.conv1(self.bn1(features))))
        shortcut = features if self.downsample is None else self.downsample(features)
        return self.bn3(self.conv2(residual)) + shortcut


class IResNet(nn.Module):
    """A residual network for aligned faces, from images `[B, C, 112, 112]` to features `[B, 512, 1, 1]`.

    It ends with a fully connected layer (`bn2`, `fc`, `features`), in float32 also under autocast, and needs neither
    pooling nor a head. Layers have the names, shapes and initial weights of insightface's networks, which were trained
    on RGB images with `Preprocessing(size=112, resize=None, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))`.

    Source: Duta et al., Improved Residual Networks, 2020; layers as in insightface's arcface_torch.

    Args:
        blocks: Number of blocks in each of the four stages, at least 1; for example `IRESNETS["iresnet50"]`.
        in_channels: Channels of the images, at least 1.

    Raises:
        ValueError: In `forward`, if the images do not have 112 by 112 pixels.

    >>> net = IResNet(IRESNETS["iresnet18"]).eval()
    >>> net.num_features, net(torch.zeros(2, 3, 112, 112)).shape
    (512, torch.Size([2, 512, 1, 1]))
    """

    def __init__(self, blocks: tuple[int, int, int, int], in_channels: int = 3) -> None:
        super().__init__()
        self.num_features = 512
        channels = _WIDTHS[0]
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.prelu = nn.PReLU(channels)
        for stage, (count, width) in enumerate(zip(blocks, _WIDTHS, strict=True), 1):
            inner = [_Block(channels, width, stride=2), *(_Block(width, width, stride=1) for _ in range(count - 1))]
            self.add_module(f"layer{stage}", nn.Sequential(*inner))
            channels = width
        self.bn2 = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels * (_SIDE // 16) ** 2, self.num_features)
        self.features = nn.BatchNorm1d(self.num_features)
        self.features.weight.requires_grad_(False)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.1)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        if images.shape[2:] != (_SIDE, _SIDE):
            size = " by ".join(str(side) for side in images.shape[2:])
            raise ValueError(f"images are {size} pixels but IResNet takes 112 by 112: set images.size to 112")
        features = self.prelu(self.bn1(self.conv1(images)))
        for stage in range(1, 5):
            features = self.get_submodule(f"layer{stage}")(features)
        flat = self.bn2(features).flatten(1)
        with torch.autocast(flat.device.type, enabled=False):
            return self.features(self.fc(flat.to(self.fc.weight.dtype)))[:, :, None, None]


def iresnet_backbone(name: str, *, in_channels: int = 3, weights: str | Path | None = None) -> IResNet:
    """Build an IResNet as a backbone.

    Args:
        name: `iresnet18`, `iresnet34`, `iresnet50`, `iresnet100` or `iresnet200`.
        in_channels: Channels of the images; published weights require 3.
        weights: A file of insightface's weights, or a checkpoint of arcface_torch; types of files as in
            `bn_inception_backbone`.

    Raises:
        ValueError: If the name is unknown, or the file is damaged or does not fit.

    >>> sum(parameter.numel() for parameter in iresnet_backbone("iresnet18").parameters())
    24025600
    """
    if name not in IRESNETS:
        raise ValueError(f"name is {name!r} but must be one of {', '.join(IRESNETS)}")
    backbone = IResNet(IRESNETS[name], in_channels)
    if weights is not None:
        load_weights_file(backbone, Path(weights).expanduser(), name)
    return backbone
