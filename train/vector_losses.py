"""Targets and losses where an action is several choices, or amounts: critics take it as an input."""

import torch
from torch import Tensor

from retold.policy.distributions import entropy, log_probability, sample
from retold.policy.vector_heads import VectorHeads
from retold.train.config import Filter
from retold.train.losses import Losses, cloning_weight, least_of
from retold.train.value_scale import ValueScale


def next_vector_values(
    after: Tensor, noise: Tensor, target_heads: VectorHeads, scale: ValueScale, subset: Tensor
) -> Tensor:
    """`[valid, discounts]`: the least value of an action that the target actor draws.

    Args:
        after: `[valid, features]`; no gradient flows back.
        noise: `[valid, discounts, size]`, of `draw_noise`.
        target_heads: slow copies.
        scale: units of the critics.
        subset: `[discounts, critics taken]`, int64: the critics asked for each discount.
    """
    with torch.no_grad():
        action = sample(target_heads.codec, target_heads.distribution(after), noise)
        values = target_heads.values_at(after, action)
        return least_of(subset, scale.denormalise(values[..., None]).squeeze(-1))


def vector_losses(
    features: Tensor,
    encoded: Tensor,
    noise: Tensor,
    targets: Tensor,
    heads: VectorHeads,
    scale: ValueScale,
    *,
    count: Tensor,
    cloning_filter: Filter = "binary",
    temperature: float = 1.0,
    moves_critics: bool = False,
) -> Losses:
    """The losses of valid rows.

    In the actor's losses critics and their view of the trunk are constants: the gradient flows
    through the drawn action alone, into the actor and the trunk before it, unless `moves_critics`
    asks for the naive gradient that raises the critics' values as well.

    Args:
        features: `[valid, features]`.
        encoded: `[valid, choices]` int64, or `[valid, amounts]`: the action taken.
        noise: `[valid, discounts, size]`, of `draw_noise`.
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

    codec = heads.codec
    outputs = heads.distribution(features)
    stored = codec.vector(encoded)
    taken = heads.values_at(features, stored)  # [critics, valid, discounts]

    def weighed(values: Tensor) -> Tensor:
        """Mean over critics, as actors weigh it."""
        return scale.actor_values(values[..., None]).squeeze(-1).mean(0)

    drawn = sample(codec, outputs, noise)
    state_value = weighed(heads.values_at(features, drawn, is_constant=not moves_critics))
    advantage = (weighed(taken) - state_value).detach()
    weight = cloning_weight(advantage, cloning_filter, temperature)
    log_taken = log_probability(codec, outputs, encoded)
    return Losses(
        critic=average(scale.loss(taken, targets).mean(0)),
        online=-average(state_value),
        cloning=-average(weight * log_taken),
        entropy=average(entropy(codec, outputs)).detach(),
        value=scale.from_actor_values(state_value.detach()).sum(0) / count,
    )
