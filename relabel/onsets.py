"""The goal events that relabelling may draw from: the moments at which a goal begins to hold."""

import numpy as np
from numpy.typing import NDArray

from retold.schemas.vocabulary import GoalVocabulary


def find_onsets(
    event_step: NDArray[np.uint32],
    event_goal: NDArray[np.uint32],
    initial_goals: tuple[int, ...],
    vocabulary: GoalVocabulary,
) -> NDArray[np.bool_]:
    """`[events]`: True for occurrences, and for state goals that were false at `observation[t]`.

    Args:
        event_step: `[events]`, sorted by (step, goal).
        event_goal: `[events]`.
        initial_goals: state goals that were true of `observation[0]`.
        vocabulary: says which goals are states.
    """
    order = np.lexsort((event_step, event_goal))
    goal, step = event_goal[order].astype(np.int64), event_step[order].astype(np.int64)
    held_before = np.zeros(len(order), np.bool_)
    held_before[1:] = (goal[1:] == goal[:-1]) & (step[1:] == step[:-1] + 1)
    held_before |= (step == 0) & np.isin(goal, initial_goals)
    onsets = np.empty(len(order), np.bool_)
    onsets[order] = ~(held_before & np.asarray(vocabulary.is_state, np.bool_)[goal])
    return onsets
