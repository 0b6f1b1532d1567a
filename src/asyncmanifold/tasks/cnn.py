"""The convolutional network for small images."""

from __future__ import annotations

from torch import nn


class FederatedCNN(nn.Sequential):
    """The CNN of most federated studies (McMahan et al. 2017): 1,663,370 parameters with 10 classes.

    Images have ``side`` × ``side`` pixels, a multiple of 4.
    """

    def __init__(
        self, classes: int, kernel: int = 5, channels: int = 32, hidden: int = 512, side: int = 28
    ) -> None:
        super().__init__(
            nn.Conv2d(1, channels, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(channels, 2 * channels, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear((side // 4) ** 2 * 2 * channels, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
