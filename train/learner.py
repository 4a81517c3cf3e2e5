"""Everything that learning changes, and the update that changes it."""

import copy
import math
from typing import Any

import torch
from torch import Tensor

from retold.policy.network import Policy
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import RunError
from retold.train.batch import Batch
from retold.train.config import TrainConfig
from retold.train.losses import actor_critic_losses, td_targets
from retold.train.popart import PopArt


class Learner:
    """Policy, target heads, PopArt, optimiser and random state."""

    def __init__(self, config: TrainConfig, schema: DatasetSchema) -> None:
        self._config = config
        self.generator = torch.Generator().manual_seed(config.seed)
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.policy = Policy(
                schema, config.architecture, config.discounts, config.acting_discount
            )
        self.target_heads = copy.deepcopy(self.policy.heads).requires_grad_(False)
        self.popart = PopArt(len(config.discounts), config.popart_rate)
        self.discounts = torch.tensor(config.discounts)
        self.optimiser = torch.optim.AdamW(
            self.policy.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
        )
        self.update_count = 0

    def update(self, batch: Batch) -> dict[str, float]:
        """One update; its metrics.

        Raises:
            RunError: the loss or the gradient is not finite. No step was taken, but PopArt's
                statistics may have moved: go on from a checkpoint, not from this learner.
        """
        config, heads = self._config, self.policy.heads
        features = self.policy.encode(batch.inputs)
        order = torch.randperm(config.critics, generator=self.generator)
        targets = td_targets(
            features,
            config.reward_scale * batch.reward,
            batch.terminated,
            self.discounts,
            self.target_heads,
            self.popart,
            order,
        )
        self.popart.update(targets, batch.is_valid, (heads, self.target_heads))
        losses = actor_critic_losses(
            features[:, :-1], batch.action, targets, batch.is_valid, heads, self.popart
        )
        loss = (
            config.critic_weight * losses.critic
            + config.online_weight * losses.online
            + config.cloning_weight * losses.cloning
        )
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), config.gradient_clip)
        total, length = float(loss.detach()), float(norm)
        if not math.isfinite(total) or not math.isfinite(length):
            raise RunError(
                f"{config.run}: update {self.update_count + 1}: the loss is {total} and the "
                f"gradient's norm {length}. Go on from the last checkpoint with --resume and a "
                f"smaller --learning-rate in a new run."
            )
        self._step()
        metrics = {
            "loss": total,
            "critic_loss": float(losses.critic.detach()),
            "online_loss": float(losses.online.detach()),
            "cloning_loss": float(losses.cloning.detach()),
            "entropy": float(losses.entropy),
            "gradient_norm": length,
        }
        for discount, value in zip(config.discounts, losses.value.tolist(), strict=True):
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
            pairs = zip(self.target_heads.parameters(), self.policy.heads.parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, config.target_rate)

    def state(self) -> dict[str, Any]:
        """All that a checkpoint keeps."""
        return {
            "policy": self.policy.state_dict(),
            "target_heads": self.target_heads.state_dict(),
            "popart": self.popart.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "generator": self.generator.get_state(),
            "update_count": self.update_count,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's content."""
        self.policy.load_state_dict(state["policy"])
        self.target_heads.load_state_dict(state["target_heads"])
        self.popart.load_state_dict(state["popart"])
        self.optimiser.load_state_dict(state["optimiser"])
        generator: Tensor = state["generator"]
        self.generator.set_state(generator)
        self.update_count = state["update_count"]
