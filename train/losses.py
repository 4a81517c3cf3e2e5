"""Targets and losses of the off-policy actor-critic update, at every timestep at once."""

from dataclasses import dataclass

import torch
from torch import Tensor

from retold.policy.heads import Heads
from retold.train.popart import PopArt

_TARGET_CRITICS = 2


def td_targets(
    features: Tensor,
    reward: Tensor,
    terminated: Tensor,
    discounts: Tensor,
    target_heads: Heads,
    popart: PopArt,
    critic_order: Tensor,
) -> Tensor:
    """One-step targets `[batch, time, discounts]`, in units of scaled reward.

    The expectation under the target actor of the least of two critics (REDQ, arXiv 2101.05982).
    Only `terminated` stops bootstrapping: a truncated or cut sequence bootstraps from its last row.

    Args:
        features: `[batch, time + 1, features]`; no gradient flows back.
        reward: `[batch, time]`, scaled.
        terminated: `[batch, time]`, bool.
        discounts: `[discounts]`.
        target_heads: slow copies.
        popart: units of the critics.
        critic_order: `[critics]`: a permutation; its first two critics make the target.
    """
    with torch.no_grad():
        after = features[:, 1:].detach()
        chances = target_heads.log_policy(after).exp()
        values = popart.denormalise(target_heads.values(after)[critic_order[:_TARGET_CRITICS]])
        next_value = (values * chances).sum(-1).amin(0)
        future = torch.where(terminated[..., None], 0.0, discounts * next_value)
        return reward[..., None] + future


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sums over valid transitions divided by their number, averaged over discounts."""

    critic: Tensor
    online: Tensor
    cloning: Tensor
    entropy: Tensor
    value: Tensor
    """`[discounts]`: mean value under the actor, in units of reward."""


def actor_critic_losses(
    features: Tensor,
    action: Tensor,
    targets: Tensor,
    is_valid: Tensor,
    heads: Heads,
    popart: PopArt,
) -> Losses:
    """The losses of one batch.

    One critic pass serves the value of the action taken, the state's value and the actor's loss. In
    the actor's losses the critics are constants: the gradient flows through probabilities alone.

    Args:
        features: `[batch, time, features]`, without the bootstrap row.
        action: `[batch, time]`, int64.
        targets: `[batch, time, discounts]`, in units of reward.
        is_valid: `[batch, time]`, bool.
        heads: online heads.
        popart: units of the critics.
    """
    count = is_valid.sum().clamp_min(1)

    def average(values: Tensor) -> Tensor:
        """Mean over valid transitions and discounts, from `[batch, time, discounts]`."""
        return torch.where(is_valid[..., None], values, 0.0).sum() / (count * values.shape[-1])

    values = heads.values(features)  # [critics, batch, time, discounts, actions]
    index = action[..., None, None].expand(*values.shape[1:-1], 1)
    taken = values.gather(-1, index.expand(len(values), *index.shape)).squeeze(-1)
    log_policy = heads.log_policy(features)
    chances = log_policy.exp()
    constant = values.detach().mean(0)
    state_value = (chances * constant).sum(-1)
    advantage = constant.gather(-1, index).squeeze(-1) - state_value.detach()
    log_taken = log_policy.gather(-1, index).squeeze(-1)
    in_reward = popart.denormalise(state_value.detach()[..., None]).squeeze(-1)
    return Losses(
        critic=average((taken - popart.normalise(targets)).square().mean(0)),
        online=-average(state_value),
        cloning=-average(torch.where(advantage > 0, log_taken, 0.0)),
        entropy=average(-(chances * log_policy).sum(-1)).detach(),
        value=torch.where(is_valid[..., None], in_reward, 0.0).sum((0, 1)) / count,
    )
