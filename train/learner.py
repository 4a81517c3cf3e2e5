"""Everything that learning changes, and the update that changes it."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retold.policy.network import Policy
from retold.policy.transformer import TransformerEncoder
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import RunError
from retold.train.actor_critic import ActorCritic
from retold.train.average import AveragedPolicy
from retold.train.batch import Batch
from retold.train.config import TrainConfig
from retold.train.device import autocast, choose_device, move
from retold.train.imitation import Imitation
from retold.train.packed_batch import PackedBatch, pack_batch
from retold.train.parallel import sum_gradients, sum_over_ranks

_ATTENTION_EVERY = 100
"""Updates between two looks at attention."""
_MOST_ATTENTION_ROWS = 512
"""Rows of a sequence that are looked at: all pairs of them are held at once."""


class NotFiniteError(RunError):
    """The loss or the gradient of an update is not finite."""


class Learner:
    """Policy, optimiser, and what the objective has besides.

    Nothing is drawn but by an update's number.
    """

    def __init__(
        self, config: TrainConfig, schema: DatasetSchema, device: torch.device | None = None
    ) -> None:
        """Make one with random weights.

        Args:
            config: of the run.
            schema: of the data.
            device: of everything; None: what the configuration chooses.
        """
        self._config = config
        self._device = choose_device(config.device) if device is None else device
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.policy = make_policy(config, schema).to(self._device)
        self._average: AveragedPolicy | None = None
        if config.average_rate is not None:
            self._average = AveragedPolicy(self.policy, config.average_rate)
        self.objective: ActorCritic | Imitation
        if config.has_critics:
            averaged = None if self._average is None else self._average.policy
            self.objective = ActorCritic(config, self.policy, averaged)
        else:
            self.objective = Imitation(self.policy)
        self.optimiser = torch.optim.AdamW(
            self.policy.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.update_count = 0

    @property
    def published(self) -> Policy:
        """The policy that acts: the running mean, if there is one."""
        return self.policy if self._average is None else self._average.policy

    def update(self, *batches: Batch) -> dict[str, float]:
        """One update of one or more batches, whose gradients add up; its metrics.

        Raises:
            NotFiniteError: the loss or the gradient is not finite. No step was taken, but statistics may
                have moved: go on from a checkpoint, not from this learner.
        """
        packed = [move(pack_batch(batch), self._device) for batch in batches]
        self._follow_inputs(packed)
        valid = float(sum(len(one.valid) for one in packed))
        count = sum_over_ranks(torch.tensor(valid, device=self._device))
        self.optimiser.zero_grad(set_to_none=True)
        with autocast(self._device, self._config.precision):
            found = self.objective.backward(packed, count.clamp_min(1), self.update_count)
        values = sum_over_ranks(torch.stack(list(found.values()))).tolist()
        metrics: dict[str, float] = dict(zip(found, values, strict=True))
        parameters = list(self.policy.parameters())
        sum_gradients(parameters)
        metrics["gradient_norm"] = _clip(parameters, self._config.gradient_clip)
        if not math.isfinite(metrics["loss"]) or not math.isfinite(metrics["gradient_norm"]):
            raise NotFiniteError(
                f"{self._config.run}: update {self.update_count + 1}: the loss is "
                f"{metrics['loss']} and the gradient's norm {metrics['gradient_norm']}, so no step "
                f"was taken."
            )
        if self.update_count % _ATTENTION_EVERY == 0:
            metrics |= self._attention_facts(packed[0])
        self._step()
        return metrics

    def aim_at(self, best_return: float) -> None:
        """Let a `dt` policy ask for what the best episodes of the data came to."""
        for policy in {self.policy, self.published}:
            if policy.architecture.sees_return:
                policy.target_return.fill_(best_return)

    @torch.no_grad()
    def _attention_facts(self, batch: PackedBatch) -> dict[str, float]:
        """Entropy (nats) and largest logit of each layer's attention in the first sequence."""
        encoder, inputs = self.policy.trajectory_encoder, batch.inputs
        if not isinstance(encoder, TransformerEncoder):
            return {}
        rows = min(inputs.lengths[0], _MOST_ATTENTION_ROWS)
        facts = encoder.attention_facts(
            self.policy.timestep_encoder(inputs)[:rows], inputs.place[:rows]
        )
        metrics = {}
        for layer, (entropy, largest) in enumerate(facts):
            metrics[f"attention_entropy_{layer}"] = entropy
            metrics[f"attention_logit_{layer}"] = largest
        return metrics

    def _follow_inputs(self, packed: Sequence[PackedBatch]) -> None:
        """Let what depends on inputs and weights, but on no gradient, follow."""
        self.policy.iterate_powers()
        encoder = self.policy.timestep_encoder
        if encoder.norm is not None:
            moments = torch.stack([encoder.moments(one.inputs) for one in packed]).sum(0)
            encoder.take_moments(sum_over_ranks(moments))

    def _step(self) -> None:
        self.update_count += 1
        for group in self.optimiser.param_groups:
            group["lr"] = _learning_rate(self._config, self.update_count)
        self.optimiser.step()
        self.objective.follow()
        if self._average is not None:
            self._average.follow(self.update_count)

    def state(self) -> dict[str, Any]:
        """All that a checkpoint keeps."""
        return {
            "policy": self.policy.state_dict(),
            **self.objective.state(),
            **({} if self._average is None else {"average": self._average.policy.state_dict()}),
            "optimiser": self.optimiser.state_dict(),
            "update_count": self.update_count,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's content."""
        self.policy.load_state_dict(state["policy"])
        self.objective.load_state(state)
        if self._average is not None:
            self._average.policy.load_state_dict(state["average"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.update_count = state["update_count"]


def make_policy(config: TrainConfig, schema: DatasetSchema) -> Policy:
    """The policy of a run, with random weights."""
    if config.has_critics:
        return Policy(schema, config.architecture, config.discounts, config.acting_discount)
    return Policy(schema, config.architecture)


def _learning_rate(config: TrainConfig, update: int) -> float:
    """The step size of an update, counted from 1, whatever the run's last one will be.

    Decay with the inverse root after Vaswani et al., "Attention Is All You Need" (2017), 5.3.
    """
    rate = config.learning_rate * min(1.0, update / config.warmup_updates)
    if config.decay_after is None:
        return rate
    return rate * min(1.0, math.sqrt(config.decay_after / update))


def _clip(parameters: Sequence[Tensor], most: float) -> float:
    """The gradient's norm; gradients of a larger one than `most` are scaled down to it."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
    if norm > most:
        torch._foreach_mul_(gradients, most / norm)
    return norm
