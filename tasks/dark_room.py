"""Dark Room: a hidden cell pays for every step on it, in all attempts of an episode.

After Laskin et al. (2022), Algorithm Distillation.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.tasks.definition import Argument, Arguments, Player, ReferenceReturns, Task
from retold.tasks.facts_wrapper import transition_facts
from retold.tasks.grid import MOVES, distance, draw_cell, draw_marks, move, step_towards


class DarkRoom(gymnasium.Env[NDArray[np.float32], np.int64]):
    """The reward is 1 in each step that ends on the hidden cell.

    The observation is `[2]` in [0, 1]: row and column by the size. Each attempt begins in the
    middle; its last step leads to the start of the next and sets `reset`.
    """

    def __init__(self, size: int, attempts: int, attempt_steps: int) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        self._size = size
        self._attempt_steps = attempt_steps
        self._horizon = attempts * attempt_steps
        self._cell = self._goal = (0, 0)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The middle of a new room."""
        super().reset(seed=seed)
        self._goal = draw_cell(self._size, self.np_random)
        self._cell = (self._size // 2, self._size // 2)
        self._step = 0
        return self._observe(), {"instruction": (), "initial_goals": ()}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move one cell."""
        self._cell = move(self._cell, MOVES[int(action)], self._size)
        reward = float(self._cell == self._goal)
        self._step += 1
        is_last = self._step == self._horizon
        goes_back = self._step % self._attempt_steps == 0 and not is_last
        if goes_back:
            self._cell = (self._size // 2, self._size // 2)
        return self._observe(), reward, is_last, False, transition_facts(is_last, reset=goes_back)

    def draw_text(self) -> str:
        """The room from above: `A` the agent, `*` the hidden cell."""
        return draw_marks(self._size, [(self._goal, "*"), (self._cell, "A")])

    def _observe(self) -> NDArray[np.float32]:
        return np.array(self._cell, np.float32) / np.float32(self._size)

    def _play(self, observation: NDArray[np.float32]) -> int:
        return step_towards(self._cell, self._goal, MOVES)


def best_return(size: int, attempts: int, attempt_steps: int) -> float:
    """What a player earns who knows the cell, on average over rooms."""
    middle = (size // 2, size // 2)
    paid = [
        max(0, attempt_steps + 1 - max(1, distance(middle, cell)))
        for cell in ((i, j) for i in range(size) for j in range(size))
    ]
    return attempts * float(np.mean(paid))


def _make_player(environment: gymnasium.Env[Any, Any]) -> Player:
    room = environment.unwrapped
    assert isinstance(room, DarkRoom)
    return room._play


def _returns(arguments: Arguments) -> ReferenceReturns:
    known = {(5, 4, 15): 2.42, (7, 5, 20): 2.0, (9, 10, 20): 2.5}
    return ReferenceReturns(
        random=known.get(tuple(arguments.values())),
        best=best_return(**arguments),
        player="knows the cell",
    )


DARK_ROOM = Task(
    name="dark-room",
    sentence="Find a hidden cell, go back to it in every attempt, and stay.",
    arguments={
        "size": Argument(9, minimum=2, help="Rows and columns of the room."),
        "attempts": Argument(10, minimum=1, help="Attempts of an episode."),
        "attempt_steps": Argument(20, minimum=1, help="Steps of an attempt."),
    },
    limit_is="termination",
    horizon=lambda arguments: int(arguments["attempts"] * arguments["attempt_steps"]),
    make=lambda arguments: DarkRoom(**arguments),
    returns=_returns,
    player=_make_player,
    is_fast=True,
    gives_facts=True,
)
