"""Retelling a batch of episodes: draw instructions, keep the new ones, find when each goal is met."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retold.relabel.draws import Draws
from retold.relabel.history import GoalHistory
from retold.relabel.plan import ATTEMPTS, Plan
from retold.relabel.strategies import Strategy
from retold.schemas.errors import RelabelError
from retold.schemas.event_index import NO_GOAL, count_present


@dataclass(frozen=True, kw_only=True)
class Variants:
    """New variants of a batch, by episode and number."""

    episode: NDArray[np.int64]
    """`[variants]`: index into the batch."""
    number: NDArray[np.int64]
    """`[variants]`: number under the episode."""
    instruction: NDArray[np.int64]
    """`[variants, goals]`, `NO_GOAL` after the last."""
    completed: NDArray[np.int64]
    """`[variants, goals]`: when each goal is met, `NOT_MET` from the first that is not."""
    length: NDArray[np.int64]
    """`[variants]`: transitions."""

    @property
    def goals_met(self) -> NDArray[np.int64]:
        """`[variants]`: goals completed, which is also the return."""
        return count_present(self.completed)

    @property
    def is_complete(self) -> NDArray[np.bool_]:
        """`[variants]`: whether the whole instruction is followed."""
        return np.equal(self.goals_met, count_present(self.instruction))


def retell_batch(
    history: GoalHistory,
    keys: NDArray[np.uint64],
    strategy: Strategy,
    *,
    variants: int,
    length_weights: NDArray[np.float64] | None = None,
    goal_limit: int | None = None,
    most_goals: int,
) -> Variants:
    """The new variants of every episode; each depends on its episode and key alone.

    A variant is new if it equals neither the original nor another variant of its episode. Those
    that are not are drawn again; what is still not new after eight more draws is given up.

    Args:
        history: the batch.
        keys: `[episodes]`, from `episode_keys`.
        strategy: chooses the goals.
        variants: how many of each episode to try for.
        length_weights: `[most_goals]`: chance of each instruction length, in any scale; None keeps
            each episode's own.
        goal_limit: most variants of an episode in which a goal stands that is not in its original.
        most_goals: longest instruction that the task allows.

    Raises:
        RelabelError: the strategy returned something that is no instruction of the task.
    """
    told = np.full((history.episodes, variants, most_goals), NO_GOAL)
    accepted = np.zeros((history.episodes, variants), np.bool_)
    original = _pad(history.instruction, most_goals)
    limits = None if goal_limit is None else _GoalLimits(history, goal_limit)
    episode, number = (part.ravel() for part in np.indices(accepted.shape))
    for attempt in range(ATTEMPTS):
        draws = Draws(keys[episode], number, attempt)
        goals = history.goals_asked[episode]
        if length_weights is not None:
            goals = 1 + np.searchsorted(
                np.cumsum(length_weights) / length_weights.sum(), draws.random(), side="right"
            )
        found = strategy(history, Plan(episode=episode, goals=goals, draws=draws))
        told[episode, number] = _checked(found, len(episode), most_goals, history.index.goals)
        # Only episodes that still miss a variant are looked at again.
        rows = np.flatnonzero(np.bincount(episode, minlength=history.episodes))
        candidate = np.zeros((len(rows), variants), np.bool_)
        candidate[np.searchsorted(rows, episode), number] = True
        is_new = _find_new(told[rows], original[rows], accepted[rows], candidate)
        if limits is not None:
            is_new &= limits.admit(rows, told[rows], is_new)
        accepted[rows] |= is_new
        row, number = np.nonzero(candidate & ~is_new)
        episode = rows[row]
        if not len(episode):
            break
    episode, number = np.nonzero(accepted)
    return _put_to_test(history, episode, number, told[episode, number])


def _put_to_test(
    history: GoalHistory,
    episode: NDArray[np.int64],
    number: NDArray[np.int64],
    instruction: NDArray[np.int64],
) -> Variants:
    """The instruction reward function decides what is met, whatever the plan was."""
    completed = history.index.find_completed(episode, instruction)
    goals, met = count_present(instruction), count_present(completed)
    last = completed[np.arange(len(episode)), goals - 1]
    return Variants(
        episode=episode,
        number=number,
        instruction=instruction,
        completed=completed,
        length=np.where(goals == met, last + 1, history.length[episode]),
    )


def _find_new(
    told: NDArray[np.int64],
    original: NDArray[np.int64],
    accepted: NDArray[np.bool_],
    candidate: NDArray[np.bool_],
) -> NDArray[np.bool_]:
    """`[episodes, variants]`: candidates that equal nothing accepted, original or lower-numbered."""
    bits = int(max(told.max(initial=0), original.max(initial=0)) + 2).bit_length()
    columns = _packed(told, bits)
    repeats = _equal(columns, [column[:, None] for column in _packed(original, bits)])
    repeats |= told[:, :, 0] < 0  # nothing is asked
    numbers = np.arange(told.shape[1])
    for number in range(told.shape[1]):
        same = _equal(columns, [column[:, number, None] for column in columns])
        blocks = accepted[:, number, None] | (candidate[:, number, None] & (numbers > number))
        repeats |= same & blocks
    return candidate & ~repeats


def _packed(goals: NDArray[np.int64], bits: int) -> list[NDArray[np.int64]]:
    """`[...]` each: as many goals of `[..., goals]` in one number as fit; equal where all are equal."""
    most = 62 // bits
    columns = []
    for first in range(0, goals.shape[-1], most):
        column = goals[..., first] + 1
        for place in range(first + 1, min(first + most, goals.shape[-1])):
            column = (column << bits) + goals[..., place] + 1
        columns.append(column)
    return columns


def _equal(columns: list[NDArray[np.int64]], others: list[NDArray[np.int64]]) -> NDArray[np.bool_]:
    result: NDArray[np.bool_] = columns[0] == others[0]
    for column, other in zip(columns[1:], others[1:], strict=True):
        result &= column == other
    return result


class _GoalLimits:
    """Counts in how many variants of an episode each goal stands that its original lacks."""

    def __init__(self, history: GoalHistory, limit: int) -> None:
        self._limit = limit
        self._count = np.zeros((history.episodes, history.index.goals), np.int32)
        row, place = np.nonzero(history.instruction >= 0)
        # The original's own goals may stand in every variant.
        self._is_own = np.zeros(self._count.shape, np.bool_)
        self._is_own[row, history.instruction[row, place]] = True

    def admit(
        self, rows: NDArray[np.int64], told: NDArray[np.int64], is_new: NDArray[np.bool_]
    ) -> NDArray[np.bool_]:
        """`[rows, variants]`: new variants within the limit, lower numbers first; they are counted."""
        admitted = np.zeros(is_new.shape, np.bool_)
        for number in range(told.shape[1]):
            goals = told[:, number]
            safe = np.maximum(goals, 0)
            counts = (goals >= 0) & ~self._is_own[rows[:, None], safe]
            full = (counts & (self._count[rows[:, None], safe] >= self._limit)).any(1)
            admitted[:, number] = is_new[:, number] & ~full
            row, place = np.nonzero(counts & admitted[:, number, None])
            pairs = np.unique(np.stack([rows[row], goals[row, place]]), axis=1)
            self._count[pairs[0], pairs[1]] += 1
        return admitted


def _checked(
    found: NDArray[np.int64], plans: int, most_goals: int, vocabulary: int
) -> NDArray[np.int64]:
    if not isinstance(found, np.ndarray) or found.ndim != 2 or found.dtype.kind != "i":
        raise RelabelError(
            "The strategy returned no table of goals. Return an int64 array `[plans, goals]`."
        )
    goals = count_present(found)
    place = np.arange(found.shape[1])
    if (
        len(found) != plans
        or (found >= vocabulary).any()
        or (found < NO_GOAL).any()
        or goals.max(initial=0) > most_goals
        or ((found >= 0) != (place < goals[:, None])).any()
    ):
        raise RelabelError(
            f"The strategy returned {found.shape[0]} by {found.shape[1]} goals for {plans} plans. "
            f"Return a row for each plan: at most {most_goals} goal ids below {vocabulary}, then "
            f"only {NO_GOAL}."
        )
    return _pad(found, most_goals)


def _pad(goals: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    if goals.shape[1] >= width:
        return goals[:, :width]
    return np.pad(goals, ((0, 0), (0, width - goals.shape[1])), constant_values=NO_GOAL)
