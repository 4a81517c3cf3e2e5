"""PopArt: values in units of their running spread, with outputs that stay what they were."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from retold.policy.heads import Heads
from retold.policy.vector_heads import VectorHeads

RescaledHeads = Heads | VectorHeads
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

    def normalise_actions(self, values: Tensor) -> Tensor:
        """Values in units of the spread, from `[..., discounts, actions]`."""
        return (values - self.mean[:, None]) / self.spread[:, None]

    def update(self, targets: Tensor, is_valid: Tensor, heads: Sequence[RescaledHeads]) -> None:
        """Take targets into the statistics, and rescale heads so that no output changes.

        Args:
            targets: `[..., discounts]`.
            is_valid: `[...]`, bool; without any True nothing happens.
            heads: online and target heads.
        """
        self.take(target_moments(targets[is_valid]), heads)

    @torch.no_grad()
    def take(self, moments: Tensor, heads: Sequence[RescaledHeads]) -> None:
        """The same from `target_moments`, possibly summed over several batches."""
        discounts = len(self.mean)
        if not bool(moments[-1] > 0):
            return
        self.count += 1
        rate = max(self._rate, 1.0 / int(self.count))
        old_mean, old_spread = self.mean.clone(), self.spread
        self.mean.lerp_((moments[:discounts] / moments[-1]).to(self.mean), rate)
        self.square.lerp_((moments[discounts:-1] / moments[-1]).to(self.mean), rate)
        ratio = old_spread / self.spread
        shift = (old_mean - self.mean) / self.spread
        for head in heads:
            head.rescale_output(ratio, shift)


@torch.no_grad()
def target_moments(targets: Tensor) -> Tensor:
    """`[2 * discounts + 1]`, float64: sums, sums of squares and number of `[valid, discounts]`."""
    rows = targets.double()
    count = torch.full((1,), float(len(rows)), dtype=torch.float64, device=rows.device)
    return torch.cat([rows.sum(0), rows.square().sum(0), count])
