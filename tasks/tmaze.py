"""Passive T-Maze: a cue at the start says which way to turn at the end of a corridor.

After Ni et al. (2023), in the form that AMAGO evaluates (arXiv 2310.09971).
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.schemas.exploration import ExplorationPhase, ExplorationSchedule

RIGHT, UP, LEFT, DOWN = range(4)


class TMaze(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Pure memory, no goals.

    The observation is `[2]`: (0, cue) at step 0 alone, (0, 0) in the corridor, (1, y) at its end.
    Without slack the episode has `corridor + 1` steps, every move but right costs `1 / corridor`
    before the last step, and the last step earns 1 at the arm that the cue named. With slack
    there are `slack` more steps and no penalty, and the first arm entered ends the episode.
    """

    def __init__(self, corridor: int, slack: int) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(4)
        self._corridor = corridor
        self._slack = slack
        self._limit = corridor + 1 + slack
        self._x = self._y = self._step = 0
        self._cue = 1

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The cue, at the start of the corridor."""
        super().reset(seed=seed)
        self._cue = int(self.np_random.choice((-1, 1)))
        self._x = self._y = self._step = 0
        return self._observe(), {"instruction": (), "initial_goals": ()}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move right, up, left or down; up and down only count at the corridor's end."""
        self._move(int(action))
        self._step += 1
        is_last = self._step == self._limit or bool(self._slack and self._y)
        success = self._x == self._corridor and self._y == self._cue
        if is_last:
            reward = float(success)
        else:
            reward = 0.0 if self._slack or action == RIGHT else -1.0 / self._corridor
        return (
            self._observe(),
            reward,
            is_last,
            False,
            {
                "events": (),
                "environment_terminated": is_last,
                "reset": False,
                "success": success if is_last else None,
            },
        )

    def _move(self, action: int) -> None:
        if action in (UP, DOWN):
            if self._x == self._corridor and self._y == 0:
                self._y = 1 if action == UP else -1
        elif self._y == 0:
            self._x = min(self._corridor, max(0, self._x + (1 if action == RIGHT else -1)))

    def _observe(self) -> NDArray[np.float32]:
        if self._x == self._corridor:
            return np.array([1.0, self._y], np.float32)
        return np.array([0.0, self._cue if self._step == 0 else 0.0], np.float32)


def tmaze_exploration(corridor: int, slack: int) -> ExplorationSchedule:
    """Few random moves in the corridor, where one is enough to spoil the episode, many at its end.

    The peer's example does the same. It starts with 1.5 expected random moves along the corridor.
    """
    phases = [ExplorationPhase(0, min(1.0, 1.5 / corridor), 0.3 / corridor)]
    if not slack:
        phases.append(ExplorationPhase(corridor, 1.0, 0.1))
    return ExplorationSchedule(tuple(phases), anneal_episodes=800)
