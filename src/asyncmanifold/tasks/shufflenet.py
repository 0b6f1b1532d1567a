"""ShuffleNetV2 (Ma et al. 2018), with the names that published ImageNet weights use."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CHANNELS = {"x0.5": (48, 96, 192), "x1.0": (116, 232, 464), "x1.5": (176, 352, 704)}
"""The channels of stages 2, 3 and 4, by published width."""
BLOCKS = (4, 8, 4)


class ShuffleNet(nn.Module):
    """ShuffleNetV2, 3,503,624 parameters at ×1.5 with 1,000 classes, and torchvision's state dict."""

    def __init__(self, classes: int, width: str = "x1.5") -> None:
        super().__init__()
        self.conv1 = nn.Sequential(*_convolution(3, 24, size=3, stride=2), nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages, channels = [], 24
        for wider, blocks in zip(CHANNELS[width], BLOCKS, strict=True):
            halving = ShuffleBlock(channels, wider, stride=2)
            stages.append(nn.Sequential(halving, *(ShuffleBlock(wider, wider) for _ in range(blocks - 1))))
            channels = wider
        self.stage2, self.stage3, self.stage4 = stages
        self.conv5 = nn.Sequential(*_convolution(channels, 1024), nn.ReLU(inplace=True))
        self.fc = nn.Linear(1024, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores of (N, 3, height, width) images."""
        features = self.maxpool(self.conv1(images))
        features = self.stage4(self.stage3(self.stage2(features)))
        return self.fc(self.conv5(features).mean((2, 3)))


class ShuffleBlock(nn.Module):
    """Two branches with half the channels each, then shuffled. With stride 1 the first is the identity."""

    def __init__(self, channels: int, wider: int, stride: int = 1) -> None:
        super().__init__()
        half = wider // 2
        self.halves_image = stride == 2
        self.branch1 = nn.Sequential()
        if self.halves_image:
            self.branch1 = nn.Sequential(
                *_convolution(channels, channels, size=3, stride=stride, groups=channels),
                *_convolution(channels, half),
                nn.ReLU(inplace=True),
            )
        self.branch2 = nn.Sequential(
            *_convolution(channels if self.halves_image else half, half),
            nn.ReLU(inplace=True),
            *_convolution(half, half, size=3, stride=stride, groups=half),
            *_convolution(half, half),
            nn.ReLU(inplace=True),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Return the features, with the channels of both branches alternating."""
        left, right = (features, features) if self.halves_image else features.chunk(2, dim=1)
        return torch.stack((self.branch1(left), self.branch2(right)), dim=2).flatten(1, 2)


def _convolution(
    channels: int, wider: int, size: int = 1, stride: int = 1, groups: int = 1
) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    convolution = nn.Conv2d(channels, wider, size, stride, size // 2, groups=groups, bias=False)
    return convolution, nn.BatchNorm2d(wider)
