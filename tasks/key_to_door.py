"""Key-to-Door: find a hidden key, then a hidden door, again and again in one room.

After AMAGO (arXiv 2310.09971). Start, key and door stay where they are for all attempts of an episode.
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.tasks.definition import Argument, Arguments, Player, ReferenceReturns, Task
from retold.tasks.facts_wrapper import transition_facts
from retold.tasks.grid import MOVES, draw_cell, draw_marks, move, step_towards


class KeyToDoor(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Rewards are 1 at the key and 1 at the door with the key.

    The observation is `[4]` in [0, 1]: row and column by the size, whether the key is held, the
    share of the attempt that has passed; with the light on also row and column of key and door. An
    attempt ends at the door or after `attempt_steps`; the step after it goes back to the start,
    whatever the action, and sets `reset`.
    """

    def __init__(
        self, size: int, attempt_steps: int, horizon: int, light: bool, shuffle_actions: bool
    ) -> None:
        count = 8 if light else 4
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (count,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(MOVES))
        self._size = size
        self._attempt_steps = attempt_steps
        self._horizon = horizon
        self._light = light
        self._shuffle_actions = shuffle_actions
        self._moves = MOVES
        self._start = self._key = self._door = self._cell = (0, 0)
        self._has_key = self._attempt_is_over = False
        self._step = self._attempt_step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The start of a new room."""
        super().reset(seed=seed)
        self._start, self._key, self._door = (
            draw_cell(self._size, self.np_random) for _ in range(3)
        )
        order = range(len(MOVES))
        if self._shuffle_actions:
            order = self.np_random.permutation(len(MOVES)).tolist()
        self._moves = tuple(MOVES[i] for i in order)
        self._step = 0
        self._begin_attempt()
        return self._observe(), {"instruction": (), "initial_goals": ()}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move one cell, or go back to the start after an attempt."""
        goes_back, reward = self._attempt_is_over, 0.0
        if goes_back:
            self._begin_attempt()
        else:
            reward = self._move(int(action))
        self._step += 1
        is_last = self._step == self._horizon
        return self._observe(), reward, is_last, False, transition_facts(is_last, reset=goes_back)

    def draw_text(self) -> str:
        """The room from above: `A` the agent, `K` the key until it is taken, `D` the door."""
        marks = [(self._door, "D")] + ([] if self._has_key else [(self._key, "K")])
        return draw_marks(self._size, [*marks, (self._cell, "A")])

    def _begin_attempt(self) -> None:
        self._cell = self._start
        self._has_key = self._attempt_is_over = False
        self._attempt_step = 0

    def _move(self, action: int) -> float:
        self._cell = move(self._cell, self._moves[action], self._size)
        self._attempt_step += 1
        reward = 0.0
        if not self._has_key and self._cell == self._key:
            self._has_key, reward = True, 1.0
        elif self._has_key and self._cell == self._door:
            self._attempt_is_over, reward = True, 1.0
        self._attempt_is_over |= self._attempt_step == self._attempt_steps
        return reward

    def _observe(self) -> NDArray[np.float32]:
        places = [*self._cell, *self._key, *self._door] if self._light else self._cell
        scaled = [value / self._size for value in places]
        facts = [float(self._has_key), self._attempt_step / self._attempt_steps]
        return np.array([*scaled[:2], *facts, *scaled[2:]], np.float32)

    def _play(self, observation: NDArray[np.float32]) -> int:
        return step_towards(self._cell, self._door if self._has_key else self._key, self._moves)


def best_return(size: int, attempt_steps: int, horizon: int) -> float:
    """What a player earns who knows the room, on average over rooms."""
    axis = np.arange(size)
    one_way = np.bincount(np.abs(axis[:, None] - axis[None]).ravel(), minlength=size) / size**2
    distances = np.convolve(one_way, one_way)  # of two uniform cells
    total = 0.0
    for to_key, key_share in enumerate(distances):
        for to_door, door_share in enumerate(distances):
            key_step, door_step = max(1, to_key), max(1, to_key) + max(1, to_door)
            period = min(door_step, attempt_steps) + 1
            attempts, rest = divmod(horizon, period)
            each = int(key_step <= attempt_steps) + int(door_step <= attempt_steps)
            left = int(key_step <= rest) + int(door_step <= rest)
            total += key_share * door_share * (attempts * each + left)
    return float(total)


def _make_player(environment: gymnasium.Env[Any, Any]) -> Player:
    room = environment.unwrapped
    assert isinstance(room, KeyToDoor)
    return room._play


def _returns(arguments: Arguments) -> ReferenceReturns:
    sizes = tuple(arguments[name] for name in ("size", "attempt_steps", "horizon"))
    return ReferenceReturns(
        random={(9, 50, 500): 2.5, (8, 50, 500): 3.1}.get(sizes),
        best=best_return(*sizes),
        player="knows the room, takes shortest ways",
    )


KEY_TO_DOOR = Task(
    name="key-to-door",
    sentence="Find a hidden key, then a hidden door, better with every attempt.",
    arguments={
        "size": Argument(9, minimum=2, help="Rows and columns of the room."),
        "attempt_steps": Argument(50, minimum=1, help="Longest attempt."),
        "horizon": Argument(500, minimum=1, help="Steps of all attempts together."),
        "light": Argument(False, help="Whether key and door are seen."),
        "shuffle_actions": Argument(False, help="Whether each room has another order of actions."),
    },
    limit_is="termination",
    horizon=lambda arguments: int(arguments["horizon"]),
    make=lambda arguments: KeyToDoor(**arguments),
    returns=_returns,
    player=_make_player,
    is_fast=True,
    gives_facts=True,
)
