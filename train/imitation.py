"""Learning the actions of the data alone: no values, targets or statistics of them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from retold.policy.actor_head import ActorHead
from retold.policy.distributions import entropy, log_probability
from retold.policy.network import Policy
from retold.train.packed_batch import PackedBatch


class Imitation:
    """Raises the likelihood of the actions in rows that give a loss.

    Which rows these are, and what the policy sees besides, makes behaviour cloning, the Decision
    Transformer (arXiv 2106.01345) or goal-conditioned supervised learning (arXiv 1912.06088) of it.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def backward(
        self, packed: Sequence[PackedBatch], count: Tensor, update: int
    ) -> dict[str, Tensor]:
        """Add up gradients; the loss, and the policy's entropy.

        Args:
            packed: batches of this process.
            count: valid rows of the whole update.
            update: updates before it; nothing is drawn.
        """
        return sum_metrics([self._backward(one, count) for one in packed])

    def _backward(self, batch: PackedBatch, count: Tensor) -> dict[str, Tensor]:
        policy = self._policy
        assert isinstance(policy.heads, ActorHead)
        features = policy.encode(batch.inputs)[batch.valid]
        outputs = policy.heads.distribution(features)
        encoded = policy.codec.encode(batch.action[batch.valid])
        loss = -log_probability(policy.codec, outputs, encoded).sum() / count
        loss.backward()  # type: ignore[no-untyped-call]
        spread = entropy(policy.codec, outputs.detach()).sum() / count
        return {"loss": loss.detach(), "entropy": spread}

    def follow(self) -> None:
        """Nothing follows the policy."""

    def state(self) -> dict[str, Any]:
        """Nothing but the policy."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Nothing but the policy."""


def sum_metrics(parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Metrics of several batches of one update; each is a sum already divided by the update's count."""
    total = dict(parts[0])
    for part in parts[1:]:
        for name, value in part.items():
            total[name] = total[name] + value
    return total
