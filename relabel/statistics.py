"""The first pass of strategies that weigh goals: how often each is achieved, and what comes before it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retold.relabel.history import GoalHistory
from retold.relabel.options import GoalStatistics

MOST_CHAINED_GOALS = 4096
"""Largest vocabulary that prerequisites are counted for: the table is quadratic in it."""
_LARGEST_WEIGHT = 4096
_SHARE = 0.95
"""Share of the episodes that achieve a goal in which a prerequisite comes first."""
_FEWEST_EPISODES = 8
"""Episodes that must achieve a goal before anything is called its prerequisite."""
_MOST_PREREQUISITES = 8


@dataclass(frozen=True, kw_only=True)
class GoalCounts:
    """Counts over some episodes; those of several shards add up."""

    onsets: NDArray[np.int64]
    """`[vocabulary]`: onsets of each goal."""
    episodes: NDArray[np.int64]
    """`[vocabulary]`: episodes that achieve each goal."""
    before: NDArray[np.int64] | None
    """`[vocabulary, vocabulary]`: episodes in which the row's goal began before the column's."""

    @classmethod
    def sum(cls, counts: Sequence["GoalCounts"]) -> "GoalCounts":
        """All of them together."""
        befores = [count.before for count in counts if count.before is not None]
        return cls(
            onsets=np.sum([count.onsets for count in counts], axis=0),
            episodes=np.sum([count.episodes for count in counts], axis=0),
            before=np.sum(befores, axis=0) if befores else None,
        )

    def statistics(self) -> GoalStatistics:
        """What strategies read of it.

        A prerequisite of a goal begins before it in at least 95 % of the episodes that achieve it,
        of which there are at least 8. That is precedence, not proof: a goal that every episode
        meets early comes before everything. At most 8 are kept, those that the fewest episodes
        achieve first, since they say the most.
        """
        achieved = self.onsets[self.onsets > 0]
        rarest = int(achieved.min()) if len(achieved) else 1
        share = rarest / np.maximum(self.onsets, rarest)
        weight = np.maximum(np.rint(share * _LARGEST_WEIGHT), 1).astype(np.int64)
        goals = len(self.onsets)
        prerequisites = np.full((goals, _MOST_PREREQUISITES), -1)
        if self.before is not None:
            known = self.episodes >= _FEWEST_EPISODES
            precedes = known & (self.before >= _SHARE * np.maximum(self.episodes, 1))
            for goal in np.flatnonzero(precedes.any(0)).tolist():
                found = np.flatnonzero(precedes[:, goal])
                order = np.argsort(self.episodes[found], kind="stable")[:_MOST_PREREQUISITES]
                prerequisites[goal, : len(order)] = found[order]
        return GoalStatistics(goal_weight=weight, prerequisites=prerequisites)


def count_goals(history: GoalHistory, *, with_order: bool) -> GoalCounts:
    """The counts of a batch.

    Args:
        history: the batch.
        with_order: whether to count which goals begin before which.
    """
    goals = history.index.goals
    group = (history.onset_episode << history.index.goal_bits) + history.onset_goal
    # The first of each (episode, goal), in order of time: np.unique keeps the first index.
    pairs, first = np.unique(group, return_index=True)
    achieved = pairs & ((1 << history.index.goal_bits) - 1)
    before = None
    if with_order:
        before = np.zeros((goals, goals), np.int64)
        episode = pairs >> history.index.goal_bits
        step = history.onset_step[first]
        bounds = np.searchsorted(episode, np.arange(history.episodes + 1))
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            ids, steps = achieved[start:stop], step[start:stop]
            before[np.ix_(ids, ids)] += steps[:, None] < steps
    return GoalCounts(
        onsets=np.bincount(history.onset_goal, minlength=goals),
        episodes=np.bincount(achieved, minlength=goals),
        before=before,
    )
