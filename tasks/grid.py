"""Moves on a square grid without walls, as several tasks have them."""

from collections.abc import Sequence

import numpy as np

Cell = tuple[int, int]
"""(row, column)."""

MOVES: tuple[Cell, ...] = ((0, -1), (-1, 0), (0, 1), (1, 0), (0, 0))
"""West, north, east, south, stay."""


def move(cell: Cell, step: Cell, size: int) -> Cell:
    """The cell after a step; the border stops it."""
    return (
        min(size - 1, max(0, cell[0] + step[0])),
        min(size - 1, max(0, cell[1] + step[1])),
    )


def draw_cell(size: int, rng: np.random.Generator) -> Cell:
    """Any cell, each as likely."""
    row, column = rng.integers(0, size, 2)
    return int(row), int(column)


def distance(one: Cell, other: Cell) -> int:
    """Steps from one cell to the other."""
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def step_towards(cell: Cell, target: Cell, moves: Sequence[Cell]) -> int:
    """The action of a shortest way; the one that stays when there."""
    row, column = target[0] - cell[0], target[1] - cell[1]
    if row:
        return moves.index((1 if row > 0 else -1, 0))
    return moves.index((0, (column > 0) - (column < 0)))


def draw_marks(size: int, marks: Sequence[tuple[Cell, str]]) -> str:
    """The grid from above; a later mark covers an earlier one."""
    rows = [["."] * size for _ in range(size)]
    for (row, column), letter in marks:
        rows[row][column] = letter
    return "\n".join("".join(row) for row in rows)
