"""Drawing distinct transitions without replacement, for many plans at once.

Weights are whole numbers, so that sums are exact and every machine draws the same.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from retold.relabel.draws import Draws
from retold.relabel.history import NOTHING, GoalHistory
from retold.relabel.plan import Plan


def draw_onsets(
    history: GoalHistory,
    plan: Plan,
    taken: Sequence[NDArray[np.int64]],
    number: NDArray[np.int64] | np.int64,
    weights: NDArray[np.int64] | None = None,
) -> list[NDArray[np.int64]]:
    """Up to `number` onsets of each plan's episode, at distinct moments, none of them taken before.

    A draw picks a place among what is left; walking up the taken moments in order turns it into a
    place among all (sampling without replacement by rank). Each moment's goal is drawn right after
    it: so the stream of a plan does not depend on how many onsets other plans want.

    Args:
        history: the batch; it has at least one onset.
        plan: the plans.
        taken: `[plans]` each: moments that may not be drawn, `NOTHING` for none.
        number: `[plans]` or one: how many to draw; fewer where an episode has fewer.
        weights: `[onsets + 1]`, running sum of whole weights of onsets; if None all *moments* are
            equal, and then the goals of each.

    Returns:
        as many `[plans]` as the largest number asked for; -1 where a plan has no such draw.
    """
    occupied = _sorted_columns(list(taken))
    start, end = history.moment_offset[plan.episode], history.moment_offset[plan.episode + 1]
    free = end - start
    for column in occupied:
        free = free - (column < NOTHING)
    most = int(np.max(number, initial=0))
    number = np.minimum(number, free)
    mass = None if weights is None else weights[history.moment_start]
    drawn = []
    for place in range(most):
        if mass is None:
            moment = start + plan.draws.integers(free - place)  # anything where none is free
            for column in occupied:
                moment += moment >= column
        else:
            moment = _draw_weighted(mass, start, end, occupied, plan.draws)
        moment = np.where(place < number, moment, NOTHING)
        drawn.append(draw_goal(history, moment, plan.draws, weights))
        occupied = _insert(occupied, moment)
    return drawn


def draw_goal(
    history: GoalHistory,
    moment: NDArray[np.int64],
    draws: Draws,
    weights: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """`[plans]`: one onset of each moment, by weight; -1 where the moment is `NOTHING`."""
    is_there = moment < NOTHING
    moment = np.where(is_there, moment, 0)
    first, end = history.moment_start[moment], history.moment_start[moment + 1]
    if weights is None:
        return np.where(is_there, first + draws.integers(end - first), -1)
    target = weights[first] + draws.integers(weights[end] - weights[first])
    return np.where(is_there, np.searchsorted(weights, target, side="right") - 1, -1)


def _draw_weighted(
    mass: NDArray[np.int64],
    start: NDArray[np.int64],
    end: NDArray[np.int64],
    occupied: Sequence[NDArray[np.int64]],
    draws: Draws,
) -> NDArray[np.int64]:
    """`[plans]`: a moment by weight, none of those occupied (they come in rising order)."""
    total = mass[end] - mass[start]
    spans = []
    for column in occupied:
        is_there = column < NOTHING
        place = np.where(is_there, column, 0)
        weight = np.where(is_there, mass[np.minimum(place + 1, len(mass) - 1)] - mass[place], 0)
        spans.append((np.where(is_there, mass[place], NOTHING), weight))
        total = total - weight
    target = mass[start] + draws.integers(total)
    for begin, weight in spans:
        target = target + np.where(target >= begin, weight, 0)
    return np.searchsorted(mass, target, side="right") - 1


def _insert(
    columns: Sequence[NDArray[np.int64]], value: NDArray[np.int64]
) -> list[NDArray[np.int64]]:
    """Rising columns with one value more in its place."""
    result = []
    for column in columns:
        result.append(np.minimum(column, value))
        value = np.maximum(column, value)
    return [*result, value]


def _sorted_columns(columns: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    if len(columns) < 2:
        return columns
    table = np.sort(np.stack(columns, axis=1), axis=1)
    return [table[:, number] for number in range(len(columns))]
