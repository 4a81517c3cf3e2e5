"""Wind: reach a small goal on a plane through a hidden wind, and stay there.

After AMAGO (arXiv 2310.09971).
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.tasks.definition import Argument, Arguments, Player, ReferenceReturns, Task
from retold.tasks.facts_wrapper import transition_facts

GOAL = np.array([0.0, 1.0])
_REACH = 0.1
"""Longest own step along either axis."""
_LEVELS = 5
"""Choices along either axis where actions are discrete."""


class Wind(gymnasium.Env[NDArray[np.float32], Any]):
    """The reward is 1 in each step that ends within the radius of the goal.

    The observation is `[2]`: the position, from (0, 0). Every step adds the action and the wind,
    which is uniform in the square of `strength`, new in each episode and constant in it.
    """

    def __init__(self, actions: str, limit: int, radius: float, strength: float) -> None:
        reach = limit * (_REACH + strength)
        self.observation_space = gymnasium.spaces.Box(-reach, reach, (2,), np.float32)
        self.action_space: gymnasium.Space[Any] = (
            gymnasium.spaces.Box(-_REACH, _REACH, (2,), np.float32)
            if actions == "continuous"
            else gymnasium.spaces.Discrete(_LEVELS**2)
        )
        self._is_discrete = actions == "discrete"
        self._limit = limit
        self._radius = radius
        self._strength = strength
        self._position = np.zeros(2)
        self._wind = np.zeros(2)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The start, under a new wind."""
        super().reset(seed=seed)
        self._wind = self.np_random.uniform(-self._strength, self._strength, 2)
        self._position = np.zeros(2)
        self._step = 0
        return self._position.astype(np.float32), {"instruction": (), "initial_goals": ()}

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move; what an action asks for beyond its bounds is cut."""
        self._position = self._position + self._direction(action) + self._wind
        reward = float(np.hypot(*(self._position - GOAL)) <= self._radius)
        self._step += 1
        is_last = self._step == self._limit
        return (
            self._position.astype(np.float32),
            reward,
            is_last,
            False,
            transition_facts(is_last),
        )

    def draw_text(self) -> str:
        """The plane, north up, a tenth a letter: `A` the agent, `G` the goal, `+` the start."""
        rows = [["."] * 15 for _ in range(15)]
        for (x, y), letter in ((np.zeros(2), "+"), (GOAL, "G"), (self._position, "A")):
            row, column = round(11 - 10 * y), round(7 + 10 * x)
            if 0 <= row < 15 and 0 <= column < 15:
                rows[row][column] = letter
        return "\n".join("".join(row) for row in rows)

    def _direction(self, action: Any) -> NDArray[np.float64]:
        if not self._is_discrete:
            return np.clip(np.asarray(action, np.float64), -_REACH, _REACH)
        return np.array(divmod(int(action), _LEVELS)) * (2 * _REACH / (_LEVELS - 1)) - _REACH

    def _play(self, observation: NDArray[np.float32]) -> Any:
        wanted = np.clip(GOAL - self._position - self._wind, -_REACH, _REACH)
        if not self._is_discrete:
            return wanted.astype(np.float32)
        first, second = np.rint((wanted + _REACH) / (2 * _REACH) * (_LEVELS - 1)).astype(int)
        return int(first * _LEVELS + second)


def _make_player(environment: gymnasium.Env[Any, Any]) -> Player:
    world = environment.unwrapped
    assert isinstance(world, Wind)
    return world._play


def _returns(arguments: Arguments) -> ReferenceReturns:
    known = {
        ("continuous", 75, 0.03, 0.08): (0.006, 62.2),
        ("discrete", 40, 0.15, 0.05): (0.20, 31.2),
    }
    random, best = known.get(tuple(arguments.values()), (None, None))
    return ReferenceReturns(random=random, best=best, player="knows the wind, steps at the goal")


WIND = Task(
    name="wind",
    sentence="Reach a goal through a hidden wind and stay there.",
    arguments={
        "actions": Argument(
            "continuous", choices=("continuous", "discrete"), help="Steps are free, or one of 25."
        ),
        "limit": Argument(75, minimum=1, help="Steps of an episode."),
        "radius": Argument(0.03, help="How near to the goal pays."),
        "strength": Argument(0.08, help="Strongest wind along either axis, a step."),
    },
    limit_is="termination",
    horizon=lambda arguments: int(arguments["limit"]),
    make=lambda arguments: Wind(**arguments),
    returns=_returns,
    player=_make_player,
    is_fast=True,
    gives_facts=True,
)
