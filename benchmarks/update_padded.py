"""A plain padded update of the same model: what packing and one shared pass are compared with.

Everything runs on `[batch, rows]` with padding in it, autograd does the rest, and only the loss is
masked. Statistics, optimiser and target copies are those of the learner.
"""

from typing import cast

import torch
from torch import Tensor

from retold.policy.heads import Heads
from retold.train.batch import Batch
from retold.train.learner import Learner
from retold.train.losses import least_of

_TARGET_CRITICS = 2


class PaddedUpdate:
    """Updates a learner's policy, one discrete action a step, one step of return."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self._config = learner._config
        self._optimiser = torch.optim.AdamW(
            learner.policy.parameters(), lr=1e-4, weight_decay=self._config.weight_decay
        )

    def __call__(self, batch: Batch) -> float:
        """The loss, after the step."""
        policy = self._learner.policy
        self._optimiser.zero_grad()
        self._follow(batch)
        features = policy.encode(batch.inputs)
        loss = self._loss(features, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), self._config.gradient_clip)
        self._optimiser.step()
        with torch.no_grad():
            pairs = (self._learner.objective.target_heads.parameters(), policy.heads.parameters())
            for slow, fast in zip(*pairs, strict=True):
                slow.lerp_(fast, self._config.target_rate)
        return float(loss.detach())

    def _follow(self, batch: Batch) -> None:
        policy = self._learner.policy
        policy.iterate_powers()
        encoder = policy.timestep_encoder
        if encoder.norm is not None:
            real = torch.arange(batch.inputs.step.shape[1]) <= torch.tensor(batch.lengths)[:, None]
            rows = encoder.amounts(batch.inputs)[real].double()
            count = torch.tensor([float(len(rows))], dtype=torch.float64)
            encoder.take_moments(torch.cat([rows.sum(0), rows.square().sum(0), count]))

    def _loss(self, features: Tensor, batch: Batch) -> Tensor:
        config, popart = self._config, self._learner.objective.popart
        heads = cast(Heads, self._learner.policy.heads)
        target_heads = cast(Heads, self._learner.objective.target_heads)
        now, after = features[:, :-1], features[:, 1:].detach()
        discounts = self._learner.objective.discounts
        with torch.no_grad():
            drawn = torch.rand(len(discounts), config.critics).argsort(1)[:, :_TARGET_CRITICS]
            values = popart.denormalise(target_heads.values(after))
            chances = target_heads.log_policy(after).exp()
            worth = least_of(drawn, (values * chances).sum(-1))
            ahead = torch.where(batch.terminated[..., None], 0.0, discounts) * worth
            targets = config.reward_scale * batch.reward[..., None] + ahead
        popart.update(targets, batch.is_valid, (heads, target_heads))

        def average(x: Tensor) -> Tensor:
            return (x * batch.is_valid[..., None]).sum() / (batch.is_valid.sum() * len(discounts))

        encoded = self._learner.policy.codec.encode(batch.action)[..., None, :]
        index = encoded.expand(*encoded.shape[:2], len(discounts), 1)
        taken = heads.values(now).gather(-1, index.expand(config.critics, *index.shape))
        critic = average((taken.squeeze(-1) - popart.normalise(targets)).square().mean(0))
        log_policy = heads.log_policy(now)
        # A pass of its own, as where an actor's loss is written apart from the critics'.
        with torch.no_grad():
            constant = heads.values(now).mean(0)
        state_value = (log_policy.exp() * constant).sum(-1)
        advantage = constant.gather(-1, index).squeeze(-1) - state_value.detach()
        log_taken = log_policy.gather(-1, index).squeeze(-1)
        cloning = -average((advantage > 0).float() * log_taken)
        return (
            config.critic_weight * critic
            - config.online_weight * average(state_value)
            + config.cloning_weight * cloning
        )
