"""Rule sets of XLand-MiniGrid, drawn here: the package's own lists have to be downloaded.

A goal asks for one or two objects; each rule makes one of the objects that are asked for out of others,
which are then asked for in its place, as in the production trees of XLand-MiniGrid (Nikulin et al.
2023, arXiv 2312.12044). All objects differ, so that no rule spoils another's work.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tile = tuple[int, int]
"""Kind and color, by the package's numbers."""

GOAL_NUMBERS, RULE_NUMBERS = 5, 7
"""Of an encoding: its kind, then tiles."""
_KINDS = (3, 4, 5, 7, 11, 12)
"""Ball, square, pyramid, key, hexagon, star: what can be picked up."""
_COLORS = range(1, 12)
_HOLDING_GOAL, _NEAR_GOALS, _PAIR_GOALS = 1, (3, 11, 12, 13, 14), (4, 7, 8, 9, 10)
"""The agent holds a tile; stands by one, at any side or a given one; a tile lies by another."""
_HOLDING_RULE, _NEAR_RULES, _PAIR_RULES = 1, (2, 8, 9, 10, 11), (3, 4, 5, 6, 7)
"""Picked up; stood by; put down by another."""


@dataclass(frozen=True)
class RuleSet:
    """A goal, what can be made of what, and what lies about. Encodings are the package's, uint8."""

    goal: NDArray[np.uint8]
    """`[GOAL_NUMBERS]`."""
    rules: NDArray[np.uint8]
    """`[most_rules, RULE_NUMBERS]`, zeros where there is none."""
    tiles: NDArray[np.uint8]
    """`[most_tiles, 2]`, zeros where there is none."""


def most_tiles(most_rules: int, distractors: int) -> int:
    """Objects of the richest rule set: a pair is asked for, and every rule takes a pair for one."""
    return 2 + most_rules + distractors


def draw_rule_set(
    rng: np.random.Generator, rules: int, most_rules: int, distractors: int
) -> RuleSet:
    """A rule set whose goal takes all its rules.

    Args:
        rng: what it is drawn from.
        rules: how many there are.
        most_rules: how many there is room for.
        distractors: objects that nothing asks for.
    """
    palette = [(kind, color) for kind in _KINDS for color in _COLORS]
    unused = iter([palette[place] for place in rng.permutation(len(palette))])
    goal = np.zeros(GOAL_NUMBERS, np.uint8)
    encoded = np.zeros((most_rules, RULE_NUMBERS), np.uint8)
    kind, pairs = _draw_kind(rng, _HOLDING_GOAL, _NEAR_GOALS, _PAIR_GOALS)
    asked = [next(unused) for _ in range(1 + pairs)]
    _encode(goal, kind, asked)
    for row in encoded[:rules]:
        product = asked.pop(int(rng.integers(len(asked))))
        kind, pairs = _draw_kind(rng, _HOLDING_RULE, _NEAR_RULES, _PAIR_RULES)
        sources = [next(unused) for _ in range(1 + pairs)]
        _encode(row, kind, [*sources, product])
        asked += sources
    tiles = np.zeros((most_tiles(most_rules, distractors), 2), np.uint8)
    lying = [*asked, *(next(unused) for _ in range(distractors))]
    tiles[: len(lying)] = lying
    return RuleSet(goal, encoded, tiles)


def _draw_kind(
    rng: np.random.Generator, holding: int, near: tuple[int, ...], pair: tuple[int, ...]
) -> tuple[int, bool]:
    """A kind of goal or rule, each form as likely, and whether it takes two objects."""
    form = int(rng.integers(3))
    if form == 0:
        return holding, False
    return int(rng.choice(near if form == 1 else pair)), form == 2


def _encode(row: NDArray[np.uint8], kind: int, tiles: list[Tile]) -> None:
    numbers = [kind, *(number for tile in tiles for number in tile)]
    row[: len(numbers)] = numbers
