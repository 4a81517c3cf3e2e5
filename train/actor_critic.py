"""Off-policy actor-critic: targets from slow heads, values in running units, actors that raise them."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retold.policy.actor_head import ActorHead
from retold.policy.distributions import draw_noise
from retold.policy.heads import Heads
from retold.policy.network import Policy
from retold.policy.vector_heads import VectorHeads
from retold.schemas.identity import random_stream
from retold.train.config import TrainConfig
from retold.train.losses import Losses, actor_critic_losses, next_values
from retold.train.packed_batch import PackedBatch
from retold.train.parallel import sum_over_ranks
from retold.train.popart import PopArt, target_moments
from retold.train.targets import step_returns
from retold.train.value_scale import ValueScale
from retold.train.vector_losses import next_vector_values, vector_losses

_TARGET_CRITICS = 2


class ActorCritic:
    """Target heads and PopArt of a policy. Nothing is drawn but by an update's number."""

    def __init__(self, config: TrainConfig, policy: Policy, averaged: Policy | None = None) -> None:
        """Begin with target heads that are copies.

        Args:
            config: of the run.
            policy: that learns.
            averaged: its running mean, if there is one; its critics are in the same units.
        """
        self._config = config
        self._policy = policy
        self.target_heads = copy.deepcopy(self._heads).requires_grad_(False)
        self._rescaled = [self._heads, self.target_heads]
        if averaged is not None:
            self._rescaled.append(_critic_heads(averaged))
        self.popart = PopArt(len(config.discounts), config.popart_rate)
        self.scale = ValueScale(
            self.popart,
            config.value_bins if config.critic == "two-hot" else None,
            is_normalised=config.popart,
        )
        device = next(policy.parameters()).device
        self.scale.to(device)
        self.discounts = torch.tensor(config.discounts, device=device)

    @property
    def _heads(self) -> Heads | VectorHeads:
        return _critic_heads(self._policy)

    def backward(
        self, packed: Sequence[PackedBatch], count: Tensor, update: int
    ) -> dict[str, Tensor]:
        """Add up gradients, after PopArt took in the targets of all batches; the metrics.

        Args:
            packed: batches of this process.
            count: valid rows of the whole update.
            update: updates before it.
        """
        policy = self._policy
        subset = self._draw_subset(update)
        if len(packed) == 1:
            # One pass of the trunk serves targets and losses.
            features = policy.encode(packed[0].inputs)
            targets = [self._targets(packed[0], features, subset, update)]
        else:
            with torch.no_grad():
                targets = [
                    self._targets(one, policy.encode(one.inputs), subset, update) for one in packed
                ]
        moments = torch.stack([target_moments(one) for one in targets]).sum(0)
        self.scale.take(sum_over_ranks(moments), self._rescaled)
        total: Losses | None = None
        for one, wanted in zip(packed, targets, strict=True):
            if len(packed) > 1:
                features = policy.encode(one.inputs)
            losses = self._losses(one, features, wanted, count, update)
            self._weigh(losses).backward()  # type: ignore[no-untyped-call]
            found = losses.map(Tensor.detach)
            total = found if total is None else total + found
        assert total is not None
        return self._metrics(total)

    def _targets(self, batch: PackedBatch, features: Tensor, subset: Tensor, update: int) -> Tensor:
        """`[valid, discounts]`, in units of scaled reward."""
        config = self._config
        steps = step_returns(
            batch, self.discounts, steps=config.return_steps, reward_scale=config.reward_scale
        )
        after = features.detach().index_select(0, steps.rows)
        if isinstance(self.target_heads, Heads):
            value = next_values(after, self.target_heads, self.scale, subset)
        else:
            noise = self._noise("target actions", batch, update)
            value = next_vector_values(after, noise, self.target_heads, self.scale, subset)
        return steps.returns + steps.factor * value

    def _losses(
        self, batch: PackedBatch, features: Tensor, targets: Tensor, count: Tensor, update: int
    ) -> Losses:
        config, heads = self._config, self._heads
        seen = features.index_select(0, batch.valid)
        encoded = self._policy.codec.encode(batch.action[batch.valid])
        if isinstance(heads, Heads):
            return actor_critic_losses(
                seen,
                encoded[:, 0],
                targets,
                heads,
                self.scale,
                count=count,
                cloning_filter=config.cloning_filter,
                temperature=config.cloning_temperature,
                moves_critics=config.actor_moves_critics,
            )
        return vector_losses(
            seen,
            encoded,
            self._noise("actor actions", batch, update),
            targets,
            heads,
            self.scale,
            count=count,
            cloning_filter=config.cloning_filter,
            temperature=config.cloning_temperature,
            moves_critics=config.actor_moves_critics,
        )

    def _weigh(self, losses: Losses) -> Tensor:
        config = self._config
        return (
            config.critic_weight * losses.critic
            + config.online_weight * losses.online
            + config.cloning_weight * losses.cloning
        )

    def _draw_subset(self, update: int) -> Tensor:
        """`[discounts, 2]`: the critics that make each discount's target in this update."""
        rng = random_stream(self._config.seed, "critic subset", update)
        order = rng.permuted([range(self._config.critics)] * len(self.discounts), axis=1)
        return torch.from_numpy(order[:, :_TARGET_CRITICS].copy()).to(self.discounts.device)

    def _noise(self, stage: str, batch: PackedBatch, update: int) -> Tensor:
        """`[valid, discounts, size]`: by update, window and step, whoever works on the window."""
        drawn = []
        for number, rows in zip(batch.numbers, batch.inputs.lengths, strict=True):
            rng = random_stream(self._config.seed, stage, f"{update} {number}")
            drawn.append(draw_noise(self._policy.codec, (rows, len(self.discounts)), rng))
        return torch.cat(drawn).to(batch.valid.device)[batch.valid]

    def _metrics(self, losses: Losses) -> dict[str, Tensor]:
        metrics = {
            "loss": self._weigh(losses),
            "critic_loss": losses.critic,
            "online_loss": losses.online,
            "cloning_loss": losses.cloning,
            "entropy": losses.entropy,
        }
        for discount, value in zip(self._config.discounts, losses.value, strict=True):
            metrics[f"value_{discount}"] = value / self._config.reward_scale
        return metrics

    @torch.no_grad()
    def follow(self) -> None:
        """Let the target heads follow the policy's, after a step."""
        slow, fast = ([p.data for p in h.parameters()] for h in (self.target_heads, self._heads))
        torch._foreach_lerp_(slow, fast, self._config.target_rate)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the policy."""
        return {
            "target_heads": self.target_heads.state_dict(),
            "popart": self.popart.state_dict(),
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take it back."""
        self.target_heads.load_state_dict(state["target_heads"])
        self.popart.load_state_dict(state["popart"])


def _critic_heads(policy: Policy) -> Heads | VectorHeads:
    assert not isinstance(policy.heads, ActorHead)
    return policy.heads
