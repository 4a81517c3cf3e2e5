"""A trained policy for any loop over Gymnasium environments: five lines, and nothing of Retold's own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retold.policy.acting import PolicyActor
from retold.policy.action_draws import draw_action
from retold.policy.actions import make_action_codec
from retold.policy.observation_columns import ObservationColumns, WrongValue
from retold.policy.registry import resolve_policy
from retold.policy.snapshot import load_snapshot
from retold.schemas.errors import PolicyError, UsageError
from retold.schemas.policy import PolicyDescription


class Agent:
    """One policy in one or more episodes at a time, each with a memory of its own.

    An episode begins by `begin`; then `act` and `see` take turns.
    """

    def __init__(
        self,
        path: Path,
        *,
        environments: int = 1,
        seed: int = 0,
        target_return: float | None = None,
    ) -> None:
        """Load a policy.

        Args:
            path: a snapshot's folder, or a run of `retold train` (its newest policy is taken).
            environments: episodes at a time.
            seed: of drawn actions.
            target_return: what a `dt` policy is asked for; None: what the policy keeps.

        Raises:
            PolicyError: there is no policy, or it is damaged.
            UsageError: there is a target, but the policy asks for none.
        """
        if environments < 1:
            raise UsageError(f"environments is {environments}, but must be at least 1.")
        newest = resolve_policy(str(path)).newest()
        if newest is None:
            raise PolicyError(f"{path}: no policy is published yet. Train until the first one is.")
        policy, self.description = load_snapshot(newest)
        self._codec = make_action_codec(policy.schema)
        self._most_goals = policy.most_goals
        self._vocabulary = policy.schema.tasks[0].vocabulary
        description: PolicyDescription = self.description
        self._actor = PolicyActor(
            policy,
            environments,
            description.policy_id,
            description.update,
            target_return=target_return,
        )
        space = policy.schema.observation_space
        self._columns = [ObservationColumns(space) for _ in range(environments)]
        self._progress = [0] * environments
        self._action: list[Any] = [None] * environments
        self._has_begun = [False] * environments
        self._rng = np.random.default_rng(seed)

    def begin(self, instruction: Sequence[str | int] = (), *, environment: int = 0) -> None:
        """Forget the episode before; another begins. A policy of `context = history` remembers it.

        Args:
            instruction: goals in order, by their words (`"cell 3 7"`) or ids; none for tasks
                without. Environments of Retold give theirs as `info["instruction"]`.
            environment: which of the environments.

        Raises:
            UsageError: a goal is unknown, or there are more than the policy reads.
        """
        goals = tuple(map(self._goal_id, instruction))
        if len(goals) > self._most_goals:
            raise UsageError(
                f"The instruction has {len(goals)} goals, but the policy reads {self._most_goals}. "
                f"Give it in parts, or train with longer instructions."
            )
        self._actor.begin(environment, goals)
        self._progress[environment] = 0
        self._action[environment] = None
        self._has_begun[environment] = True

    def act(self, observation: Any, *, is_greedy: bool = False, environment: int = 0) -> Any:
        """The action to take, as the environment's action space has it.

        Args:
            observation: what the environment gave last.
            is_greedy: take the likeliest action instead of drawing one.
            environment: which of the environments.
        """
        return self.act_in([environment], [observation], is_greedy=is_greedy)[0]

    def act_in(
        self, environments: Sequence[int], observations: Sequence[Any], *, is_greedy: bool = False
    ) -> list[Any]:
        """Actions for several environments, of one pass of the network.

        Args:
            environments: which, each once.
            observations: one for each.
            is_greedy: take the likeliest actions instead of drawing them.
        """
        seen = []
        for number, observation in zip(environments, observations, strict=True):
            if not self._has_begun[number]:
                self.begin(environment=number)
            self._columns[number].clear()
            try:
                self._columns[number].append(observation)
            except WrongValue as error:
                raise UsageError(
                    f"The observation of environment {number} is {error}. The policy acts in "
                    f"{self.description.schema.tasks[0].name}; give its observations as they come."
                ) from error
            seen.append(self._columns[number].last())
        reached = [self._progress[number] for number in environments]
        numbers = self._actor.act(environments, seen, reached)
        for number, row in zip(environments, numbers, strict=True):
            self._action[number] = draw_action(self._codec, row, self._rng, is_greedy=is_greedy)
        return [self._action[number] for number in environments]

    def see(
        self,
        reward: float,
        *,
        reset: bool = False,
        goal_completed: bool | None = None,
        environment: int = 0,
    ) -> None:
        """Tell what came of the action.

        Args:
            reward: of the transition.
            reset: whether an attempt ended within the episode (`info["reset"]` of Retold's tasks).
            goal_completed: whether the current goal was reached; None: any reward says so.
            environment: which of the environments.
        """
        action = self._action[environment]
        if action is None:
            raise UsageError("`see` tells what came of an action. Call `act` before it.")
        leaves = {self._codec.path: np.asarray(action, self._codec.dtype)}
        self._actor.record(environment, leaves, float(reward), bool(reset))
        if self._vocabulary is not None:
            is_reached = bool(reward) if goal_completed is None else goal_completed
            self._progress[environment] += is_reached
        self._action[environment] = None

    def _goal_id(self, goal: str | int) -> int:
        if self._vocabulary is None:
            raise UsageError("The policy's task has no goals. Leave the instruction out.")
        if not isinstance(goal, str):
            if not 0 <= int(goal) < self._vocabulary.size:
                raise UsageError(f"{goal} is no goal: ids lie below {self._vocabulary.size}.")
            return int(goal)
        return self._vocabulary.goal_id(tuple(goal.split()))
