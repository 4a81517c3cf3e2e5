"""The units of critics' outputs: PopArt's running spread, or bins that need no units."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retold.policy.heads import Heads
from retold.policy.vector_heads import VectorHeads
from retold.train.popart import PopArt

_LARGEST_LOG = 10.0


class ValueScale(nn.Module):
    """From outputs to values and back, and what critics lose by being wrong.

    Actors see values in units of PopArt's spread in either case.
    """

    bins: Tensor

    def __init__(self, popart: PopArt, value_bins: int | None, *, is_normalised: bool) -> None:
        """Choose the form of the outputs.

        Args:
            popart: statistics of the targets.
            value_bins: bins of two-hot outputs; None: outputs are values.
            is_normalised: whether values are outputs in units of the spread, not of reward.
        """
        super().__init__()
        self.popart = popart
        self._is_two_hot = value_bins is not None
        self._is_normalised = is_normalised and value_bins is None
        logs = torch.linspace(-_LARGEST_LOG, _LARGEST_LOG, value_bins or 3)
        self.register_buffer("bins", logs.sign() * torch.expm1(logs.abs()), persistent=False)

    def denormalise(self, outputs: Tensor) -> Tensor:
        """`[..., discounts, actions]`: values in units of scaled reward."""
        if self._is_two_hot:
            return outputs.softmax(-1) @ self.bins
        return self.popart.denormalise(outputs) if self._is_normalised else outputs

    def expected(self, outputs: Tensor, chances: Tensor) -> Tensor:
        """`[..., discounts]`: mean value in units of scaled reward.

        Args:
            outputs: `[..., discounts, actions]`, and bins if two-hot.
            chances: `[..., discounts, actions]`, of the actions.
        """
        if self._is_two_hot:
            return (self.denormalise(outputs) * chances).sum(-1)
        # Means keep what a change of units does, and are fewer.
        mean = (outputs * chances).sum(-1, keepdim=True)
        return self.denormalise(mean).squeeze(-1)

    def actor_values(self, outputs: Tensor) -> Tensor:
        """`[..., discounts, actions]`: values as actors weigh them."""
        if self._is_normalised:
            return outputs
        return self.popart.normalise_actions(self.denormalise(outputs))

    def from_actor_values(self, values: Tensor) -> Tensor:
        """`[..., discounts]`: in units of scaled reward."""
        return self.popart.denormalise(values[..., None]).squeeze(-1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """`[..., discounts]`, from outputs of the action taken and targets that broadcast."""
        if self._is_two_hot:
            return -(self._two_hot(targets) * outputs.log_softmax(-1)).sum(-1)
        wanted = self.popart.normalise(targets) if self._is_normalised else targets
        return (outputs - wanted).square()

    def take(self, moments: Tensor, heads: Sequence[Heads | VectorHeads]) -> None:
        """Follow an update's targets; outputs in units of the spread keep their meaning."""
        self.popart.take(moments, heads if self._is_normalised else ())

    def _two_hot(self, targets: Tensor) -> Tensor:
        """`[..., discounts, bins]`: a target between two bins is shared by them."""
        value = targets.clamp(self.bins[0], self.bins[-1])
        above = torch.searchsorted(self.bins, value.contiguous()).clamp(1, len(self.bins) - 1)
        low, high = self.bins[above - 1], self.bins[above]
        share = ((value - low) / (high - low))[..., None]
        count = len(self.bins)
        return F.one_hot(above, count) * share + F.one_hot(above - 1, count) * (1 - share)
