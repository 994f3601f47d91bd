"""Backbones: from images `[B, C, H, W]` to a feature map `[B, num_features, h, w]`."""

from jaxtyping import Float
from torch import Tensor, nn


class ConvNet(nn.Module):
    """A small network for images of 28 to 64 pixels: four stages of convolution, max pooling, batch norm and ReLU.

    The last stage does not pool: its receptive field of 38 pixels covers a small image.

    Args:
        in_channels: Channels of the images, at least 1.
        width: Channels of the first stage, at least 1; each later stage doubles them.

    Raises:
        ValueError: If an argument is below 1.

    >>> net = ConvNet(1)
    >>> net.num_features, net(torch.zeros(2, 1, 32, 32)).shape
    (256, torch.Size([2, 256, 4, 4]))
    """

    def __init__(self, in_channels: int = 1, width: int = 32) -> None:
        super().__init__()
        if in_channels < 1 or width < 1:
            raise ValueError(f"in_channels is {in_channels} and width {width}, but both must be at least 1")
        self.num_features = 8 * width
        self.stages = nn.Sequential(
            _stage(in_channels, width, nn.MaxPool2d(2)),
            _stage(width, 2 * width, nn.MaxPool2d(2)),
            _stage(2 * width, 4 * width, nn.MaxPool2d(2)),
            _stage(4 * width, 8 * width, nn.Identity()),
        )

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch dim rows columns"]:
        return self.stages(images)


class NoBackbone(nn.Module):
    """Backbone for inputs that are vectors: it returns them unchanged as features."""

    def __init__(self, num_features: int) -> None:
        super().__init__()
        self.num_features = num_features

    def forward(self, vectors: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch dim"]:
        return vectors


def _stage(inputs: int, outputs: int, pool: nn.Module) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    # Pooling first leaves a quarter of the work for batch norm and ReLU.
    return nn.Sequential(convolution, pool, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))
