"""A scripted Crafter player that lives into the night: for replay tests and for longer episodes."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Cell = tuple[int, int]

_WATER, _STONE, _TREE, _COW, _ZOMBIE, _SKELETON = 1, 3, 6, 14, 15, 16
_WALKABLE = frozenset({2, 4, 5})
"""Grass, path and sand. Lava can be entered too, once."""
_SOLID = frozenset({1, 3, 6, 8, 9, 10, 11, 12})
"""What no creature walks through."""
_NOOP, _DO, _SLEEP, _PLACE_STONE, _PLACE_TABLE, _MAKE_PICKAXE, _MAKE_SWORD = 0, 5, 6, 7, 8, 11, 14
_FOOD, _DRINK, _ENERGY, _WOOD, _PICKAXE, _SWORD = 1, 2, 3, 5, 10, 13
"""Places in the inventory."""
_MOVES = {1: (-1, 0), 2: (1, 0), 3: (0, -1), 4: (0, 1)}
"""Left, right, up, down, as (x, y)."""
_CENTER = (4, 3)
_CONTENT = 7
"""Below this amount of food or drink the player looks for more."""
_WOOD_NEEDED = 4
_DUSK = 90
"""Step from which the player looks for shelter; night begins near 148."""


class Survivor:
    """Makes a pickaxe and a sword by day, then digs two cells into the rock and closes the way in.

    It fights what stands beside it, drinks and eats in time, and where it finds no rock it fights on.
    It sees nothing but the observations of `crafter` with `observation = "symbols"`.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._heading = 1
        self._step = 0
        self._plan: list[int] = []
        self._has_table = False

    def act(self, observation: Mapping[str, NDArray[Any]]) -> int:
        """The next of the 17 actions."""
        self._step += 1
        seen = observation["local_map"]
        facing = (int(observation["facing"][0]), int(observation["facing"][1]))
        inventory = observation["inventory"]
        if _is_enclosed(seen):
            self._plan.clear()
            return _SLEEP if inventory[_ENERGY] < _CONTENT else _NOOP
        if (action := _fight(seen, facing)) is not None:
            self._plan.clear()
            return action
        if self._plan:
            return self._plan.pop(0)
        for work in (self._sustain, self._craft, self._shelter):
            if (action := work(seen, facing, inventory)) is not None:
                return action
        return self._wander(seen)

    def _sustain(self, seen: NDArray[Any], facing: Cell, inventory: NDArray[Any]) -> int | None:
        needs = sorted((int(inventory[i]), t) for i, t in ((_DRINK, _WATER), (_FOOD, _COW)))
        for amount, target in needs:
            if amount < _CONTENT and (action := _use(seen, facing, target)) is not None:
                return action
        return None

    def _craft(self, seen: NDArray[Any], facing: Cell, inventory: NDArray[Any]) -> int | None:
        if inventory[_PICKAXE] and inventory[_SWORD]:
            return None
        if self._has_table:
            return _MAKE_SWORD if inventory[_PICKAXE] else _MAKE_PICKAXE
        if inventory[_WOOD] < _WOOD_NEEDED:
            return _use(seen, facing, _TREE)
        if int(seen[_add(_CENTER, facing)]) in _WALKABLE:
            self._has_table = True
            return _PLACE_TABLE
        return self._wander(seen)

    def _shelter(self, seen: NDArray[Any], facing: Cell, inventory: NDArray[Any]) -> int | None:
        if self._step < _DUSK or not inventory[_PICKAXE]:
            return None
        for action, step in _MOVES.items():
            if _is_shelter(seen, _CENTER, step):
                back = next(a for a, s in _MOVES.items() if s == (-step[0], -step[1]))
                dig = [_DO, action, _DO, action, back, _PLACE_STONE]
                self._plan = dig if facing == step else [action, *dig]
                return self._plan.pop(0)
        return _go(
            seen, lambda cell: any(_is_shelter(seen, cell, step) for step in _MOVES.values())
        )

    def _wander(self, seen: NDArray[Any]) -> int:
        """Straight on while that is safe, then another way."""
        free = [a for a, step in _MOVES.items() if int(seen[_add(_CENTER, step)]) in _WALKABLE]
        if self._heading not in free or self._rng.random() < 0.05:
            self._heading = int(self._rng.choice(free)) if free else _NOOP
        return self._heading


def _fight(seen: NDArray[Any], facing: Cell) -> int | None:
    for action, step in _MOVES.items():
        if seen[_add(_CENTER, step)] in (_ZOMBIE, _SKELETON):
            return _DO if facing == step else action
    return None


def _use(seen: NDArray[Any], facing: Cell, target: int) -> int | None:
    """Use a thing in front, or the first step of a shortest way beside one; None if none is seen."""
    for action, step in _MOVES.items():
        if seen[_add(_CENTER, step)] == target:
            return _DO if facing == step else action
    return _go(
        seen, lambda cell: any(_at(seen, _add(cell, step)) == target for step in _MOVES.values())
    )


def _go(seen: NDArray[Any], is_wanted: Callable[[Cell], bool]) -> int | None:
    """The first step of a shortest way to a cell in view that is wanted."""
    first: dict[Cell, int] = {_CENTER: _NOOP}
    frontier = deque([_CENTER])
    while frontier:
        cell = frontier.popleft()
        if cell != _CENTER and is_wanted(cell):
            return first[cell]
        for action, step in _MOVES.items():
            beside = _add(cell, step)
            if beside not in first and _at(seen, beside) in _WALKABLE:
                first[beside] = first[cell] or action
                frontier.append(beside)
    return None


def _is_shelter(seen: NDArray[Any], door: Cell, step: Cell) -> bool:
    """Whether two cells of rock beyond a door have solid walls all around."""
    side = (step[1], step[0])
    one, two = _add(door, step), _add(_add(door, step), step)
    walls = [_add(two, step)]
    for cell in (one, two):
        walls += [_add(cell, side), _add(cell, (-side[0], -side[1]))]
    return _at(seen, one) == _at(seen, two) == _STONE and all(
        _at(seen, wall) in _SOLID for wall in walls
    )


def _is_enclosed(seen: NDArray[Any]) -> bool:
    """Whether the player stands in the two cells that it dug, with the way in closed."""
    free = [step for step in _MOVES.values() if int(seen[_add(_CENTER, step)]) not in _SOLID]
    if len(free) != 1:
        return not free
    other = _add(_CENTER, free[0])
    around = [_add(other, step) for step in _MOVES.values()]
    is_empty = int(seen[other]) in _WALKABLE
    return is_empty and all(_at(seen, cell) in _SOLID for cell in around if cell != _CENTER)


def _at(seen: NDArray[Any], cell: Cell) -> int | None:
    """The id at a cell, None out of view."""
    inside = 0 <= cell[0] < seen.shape[0] and 0 <= cell[1] < seen.shape[1]
    return int(seen[cell]) if inside else None


def _add(cell: Cell, step: Cell) -> Cell:
    return cell[0] + step[0], cell[1] + step[1]
