"""Encoders of frames of bytes, `[height, width, channels]`."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ImageEncoder(nn.Module):
    """Three convolutions, then a linear layer."""

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.features = 128
        self.convolutions = nn.Sequential(
            nn.Conv2d(shape[2], 16, 8, 4),
            nn.LeakyReLU(),
            nn.Conv2d(16, 32, 4, 2),
            nn.LeakyReLU(),
            nn.Conv2d(32, 32, 3, 1),
            nn.LeakyReLU(),
            nn.Flatten(),
        )
        self.mix = nn.Linear(_size_after(self.convolutions, shape), self.features)

    def forward(self, frames: Tensor) -> Tensor:
        """`[..., features]` from `[..., height, width, channels]`."""
        features: Tensor = self.mix(self.convolutions(_scale(frames)))
        return F.leaky_relu(features).view(*frames.shape[:-3], self.features)


class ResidualImageEncoder(nn.Module):
    """IMPALA's residual network (Espeholt et al. 2018, arXiv 1802.01561), then a linear layer."""

    def __init__(self, shape: Sequence[int], depths: Sequence[int] = (16, 32, 32)) -> None:
        super().__init__()
        self.features = 256
        sizes = (shape[2], *depths)
        self.stages = nn.Sequential(
            *(_Stage(sizes[i], sizes[i + 1]) for i in range(len(depths))),
            nn.ReLU(),
            nn.Flatten(),
        )
        self.mix = nn.Linear(_size_after(self.stages, shape), self.features)

    def forward(self, frames: Tensor) -> Tensor:
        """`[..., features]` from `[..., height, width, channels]`."""
        features: Tensor = self.mix(self.stages(_scale(frames)))
        return F.relu(features).view(*frames.shape[:-3], self.features)


class _Stage(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(outputs, outputs, 3, padding=1) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.first(x), 3, 2, 1)
        for place in (0, 2):
            inner = self.convolutions[place](F.relu(x))
            x = x + self.convolutions[place + 1](F.relu(inner))
        return x


def _scale(frames: Tensor) -> Tensor:
    # [..., height, width, channels] -> [rows, channels, height, width]
    return frames.reshape(-1, *frames.shape[-3:]).permute(0, 3, 1, 2).float() / 255 - 0.5


def _size_after(layers: nn.Module, shape: Sequence[int]) -> int:
    with torch.no_grad():
        return int(layers(torch.zeros(1, shape[2], shape[0], shape[1])).shape[-1])
