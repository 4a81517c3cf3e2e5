"""Frozen lake: cross a hidden lake, with several attempts at one map.

After AMAGO's meta-learning form of Gymnasium's FrozenLake (arXiv 2310.09971).
"""

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from retold.tasks.definition import Argument, Arguments, Player, ReferenceReturns, Task
from retold.tasks.facts_wrapper import transition_facts
from retold.tasks.grid import Cell, draw_marks

_MOVES: tuple[Cell, ...] = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Stay, south, north, east, west."""
_ICE = 0.8
"""Chance that a cell is no hole."""
_SWAPS = 0.5
"""Hard: chance that a lake swaps its south and east actions."""
_SLIPS = 0.25
"""Hard: chance that a position is seen one cell off, along either axis."""
_CRACKS = 0.33
"""Hard: chance that the ice breaks behind the agent."""


class FrozenLake(gymnasium.Env[NDArray[np.float32], np.int64]):
    """The reward is 1 at the goal; the goal, a hole and the attempt's limit end an attempt.

    The observation is `[4]` in [0, 1]: row and column by the size, whether an attempt just began
    anew, the share of the attempts that have passed. The last step of an attempt leads to the start
    of the next and sets `reset`. With `recover` a hole costs 0.1 and leaves the agent where it was.
    """

    def __init__(self, size: int, attempts: int, hard: bool, recover: bool) -> None:
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(_MOVES))
        self._size = size
        self._attempts = attempts
        self._limit = attempt_limit(size, hard)
        self._hard = hard
        self._recover = recover
        self._holes = np.zeros((size, size), np.bool_)
        self._first_holes = self._holes
        self._moves = _MOVES
        self._cell: Cell = (0, 0)
        self._attempt = self._attempt_step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """The first corner of a new lake."""
        super().reset(seed=seed)
        self._first_holes = make_lake(self._size, self.np_random)
        swaps = self._hard and self.np_random.random() < _SWAPS
        order = (0, 3, 2, 1, 4) if swaps else range(len(_MOVES))
        self._moves = tuple(_MOVES[i] for i in order)
        self._attempt = 0
        self._begin_attempt()
        return self._observe(False), {"instruction": (), "initial_goals": ()}

    def step(
        self, action: np.int64 | int
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Move one cell; the border stops the agent."""
        reward, is_over = self._move(int(action))
        self._attempt_step += 1
        is_over = is_over or self._attempt_step == self._limit
        is_last = is_over and self._attempt + 1 == self._attempts
        goes_back = is_over and not is_last
        if goes_back:
            self._attempt += 1
            self._begin_attempt()
        facts = transition_facts(is_last, reset=goes_back)
        return self._observe(goes_back), reward, is_last, False, facts

    def draw_text(self) -> str:
        """The lake from above: `A` the agent, `O` holes, `G` the goal."""
        holes = [((int(i), int(j)), "O") for i, j in np.argwhere(self._holes)]
        goal = (self._size - 1, self._size - 1)
        return draw_marks(self._size, [*holes, (goal, "G"), (self._cell, "A")])

    def _begin_attempt(self) -> None:
        self._cell = (0, 0)
        self._holes = self._first_holes.copy()
        self._attempt_step = 0

    def _move(self, action: int) -> tuple[float, bool]:
        row, column = self._moves[action]
        last = self._size - 1
        old = self._cell
        new = (min(last, max(0, old[0] + row)), min(last, max(0, old[1] + column)))
        if self._hard and new != old and old != (0, 0) and self.np_random.random() < _CRACKS:
            self._holes[old] = True
        if self._holes[new]:
            return (-0.1, False) if self._recover else (0.0, True)
        self._cell = new
        is_there = new == (last, last)
        return float(is_there), is_there

    def _observe(self, is_new_attempt: bool) -> NDArray[np.float32]:
        seen = np.array(self._cell)
        if self._hard and self.np_random.random() < _SLIPS:
            seen = np.clip(seen + self.np_random.integers(-1, 2, 2), 0, self._size - 1)
        share = self._attempt / self._attempts
        return np.array([*(seen / self._size), float(is_new_attempt), share], np.float32)

    def _play(self, observation: NDArray[np.float32]) -> int:
        way = safe_way(self._holes, self._cell)
        assert len(way) > 1  # ice never breaks ahead
        move = (way[1][0] - way[0][0], way[1][1] - way[0][1])
        return self._moves.index(move)


def attempt_limit(size: int, hard: bool) -> int:
    """Steps of the longest attempt."""
    return (2 if hard else 1) * size**2


def make_lake(size: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """`[size, size]`: True at holes; there is a way from the first corner to the last."""
    while True:
        holes = rng.random((size, size)) >= _ICE
        holes[0, 0] = holes[-1, -1] = False
        if safe_way(holes, (0, 0)):
            return holes


def safe_way(holes: NDArray[np.bool_], start: Cell) -> list[Cell]:
    """The cells of a shortest way from `start` to the last corner; empty if there is none."""
    size = len(holes)
    came: dict[Cell, Cell] = {start: start}
    queue = [start]
    for row, column in queue:
        for i, j in _MOVES[1:]:
            cell = (row + i, column + j)
            is_inside = 0 <= cell[0] < size and 0 <= cell[1] < size
            if is_inside and not holes[cell] and cell not in came:
                came[cell] = (row, column)
                queue.append(cell)
    cell = (size - 1, size - 1)
    if cell not in came:
        return []
    way = [cell]
    while cell != start:
        cell = came[cell]
        way.append(cell)
    return way[::-1]


def _make_player(environment: gymnasium.Env[Any, Any]) -> Player:
    lake = environment.unwrapped
    assert isinstance(lake, FrozenLake)
    return lake._play


def _returns(arguments: Arguments) -> ReferenceReturns:
    known = {(5, 10, False, False): 0.10, (5, 10, True, False): 0.04, (5, 10, False, True): -2.5}
    return ReferenceReturns(
        random=known.get(tuple(arguments.values())),
        best=float(arguments["attempts"]),
        player="knows the lake",
    )


FROZEN_LAKE = Task(
    name="frozen-lake",
    sentence="Cross a lake with hidden holes, with several attempts at it.",
    arguments={
        "size": Argument(5, minimum=2, help="Rows and columns of the lake."),
        "attempts": Argument(10, minimum=1, help="Attempts at one lake."),
        "hard": Argument(False, help="Swapped actions, misread positions, breaking ice."),
        "recover": Argument(False, help="Whether a hole costs 0.1 and does not end the attempt."),
    },
    limit_is="termination",
    horizon=lambda a: int(a["attempts"] * attempt_limit(a["size"], a["hard"])),
    make=lambda arguments: FrozenLake(**arguments),
    returns=_returns,
    player=_make_player,
    is_fast=True,
    gives_facts=True,
)
