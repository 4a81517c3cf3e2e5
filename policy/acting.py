"""Acting step by step in several episodes at once."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from retold.policy.inputs import encode_instruction, step_inputs
from retold.policy.network import Policy
from retold.schemas.episode import Leaves


class Actor(Protocol):
    """What the rollout asks; slots are episodes in flight."""

    policy_id: str
    """`random`, or the id of the snapshot."""
    update: int | None
    """Trainer updates behind the snapshot."""

    def begin(self, slot: int, instruction: tuple[int, ...]) -> None:
        """A new episode starts in a slot."""

    def act(
        self, slots: Sequence[int], observations: Sequence[Leaves], progress: Sequence[int]
    ) -> NDArray[np.float64] | None:
        """`[slots, actions]`: probabilities of the next actions; None means uniform."""

    def record(self, slot: int, action: Leaves, reward: float, reset: bool) -> None:
        """What was done and what came of it; the next `act` sees it."""


class RandomActor:
    """Every action is as likely as any other."""

    policy_id = "random"
    update: int | None = None

    def begin(self, slot: int, instruction: tuple[int, ...]) -> None:
        """Nothing to remember."""

    def act(
        self, slots: Sequence[int], observations: Sequence[Leaves], progress: Sequence[int]
    ) -> None:
        """None: uniform."""

    def record(self, slot: int, action: Leaves, reward: float, reset: bool) -> None:
        """Nothing to remember."""


class PolicyActor:
    """A policy with the memory of each episode in flight."""

    def __init__(self, policy: Policy, slots: int, policy_id: str, update: int | None) -> None:
        self.policy_id = policy_id
        self.update = update
        self._policy = policy.eval()
        self._head = policy.discounts.index(policy.acting_discount)
        self._cache = policy.trajectory_encoder.make_cache(slots)
        self._instructions = [encode_instruction((), policy.most_goals)] * slots
        self._steps = [0] * slots
        null: Leaves = {
            leaf.path: np.zeros(leaf.shape, leaf.dtype) for leaf in policy.schema.action_leaves
        }
        self._null = null
        self._actions = [null] * slots
        self._rewards = [0.0] * slots
        self._resets = [False] * slots

    def begin(self, slot: int, instruction: tuple[int, ...]) -> None:
        """Forget the slot's episode and start the next."""
        self._cache.clear(slot)
        self._instructions[slot] = encode_instruction(instruction, self._policy.most_goals)
        self._steps[slot] = 0
        self._actions[slot] = self._null
        self._rewards[slot] = 0.0
        self._resets[slot] = False

    def act(
        self, slots: Sequence[int], observations: Sequence[Leaves], progress: Sequence[int]
    ) -> NDArray[np.float64]:
        """`[slots, actions]`: probabilities under the acting discount's actor."""
        inputs = step_inputs(
            observations,
            [self._actions[slot] for slot in slots],
            [self._rewards[slot] for slot in slots],
            [self._resets[slot] for slot in slots],
            [self._steps[slot] for slot in slots],
            [self._instructions[slot] for slot in slots],
            progress,
        )
        with torch.inference_mode():
            features = self._policy.advance(inputs, self._cache, torch.tensor(slots))
            chances = self._policy.heads.log_policy(features)[:, self._head].exp()
        return np.asarray(chances.double().numpy())

    def record(self, slot: int, action: Leaves, reward: float, reset: bool) -> None:
        """Remember a transition."""
        self._actions[slot] = action
        self._rewards[slot] = reward
        self._resets[slot] = reset
        self._steps[slot] += 1
