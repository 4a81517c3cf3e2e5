"""Acting step by step in several episodes at once."""

import copy
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from retold.policy.folded_policy import FoldedPolicy
from retold.policy.network import Policy
from retold.policy.step_rows import StepRows
from retold.schemas.episode import Leaves
from retold.schemas.errors import UsageError


class Actor(Protocol):
    """What the rollout asks; slots are episodes in flight."""

    policy_id: str
    """`random`, or the id of the snapshot."""
    update: int | None
    """Trainer updates behind the snapshot."""
    forgets: bool
    """Whether its actions depend on nothing: then it is neither asked nor told."""

    def begin(self, slot: int, instruction: tuple[int, ...]) -> None:
        """A new episode starts in a slot."""

    def act(
        self, slots: Sequence[int], observations: Sequence[Leaves], progress: Sequence[int]
    ) -> NDArray[np.float64] | None:
        """`[slots, outputs]`: what `draw_action` needs of each; None means uniform actions."""

    def record(self, slot: int, action: Leaves, reward: float, reset: bool) -> None:
        """What was done and what came of it; the next `act` sees it."""


class RandomActor:
    """Every action is as likely as any other."""

    policy_id = "random"
    update: int | None = None
    forgets = True

    def begin(self, slot: int, instruction: tuple[int, ...]) -> None:
        """Nothing to remember."""

    def act(
        self, slots: Sequence[int], observations: Sequence[Leaves], progress: Sequence[int]
    ) -> None:
        """None: uniform."""

    def record(self, slot: int, action: Leaves, reward: float, reset: bool) -> None:
        """Nothing to remember."""


class PolicyActor:
    """A policy with the memory of each episode in flight; of `context = history`, of those before it."""

    forgets = False

    def __init__(
        self,
        policy: Policy,
        slots: int,
        policy_id: str,
        update: int | None,
        *,
        target_return: float | None = None,
    ) -> None:
        """Make an actor that has seen nothing yet.

        Args:
            policy: what acts.
            slots: episodes in flight.
            policy_id: of its snapshot.
            update: trainer updates behind it.
            target_return: return to ask a `dt` policy for in every episode; None: what the policy
                keeps, but no more than the instruction has goals, each of which earns one.

        Raises:
            UsageError: there is a target, but the policy asks for none.
        """
        if target_return is not None:
            check_target_return(policy.architecture.objective, target_return)
        self.policy_id = policy_id
        self.update = update
        self._folded = FoldedPolicy(policy, slots)
        self._rows = StepRows(copy.deepcopy(policy.timestep_encoder), policy.schema, slots)
        self._goes_on = policy.architecture.context == "history"
        self._sees_return = policy.architecture.sees_return
        self._kept_target = float(policy.target_return) if self._sees_return else 0.0
        self._wanted = target_return
        self._all = list(range(slots))

    def begin(self, slot: int, instruction: tuple[int, ...]) -> None:
        """Start the slot's next episode: afresh, or as an attempt where the memory goes on."""
        if not self._goes_on or not self._rows.has_previous[slot]:
            self._folded.clear(slot)
            self._rows.forget(slot)
        self._rows.begin(slot, instruction, self._target(instruction))

    def act(
        self, slots: Sequence[int], observations: Sequence[Leaves], progress: Sequence[int]
    ) -> NDArray[np.float64]:
        """`[slots, outputs]`: what `draw_action` needs, of the actor that acts."""
        for slot, observation, reached in zip(slots, observations, progress, strict=True):
            self._rows.observe(slot, observation, reached)
        # In the order of the slots, the memory of all of them is read as it lies.
        order = sorted(slots)
        some = None if order == self._all else torch.tensor(order)
        place = self._rows.position if self._goes_on else self._rows.step
        with torch.inference_mode():
            known = self._rows.known(some)
            numbers = self._folded.advance(known, place if some is None else place[order], some)
        return numbers[list(slots) if some is None else np.searchsorted(order, slots)]

    def record(self, slot: int, action: Leaves, reward: float, reset: bool) -> None:
        """Remember a transition."""
        self._rows.record(slot, action, reward, reset)

    def _target(self, instruction: tuple[int, ...]) -> float:
        """The return that an episode is asked for."""
        if not self._sees_return:
            return 0.0
        if self._wanted is not None:
            return self._wanted
        kept = self._kept_target
        return min(kept, len(instruction)) if instruction else kept


def check_target_return(objective: str, target_return: float) -> None:
    """Refuse to ask a policy for a return that it does not see."""
    if objective != "dt":
        raise UsageError(
            f"--target-return is {target_return}, but the policy's objective is {objective}: only "
            f"dt policies are asked for a return. Leave it out."
        )
