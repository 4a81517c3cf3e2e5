"""Retelling goal-conditioned episodes: a goal that was reached later stands as the one that was wanted.

After HER (arXiv 1707.01495). A policy that reads whole histories is told one goal an episode, so a
variant has one: the `achieved_goal` of a row of its source, which replaces `desired_goal` in every row.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.relabel.draws import Draws
from retold.relabel.goal_reward import GoalReward, distances
from retold.relabel.plan import ATTEMPTS

GOAL_STRATEGIES = ("final", "future", "episode")


@dataclass(frozen=True, kw_only=True)
class GoalVariants:
    """New variants of one episode."""

    number: NDArray[np.int64]
    """`[variants]`"""
    goal_row: NDArray[np.int64]
    """`[variants]`: the row, 1..T, whose achieved goal is wanted."""
    length: NDArray[np.int64]
    """`[variants]`: transitions."""
    is_reached: NDArray[np.bool_]
    """`[variants]`: whether the goal is reached at the last transition, where that ends the episode."""
    rewards: tuple[NDArray[np.float32], ...]
    """`[length]` each."""


def draw_goal_rows(
    strategy: str, length: int, key: np.uint64, number: NDArray[np.int64], attempt: int
) -> NDArray[np.int64]:
    """`[plans]`: rows of achieved goals.

    `final` is the last row; `episode` uniform over rows 1..T; `future` uniform over the rows after a
    transition that is itself drawn uniformly.
    """
    draws = Draws(np.full(len(number), key), number, attempt)
    if strategy == "final":
        return np.full(len(number), length)
    if strategy == "episode":
        return 1 + draws.integers(length)
    step = draws.integers(length)
    return step + 1 + draws.integers(length - step)


def retell_goals(
    achieved: NDArray[Any],
    desired: NDArray[Any],
    key: np.uint64,
    strategy: str,
    reward: GoalReward,
    *,
    variants: int,
    reach: float | None = None,
) -> GoalVariants:
    """The new variants of an episode; goals that equal one another or the original are drawn again.

    Args:
        achieved: `[time + 1, ...]`
        desired: `[time + 1, ...]`
        key: of the episode.
        strategy: one of `GOAL_STRATEGIES`.
        reward: gives the reward of each transition.
        variants: how many to try for.
        reach: distance at which a goal counts as reached and ends the episode; None never ends it.
    """
    is_constant = bool((desired == desired[:1]).all())
    known = {desired[0].tobytes()} if is_constant else set()
    rows: dict[int, int] = {}
    pending = np.arange(variants)
    for attempt in range(ATTEMPTS):
        drawn = draw_goal_rows(strategy, len(achieved) - 1, key, pending, attempt)
        for number, row in zip(pending.tolist(), drawn.tolist(), strict=True):
            goal = achieved[row].tobytes()
            if goal not in known:
                known.add(goal)
                rows[number] = row
        pending = np.array([n for n in pending.tolist() if n not in rows], np.int64)
        if not len(pending):
            break
    numbers = sorted(rows)
    outcomes = [judge_goal(achieved, rows[number], reward, reach) for number in numbers]
    return GoalVariants(
        number=np.array(numbers, np.int64),
        goal_row=np.array([rows[number] for number in numbers], np.int64),
        length=np.array([len(rewards) for rewards, _ in outcomes], np.int64),
        is_reached=np.array([is_reached for _, is_reached in outcomes], np.bool_),
        rewards=tuple(rewards for rewards, _ in outcomes),
    )


def judge_goal(
    achieved: NDArray[Any], goal_row: int, reward: GoalReward, reach: float | None
) -> tuple[NDArray[np.float32], bool]:
    """Rewards of an episode that wanted the goal of a row, and whether reaching it ended it.

    Args:
        achieved: `[time + 1, ...]`
        goal_row: whose achieved goal is wanted.
        reward: gives the reward of each transition.
        reach: distance at which the episode ends; None never ends it.
    """
    after = achieved[1:]
    goal = np.broadcast_to(achieved[goal_row], after.shape)
    length, is_reached = len(after), False
    if reach is not None:
        reached = np.flatnonzero(distances(after, goal) <= reach)
        is_reached = len(reached) > 0
        length = int(reached[0]) + 1 if is_reached else length
    return reward(after[:length], goal[:length]), is_reached
