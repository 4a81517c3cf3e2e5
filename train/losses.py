"""Targets and losses of the off-policy actor-critic update, where one action is chosen of several."""

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from retold.policy.heads import Heads
from retold.train.config import Filter
from retold.train.value_scale import ValueScale

_LARGEST_WEIGHT = 20.0


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Sums over valid transitions divided by the update's number of them, averaged over discounts."""

    critic: Tensor
    online: Tensor
    cloning: Tensor
    entropy: Tensor
    value: Tensor
    """`[discounts]`: mean value under the actor, in units of scaled reward."""

    def __add__(self, other: "Losses") -> "Losses":
        names = [field.name for field in fields(self)]
        return Losses(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def map(self, change: Callable[[Tensor], Tensor]) -> "Losses":
        """The same of every part."""
        return Losses(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


def next_values(after: Tensor, target_heads: Heads, scale: ValueScale, subset: Tensor) -> Tensor:
    """`[..., discounts]`: what the rows to bootstrap from are worth, in units of scaled reward.

    The expectation under the target actor of the least of some critics (REDQ, arXiv 2101.05982).

    Args:
        after: `[..., features]`; no gradient flows back.
        target_heads: slow copies.
        scale: units of the critics.
        subset: `[discounts, critics taken]`, int64: the critics asked for each discount.
    """
    with torch.no_grad():
        chances = target_heads.log_policy(after).exp()
        return least_of(subset, scale.expected(target_heads.values(after), chances))


def least_of(subset: Tensor, values: Tensor) -> Tensor:
    """`[..., discounts]`: the least of each discount's critics, from `[critics, ..., discounts]`."""
    index = subset.t().reshape(-1, *[1] * (values.ndim - 2), len(subset))
    return values.gather(0, index.expand(-1, *values.shape[1:])).amin(0)


def cloning_weight(advantage: Tensor, kind: Filter, temperature: float) -> Tensor:
    """How much each action is imitated, by its advantage in units of the critics' spread."""
    match kind:
        case "binary":
            return (advantage > 0).float()
        case "exponential":
            return (advantage / temperature).exp().clamp(max=_LARGEST_WEIGHT)
        case "soft":
            return torch.sigmoid(advantage / temperature)
        case "none":
            return torch.ones_like(advantage)


def actor_critic_losses(
    features: Tensor,
    action: Tensor,
    targets: Tensor,
    heads: Heads,
    scale: ValueScale,
    *,
    count: Tensor,
    cloning_filter: Filter = "binary",
    temperature: float = 1.0,
    moves_critics: bool = False,
) -> Losses:
    """The losses of valid rows.

    One critic pass serves the value of the action taken, the state's value and the actor's loss. In
    the actor's losses the critics are constants: the gradient flows through probabilities alone,
    unless `moves_critics` asks for the naive gradient that raises the critics' values as well.

    Args:
        features: `[valid, features]`.
        action: `[valid]`, int64, counted from 0.
        targets: `[valid, discounts]`, in units of scaled reward.
        heads: online heads.
        scale: units of the critics.
        count: valid rows of the whole update.
        cloning_filter: which actions are imitated.
        temperature: of the exponential and the soft filter.
        moves_critics: whether the actor's loss changes critics, too.
    """

    def average(values: Tensor) -> Tensor:
        """Mean over the update's rows and discounts, from `[valid, discounts]`."""
        return values.sum() / (count * values.shape[-1])

    outputs = heads.values(features)  # [critics, valid, discounts, actions] and maybe bins
    taken = _of_action(outputs, action, 3)
    log_policy = heads.log_policy(features)
    chances = log_policy.exp()
    values = scale.actor_values(outputs if moves_critics else outputs.detach()).mean(0)
    state_value = (chances * values).sum(-1)
    advantage = (_of_action(values, action, 2) - state_value).detach()
    weight = cloning_weight(advantage, cloning_filter, temperature)
    log_taken = _of_action(log_policy, action, 2)
    in_reward = scale.from_actor_values(state_value.detach())
    return Losses(
        critic=average(scale.loss(taken, targets).mean(0)),
        online=-average(state_value),
        cloning=-average(weight * log_taken),
        entropy=average(-(chances * log_policy).sum(-1)).detach(),
        value=in_reward.sum(0) / count,
    )


def _of_action(x: Tensor, action: Tensor, axis: int) -> Tensor:
    """X without its axis of actions: of each row, what belongs to the action taken.

    Args:
        x: its rows are two axes before its actions.
        action: `[rows]`.
        axis: of the actions.
    """
    shape = [1] * x.ndim
    shape[axis - 2] = len(action)
    wanted = list(x.shape)
    wanted[axis] = 1
    return x.gather(axis, action.view(shape).expand(wanted)).squeeze(axis)
