"""Everything that learning changes, and the update that changes it."""

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from retold.policy.distributions import draw_noise
from retold.policy.heads import Heads
from retold.policy.network import Policy
from retold.policy.transformer import TransformerEncoder
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import RunError
from retold.schemas.identity import random_stream
from retold.train.batch import Batch
from retold.train.config import TrainConfig
from retold.train.losses import Losses, actor_critic_losses, next_values
from retold.train.packed_batch import PackedBatch, pack_batch
from retold.train.parallel import sum_gradients, sum_over_ranks
from retold.train.popart import PopArt, target_moments
from retold.train.targets import step_returns
from retold.train.value_scale import ValueScale
from retold.train.vector_losses import next_vector_values, vector_losses

_TARGET_CRITICS = 2
_ATTENTION_EVERY = 100
"""Updates between two looks at attention."""
_MOST_ATTENTION_ROWS = 512
"""Rows of a sequence that are looked at: all pairs of them are held at once."""


class NotFiniteError(RunError):
    """The loss or the gradient of an update is not finite."""


class Learner:
    """Policy, target heads, PopArt and optimiser. Nothing is drawn but by an update's number."""

    def __init__(self, config: TrainConfig, schema: DatasetSchema) -> None:
        self._config = config
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.policy = Policy(
                schema, config.architecture, config.discounts, config.acting_discount
            )
        self.target_heads = copy.deepcopy(self.policy.heads).requires_grad_(False)
        self.popart = PopArt(len(config.discounts), config.popart_rate)
        self.scale = ValueScale(
            self.popart,
            config.value_bins if config.critic == "two-hot" else None,
            is_normalised=config.popart,
        )
        self.discounts = torch.tensor(config.discounts)
        self.optimiser = torch.optim.AdamW(
            self.policy.parameters(),
            lr=config.learning_rate,
            weight_decay=config.weight_decay,
            fused=True,
        )
        self.update_count = 0

    def update(self, *batches: Batch) -> dict[str, float]:
        """One update of one or more batches, whose gradients add up; its metrics.

        Raises:
            NotFiniteError: the loss or the gradient is not finite. No step was taken, but statistics may
                have moved: go on from a checkpoint, not from this learner.
        """
        packed = [pack_batch(batch) for batch in batches]
        self._follow_inputs(packed)
        count = sum_over_ranks(torch.tensor(float(sum(len(one.valid) for one in packed))))
        losses = self._backward(packed, count.clamp_min(1)).map(sum_over_ranks)
        parameters = list(self.policy.parameters())
        sum_gradients(parameters)
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._config.gradient_clip)
        metrics = self._metrics(losses, norm)
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

    @torch.no_grad()
    def _attention_facts(self, batch: PackedBatch) -> dict[str, float]:
        """Entropy (nats) and largest logit of each layer's attention in the first sequence."""
        encoder, inputs = self.policy.trajectory_encoder, batch.inputs
        if not isinstance(encoder, TransformerEncoder):
            return {}
        rows = min(inputs.lengths[0], _MOST_ATTENTION_ROWS)
        facts = encoder.attention_facts(
            self.policy.timestep_encoder(inputs)[:rows], inputs.step[:rows]
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

    def _backward(self, packed: Sequence[PackedBatch], count: Tensor) -> Losses:
        """Add up gradients and losses, after PopArt took in the targets of all batches."""
        self.optimiser.zero_grad(set_to_none=True)
        subset = self._draw_subset()
        if len(packed) == 1:
            # One pass of the trunk serves targets and losses.
            features = self.policy.encode(packed[0].inputs)
            targets = [self._targets(packed[0], features, subset)]
        else:
            with torch.no_grad():
                targets = [
                    self._targets(one, self.policy.encode(one.inputs), subset) for one in packed
                ]
        moments = torch.stack([target_moments(one) for one in targets]).sum(0)
        self.scale.take(sum_over_ranks(moments), (self.policy.heads, self.target_heads))
        total: Losses | None = None
        for one, wanted in zip(packed, targets, strict=True):
            if len(packed) > 1:
                features = self.policy.encode(one.inputs)
            losses = self._losses(one, features, wanted, count)
            self._weigh(losses).backward()  # type: ignore[no-untyped-call]
            found = losses.map(Tensor.detach)
            total = found if total is None else total + found
        assert total is not None
        return total

    def _targets(self, batch: PackedBatch, features: Tensor, subset: Tensor) -> Tensor:
        """`[valid, discounts]`, in units of scaled reward."""
        config = self._config
        steps = step_returns(
            batch, self.discounts, steps=config.return_steps, reward_scale=config.reward_scale
        )
        after = features.detach()[steps.rows]
        if isinstance(self.target_heads, Heads):
            value = next_values(after, self.target_heads, self.scale, subset)
        else:
            noise = self._noise("target actions", batch)
            value = next_vector_values(after, noise, self.target_heads, self.scale, subset)
        return steps.returns + steps.factor * value

    def _losses(
        self, batch: PackedBatch, features: Tensor, targets: Tensor, count: Tensor
    ) -> Losses:
        config, heads = self._config, self.policy.heads
        seen = features[batch.valid]
        encoded = self.policy.codec.encode(batch.action[batch.valid])
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
            )
        return vector_losses(
            seen,
            encoded,
            self._noise("actor actions", batch),
            targets,
            heads,
            self.scale,
            count=count,
            cloning_filter=config.cloning_filter,
            temperature=config.cloning_temperature,
        )

    def _weigh(self, losses: Losses) -> Tensor:
        config = self._config
        return (
            config.critic_weight * losses.critic
            + config.online_weight * losses.online
            + config.cloning_weight * losses.cloning
        )

    def _draw_subset(self) -> Tensor:
        """`[discounts, 2]`: the critics that make each discount's target in this update."""
        rng = random_stream(self._config.seed, "critic subset", self.update_count)
        order = rng.permuted([range(self._config.critics)] * len(self.discounts), axis=1)
        return torch.from_numpy(order[:, :_TARGET_CRITICS].copy())

    def _noise(self, stage: str, batch: PackedBatch) -> Tensor:
        """`[valid, discounts, size]`: by update, window and step, whoever works on the window."""
        drawn = []
        for number, rows in zip(batch.numbers, batch.inputs.lengths, strict=True):
            name = f"{self.update_count} {number}"
            rng = random_stream(self._config.seed, stage, name)
            drawn.append(draw_noise(self.policy.codec, (rows, len(self.discounts)), rng))
        return torch.cat(drawn)[batch.valid]

    def _metrics(self, losses: Losses, norm: Tensor) -> dict[str, float]:
        metrics = {
            "loss": float(self._weigh(losses)),
            "critic_loss": float(losses.critic),
            "online_loss": float(losses.online),
            "cloning_loss": float(losses.cloning),
            "entropy": float(losses.entropy),
            "gradient_norm": float(norm),
        }
        for discount, value in zip(self._config.discounts, losses.value.tolist(), strict=True):
            metrics[f"value_{discount}"] = value
        return metrics

    def _step(self) -> None:
        config = self._config
        self.update_count += 1
        warm = min(1.0, self.update_count / config.warmup_updates)
        for group in self.optimiser.param_groups:
            group["lr"] = config.learning_rate * warm
        self.optimiser.step()
        with torch.no_grad():
            pairs = (self.target_heads, self.policy.heads)
            slow, fast = ([p.data for p in heads.parameters()] for heads in pairs)
            torch._foreach_lerp_(slow, fast, config.target_rate)

    def state(self) -> dict[str, Any]:
        """All that a checkpoint keeps."""
        return {
            "policy": self.policy.state_dict(),
            "target_heads": self.target_heads.state_dict(),
            "popart": self.popart.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "update_count": self.update_count,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's content."""
        self.policy.load_state_dict(state["policy"])
        self.target_heads.load_state_dict(state["target_heads"])
        self.popart.load_state_dict(state["popart"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.update_count = state["update_count"]
