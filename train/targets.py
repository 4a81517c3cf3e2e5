"""Returns of some steps, and where they bootstrap from."""

from dataclasses import dataclass

import torch
from torch import Tensor

from retold.train.packed_batch import PackedBatch


@dataclass(frozen=True)
class StepReturns:
    """Targets are `returns + factor * value at rows`, in units of scaled reward."""

    returns: Tensor
    """`[valid, discounts]`"""
    factor: Tensor
    """`[valid, discounts]`: the discount to the power of the steps taken; 0 once terminated."""
    rows: Tensor
    """`[valid]`, int64: rows to bootstrap from."""


def step_returns(
    batch: PackedBatch, discounts: Tensor, *, steps: int, reward_scale: float
) -> StepReturns:
    """n-step returns, shortened to the steps that are left.

    Only `terminated` stops bootstrapping: a truncated or cut sequence bootstraps from its last row.

    Args:
        batch: packed.
        discounts: `[discounts]`.
        steps: most steps of a return.
        reward_scale: multiplies rewards.
    """
    taken = torch.zeros_like(batch.valid)
    is_alive = torch.ones_like(batch.valid, dtype=torch.bool)
    returns = torch.zeros(len(batch.valid), len(discounts), device=batch.valid.device)
    for number in range(steps):
        is_alive = is_alive & (batch.valid + number < batch.last)
        row = (batch.valid + number).minimum(batch.last)
        reward = torch.where(is_alive, reward_scale * batch.reward[row], 0.0)
        returns = returns + discounts**number * reward[:, None]
        taken += is_alive
        is_alive = is_alive & ~batch.terminated[row]
    rows = batch.valid + taken
    is_over = batch.terminated[rows - 1]
    factor = torch.where(is_over[:, None], 0.0, discounts ** taken[:, None])
    return StepReturns(returns, factor, rows)
