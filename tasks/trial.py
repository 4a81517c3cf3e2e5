"""`trial/TASK`: several attempts at one hidden task, for any task.

The world of the episode's seed is made again for every attempt, so that what was learned of it holds.
Goals of an instruction go on where the attempt before left them.
"""

from typing import Any

import gymnasium
import numpy as np

from retold.tasks.definition import Argument, Arguments, ReferenceReturns, Task
from retold.tasks.facts_wrapper import FactsWrapper
from retold.tasks.world import World


class Trial(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Attempts of an environment that gives facts.

    The step after an attempt's last goes back to the start, whatever its action, for no reward, and
    sets `reset`: so the last observation of every attempt is seen. Only the last attempt ends the
    episode.
    """

    def __init__(self, environment: gymnasium.Env[Any, Any], attempts: int) -> None:
        super().__init__(environment)
        self._attempts = attempts
        self._attempt = 0
        self._attempt_is_over = False
        self._seed = 0
        self._options: dict[str, Any] | None = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The start of the first attempt."""
        self._seed = seed if seed is not None else int(self.np_random.integers(2**30))
        self._options = options
        self._attempt = 1
        self._attempt_is_over = False
        return self.env.reset(seed=self._seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """One transition of an attempt, or the way back to the start."""
        if self._attempt_is_over:
            self._attempt += 1
            self._attempt_is_over = False
            observation, facts = self.env.reset(seed=self._seed, options=self._options)
            return observation, 0.0, False, False, _back_at_start(facts)
        observation, reward, terminated, truncated, facts = self.env.step(action)
        is_last = bool(terminated or truncated) and self._attempt == self._attempts
        self._attempt_is_over = bool(terminated or truncated)
        facts = {**facts, "environment_terminated": is_last}
        return observation, reward, is_last, False, facts


class WorldTrial(World):
    """Attempts in a world with goals; times and flags as for `Trial`."""

    def __init__(self, world: World, attempts: int) -> None:
        self.world = world
        self.vocabulary = world.vocabulary
        self.observation_space = world.observation_space
        self.action_space = world.action_space
        self.world_seed = 0
        self._attempts = attempts
        self._attempt = 0
        self._attempt_is_over = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The start of the first attempt."""
        super().reset(seed=seed)
        self.world_seed = seed if seed is not None else int(self.np_random.integers(2**30))
        self._attempt = 1
        self._attempt_is_over = False
        return self.world.reset(seed=self.world_seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One transition of an attempt, or the way back to the start."""
        if self._attempt_is_over:
            self._attempt += 1
            self._attempt_is_over = False
            observation, facts = self.world.reset(seed=self.world_seed)
            return observation, 0.0, False, False, _back_at_start(facts)
        observation, reward, ended, cut, facts = self.world.step(action)
        self._attempt_is_over = bool(ended or cut)
        is_last = self._attempt_is_over and self._attempt == self._attempts
        return observation, float(reward), is_last, False, facts

    def draw_instruction(self, rng: np.random.Generator) -> tuple[int, ...]:
        """As the world draws one."""
        return self.world.draw_instruction(rng)

    def close(self) -> None:
        """Close the world."""
        self.world.close()


def make_trial_task(task: Task) -> Task:
    """The task of several attempts at another."""
    inner = task.horizon
    return Task(
        name=f"trial/{task.name}",
        sentence=f"Several attempts at one hidden task. {task.sentence}",
        arguments={"attempts": Argument(5, minimum=1, help="Attempts of an episode.")}
        | dict(task.arguments),
        limit_is="termination",
        # Each attempt but the first takes one step more, back to the start.
        horizon=lambda a: a["attempts"] * (inner(_inner(a)) + 1) - 1,
        make=lambda arguments: _make(task, arguments),
        code_version=task.code_version,
        vocabulary=lambda arguments: task.vocabulary(_inner(arguments)),
        most_goals=lambda arguments: task.most_goals(_inner(arguments)),
        returns=lambda arguments: _returns(task, arguments),
        packages=task.packages,
        extra=task.extra,
        is_fast=task.is_fast,
        gives_facts=True,
    )


def _make(task: Task, arguments: Arguments) -> gymnasium.Env[Any, Any]:
    environment = task.make(_inner(arguments))
    if isinstance(environment, World):
        return WorldTrial(environment, arguments["attempts"])
    given = environment if task.gives_facts else FactsWrapper(environment)
    return Trial(given, arguments["attempts"])


def _inner(arguments: Arguments) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name != "attempts"}


def _returns(task: Task, arguments: Arguments) -> ReferenceReturns:
    one = task.returns(_inner(arguments))
    if one.random is None or task.most_goals(_inner(arguments)):
        return ReferenceReturns()
    return ReferenceReturns(random=one.random * arguments["attempts"])


def _back_at_start(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "events": tuple(sorted(facts["initial_goals"])),
        "environment_terminated": False,
        "reset": True,
        "success": None,
    }
