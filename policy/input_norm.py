"""Observed amounts in units of their running spread."""

import torch
from torch import Tensor, nn

LARGEST = 10.0
"""Spreads from the mean that are not exceeded."""
_LEAST_SPREAD = 1e-3
_SLOWEST_RATE = 1e-3


class InputNorm(nn.Module):
    """Mean and variance of real rows, kept in snapshots; until the first rows it changes nothing.

    They move by `take` alone, which training calls once an update: forward never changes them.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """`[..., features]`, cut off far from the mean."""
        return ((x - self.mean) / self.spread).clamp(-LARGEST, LARGEST)

    @property
    def spread(self) -> Tensor:
        """`[features]`, above zero."""
        return self.variance.sqrt().clamp_min(_LEAST_SPREAD)

    @torch.no_grad()
    def take(self, moments: Tensor) -> None:
        """Follow an update's rows.

        Args:
            moments: `[2 * features + 1]`, float64, of `moments_of`, possibly summed.
        """
        features, rows = len(self.mean), moments[-1].clamp_min(1)
        mean = moments[:features] / rows
        variance = moments[features:-1] / rows - mean.square()
        self.count += 1
        rate = max(_SLOWEST_RATE, 1.0 / int(self.count))
        moved = mean - self.mean
        # The spread of two groups about their common mean.
        mixed = torch.lerp(self.variance.double(), variance, rate)
        self.variance.copy_(mixed + rate * (1 - rate) * moved.square())
        self.mean.add_(rate * moved)


@torch.no_grad()
def moments_of(x: Tensor) -> Tensor:
    """`[2 * features + 1]` of `[rows, features]`, float64: sums, sums of squares, rows."""
    rows = x.double()
    count = torch.full((1,), float(len(x)), dtype=torch.float64, device=x.device)
    return torch.cat([rows.sum(0), rows.square().sum(0), count])
