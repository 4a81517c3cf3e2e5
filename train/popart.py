"""PopArt: values in units of their running spread, with outputs that stay what they were."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from retold.policy.heads import Heads

_LEAST_SPREAD = 1e-2


class PopArt(nn.Module):
    """Mean and spread of the targets of each discount (van Hasselt et al. 2016, arXiv 1602.07714).

    The rate falls from 1 to its floor as 1 / updates, so that the first updates average.
    """

    mean: Tensor
    square: Tensor
    count: Tensor

    def __init__(self, discounts: int, rate: float) -> None:
        super().__init__()
        self._rate = rate
        self.register_buffer("mean", torch.zeros(discounts))
        self.register_buffer("square", torch.ones(discounts))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    @property
    def spread(self) -> Tensor:
        """`[discounts]`: standard deviation of the targets."""
        return (self.square - self.mean**2).clamp_min(_LEAST_SPREAD**2).sqrt()

    def denormalise(self, values: Tensor) -> Tensor:
        """Values in units of reward, from `[..., discounts, actions]`."""
        return values * self.spread[:, None] + self.mean[:, None]

    def normalise(self, targets: Tensor) -> Tensor:
        """Targets in units of the spread, from `[..., discounts]`."""
        return (targets - self.mean) / self.spread

    @torch.no_grad()
    def update(self, targets: Tensor, is_valid: Tensor, heads: Sequence[Heads]) -> None:
        """Take targets into the statistics, and rescale heads so that no output changes.

        Args:
            targets: `[batch, time, discounts]`.
            is_valid: `[batch, time]`, bool; without any True nothing happens.
            heads: online and target heads.
        """
        if not bool(is_valid.any()):
            return
        valid = targets[is_valid]
        self.count += 1
        rate = max(self._rate, 1.0 / int(self.count))
        old_mean, old_spread = self.mean.clone(), self.spread
        self.mean.lerp_(valid.mean(0), rate)
        self.square.lerp_(valid.square().mean(0), rate)
        ratio = old_spread / self.spread
        shift = (old_mean - self.mean) / self.spread
        for head in heads:
            head.rescale_output(ratio, shift)
