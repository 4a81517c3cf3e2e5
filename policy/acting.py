"""Acting step by step in several episodes at once."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retold.policy.inputs import PolicyInputs, encode_instruction
from retold.policy.linear import fold_linears
from retold.policy.network import Policy
from retold.schemas.episode import Leaves
from retold.schemas.errors import UsageError
from retold.schemas.spaces import Leaf


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
    """A policy with the memory of each episode in flight; of `context = history`, of those before it.

    What the policy sees is written into arrays that are made once.
    """

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
        # Weights of a learned norm are worked out once, not at every step.
        folded = fold_linears(policy)
        assert isinstance(folded, Policy)
        self._policy = folded.eval()
        self._state = policy.make_state(slots)
        self._arrays = {
            **_leaf_rows(policy.schema.observation_leaves, slots),
            **_leaf_rows(policy.schema.action_leaves, slots),
            "": np.zeros((slots, max(1, policy.most_goals)), np.int64),
        }
        self._reward = np.zeros(slots, np.float32)
        self._reset = np.zeros(slots, np.bool_)
        self._step = np.zeros(slots, np.int64)
        self._has_previous = np.zeros(slots, np.bool_)
        self._progress = np.zeros(slots, np.int64)
        self._goes_on = policy.architecture.context == "history"
        self._position = np.zeros(slots, np.int64)
        self._sees_return = policy.architecture.sees_return
        self._wanted = target_return
        self._return_to_go = np.zeros(slots, np.float32)
        self._all = list(range(slots))
        self._inputs = self._view_inputs()

    def begin(self, slot: int, instruction: tuple[int, ...]) -> None:
        """Start the slot's next episode: afresh, or as an attempt where the memory goes on."""
        self._arrays[""][slot] = encode_instruction(instruction, self._policy.most_goals)
        self._step[slot] = 0
        if self._goes_on and self._has_previous[slot]:
            self._reset[slot] = True
        else:
            self._forget(slot)
        self._return_to_go[slot] = self._target(instruction)

    def _forget(self, slot: int) -> None:
        self._state.clear(slot)
        for leaf in self._policy.schema.action_leaves:
            self._arrays[leaf.path][slot] = 0
        self._has_previous[slot] = False
        self._position[slot] = 0
        self._reward[slot] = 0.0
        self._reset[slot] = False

    def act(
        self, slots: Sequence[int], observations: Sequence[Leaves], progress: Sequence[int]
    ) -> NDArray[np.float64]:
        """`[slots, outputs]`: what `draw_action` needs, of the actor that acts."""
        for slot, observation, reached in zip(slots, observations, progress, strict=True):
            self._progress[slot] = reached
            for path, value in observation.items():
                self._arrays[path][slot] = value
        # In the order of the slots, the cache of all of them is read as it lies.
        order = sorted(slots)
        rows = torch.tensor(order)
        inputs = self._inputs if order == self._all else _take_rows(self._inputs, rows)
        with torch.inference_mode():
            features = self._policy.advance(inputs, self._state, rows)
            numbers = self._policy.acting_numbers(features).double().numpy()
        if list(slots) != order:
            numbers = numbers[np.searchsorted(order, slots)]
        return np.asarray(numbers)

    def record(self, slot: int, action: Leaves, reward: float, reset: bool) -> None:
        """Remember a transition."""
        for path, value in action.items():
            self._arrays[path][slot] = value
        self._reward[slot] = reward
        self._reset[slot] = reset
        self._return_to_go[slot] -= reward
        self._step[slot] += 1
        self._position[slot] += 1
        self._has_previous[slot] = True

    def _target(self, instruction: tuple[int, ...]) -> float:
        """The return that an episode is asked for."""
        if not self._sees_return:
            return 0.0
        if self._wanted is not None:
            return self._wanted
        kept = float(self._policy.target_return)
        return min(kept, len(instruction)) if instruction else kept

    def _view_inputs(self) -> PolicyInputs:
        """All slots' inputs; they lie in the arrays, and follow what is written there."""
        schema = self._policy.schema

        def column(array: NDArray[Any]) -> Tensor:
            return torch.from_numpy(array)[:, None]

        return PolicyInputs(
            observation={x.path: column(self._arrays[x.path]) for x in schema.observation_leaves},
            previous_action={x.path: column(self._arrays[x.path]) for x in schema.action_leaves},
            has_previous=column(self._has_previous),
            previous_reward=column(self._reward),
            previous_reset=column(self._reset),
            step=column(self._step),
            position=column(self._position) if self._goes_on else None,
            instruction=torch.from_numpy(self._arrays[""]),
            progress=column(self._progress),
            return_to_go=column(self._return_to_go) if self._sees_return else None,
        )


def check_target_return(objective: str, target_return: float) -> None:
    """Refuse to ask a policy for a return that it does not see."""
    if objective != "dt":
        raise UsageError(
            f"--target-return is {target_return}, but the policy's objective is {objective}: only "
            f"dt policies are asked for a return. Leave it out."
        )


def _take_rows(inputs: PolicyInputs, rows: Tensor) -> PolicyInputs:
    return PolicyInputs(
        observation={path: part[rows] for path, part in inputs.observation.items()},
        previous_action={path: part[rows] for path, part in inputs.previous_action.items()},
        has_previous=inputs.has_previous[rows],
        previous_reward=inputs.previous_reward[rows],
        previous_reset=inputs.previous_reset[rows],
        step=inputs.step[rows],
        position=None if inputs.position is None else inputs.position[rows],
        instruction=inputs.instruction[rows],
        progress=inputs.progress[rows],
        return_to_go=None if inputs.return_to_go is None else inputs.return_to_go[rows],
    )


def _leaf_rows(leaves: Sequence[Leaf], slots: int) -> dict[str, NDArray[Any]]:
    return {leaf.path: np.zeros((slots, *leaf.shape), leaf.dtype) for leaf in leaves}
