"""Hindsight strategies: which goals an episode is told to have aimed at.

A strategy is a pure function of a batch of episodes and of numbers drawn for it:

    strategy(history: GoalHistory, plan: Plan) -> NDArray[int64]   # [plans, goals]

Every plan asks for one new instruction of one episode; goals end with `NO_GOAL`. Strategies see goal
events and instructions alone, never an observation, and only say what is asked: when it is met, what
it earns and where it ends is for the instruction reward function to say. Any function of this form
can be named as `module:function` on the command line.
"""

import difflib
import importlib
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from retold.relabel.history import NOTHING, GoalHistory, pack, unpack_goals
from retold.relabel.moments import draw_goal, draw_onsets
from retold.relabel.plan import Plan
from retold.schemas.errors import UsageError
from retold.schemas.event_index import NO_GOAL, NOT_MET

Strategy = Callable[[GoalHistory, Plan], NDArray[np.int64]]


def some(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """AMAGO's `some` (arXiv 2310.09971): h ~ U{0..k-n} achieved alternatives, then unmet originals."""
    kept = _goals_kept(history, plan)
    return _retell(history, plan, kept, plan.draws.integers(plan.goals - kept + 1))


def all_goals(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """Every missing goal becomes an achieved one: AMAGO (arXiv 2310.09971), `all`."""
    kept = _goals_kept(history, plan)
    return _retell(history, plan, kept, plan.goals - kept)


def all_or_nothing(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """Every missing goal with a chance of 0.8, otherwise none: AMAGO's first version."""
    kept = _goals_kept(history, plan)
    replaces = plan.draws.integers(5) < 4
    return _retell(history, plan, kept, np.where(replaces, plan.goals - kept, 0))


def rare(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """As `some`, an onset's chance falling with how often its goal is achieved in the dataset.

    After AMAGO's goal importance sampling (arXiv 2310.09971, appendix): weights are the inverse of
    the number of onsets of the goal.
    """
    kept = _goals_kept(history, plan)
    number = plan.draws.integers(plan.goals - kept + 1)
    return _retell(history, plan, kept, number, weights=history.onset_weight)


def rare_in_episode(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """As `rare`, with how often the goal is achieved in the episode itself."""
    group = (history.onset_episode << history.index.goal_bits) + history.onset_goal
    _, member, count = np.unique(group, return_inverse=True, return_counts=True)
    weight = np.maximum(4096 // count[member], 1) if len(group) else np.zeros(0, np.int64)
    weights = np.concatenate([np.zeros(1, np.int64), np.cumsum(weight)])
    kept = _goals_kept(history, plan)
    number = plan.draws.integers(plan.goals - kept + 1)
    return _retell(history, plan, kept, number, weights=weights)


def chain(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """A target that the episode led up to, after goals that it needs: a skill chain as curriculum.

    The target is an onset, its chance growing with the number of its prerequisites that the episode
    achieved before; in front of it stand up to k-1 of those, drawn at random, each at its last onset
    before the target. A chain is shorter than k where the episode shows fewer. Prerequisites are
    goals that come first in nearly every episode that achieves the target, counted over the dataset
    (`retold.relabel.statistics`); chaining skills from the goal backwards is Konidaris and Barto's
    (NeurIPS 2009).
    """
    assert history.prerequisites is not None, "the prerequisites are counted before"
    told = np.full((len(plan.episode), max(int(plan.goals.max(initial=1)), 1)), NOTHING)
    if not history.onsets:
        return np.full(told.shape, NO_GOAL)
    steps = _prerequisite_steps(history)
    shown = (steps >= 0).sum(1)
    weights = np.concatenate([np.zeros(1, np.int64), np.cumsum(1 + 8 * shown)])
    (onset,) = draw_onsets(history, plan, [], np.int64(1), weights)
    is_there = onset >= 0
    told[:, 0] = np.where(is_there, history.in_time(onset), NOTHING)
    candidate = np.where(is_there[:, None], steps[onset], NOT_MET)
    goal = history.prerequisites[history.onset_goal[onset]]
    for place in range(1, told.shape[1]):
        free = (candidate >= 0).sum(1)
        wanted = plan.draws.integers(free)
        rank = np.cumsum(candidate >= 0, axis=1) - 1
        column = np.argmax((candidate >= 0) & (rank == wanted[:, None]), axis=1)
        rows = np.arange(len(column))
        step = candidate[rows, column]
        takes = (free > 0) & (place < plan.goals)
        told[:, place] = np.where(takes, pack(step, goal[rows, column]), NOTHING)
        # Two goals of one transition cannot both be met at it.
        candidate = np.where(takes[:, None] & (candidate == step[:, None]), NOT_MET, candidate)
    return unpack_goals(told)


def final(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """One goal: the last that was achieved. HER (arXiv 1707.01495), `final`."""
    last = history.moment_offset[plan.episode + 1] - 1
    return _single(history, plan, np.where(last >= history.moment_offset[plan.episode], last, -1))


def future(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """One goal, achieved at or after a transition drawn uniformly. HER (arXiv 1707.01495), `future`.

    Where nothing is achieved from that transition on, the goal comes from the whole episode.
    """
    start = history.moment_offset[plan.episode]
    step = plan.draws.integers(history.length[plan.episode])
    first = history.find_moment(plan.episode, step)
    end = history.moment_offset[plan.episode + 1]
    first = np.where(first < end, first, start)
    return _single(
        history, plan, np.where(first < end, first + plan.draws.integers(end - first), -1)
    )


def episode(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """One goal, achieved anywhere in the episode. HER (arXiv 1707.01495), `episode`."""
    start, end = history.moment_offset[plan.episode], history.moment_offset[plan.episode + 1]
    return _single(
        history, plan, np.where(start < end, start + plan.draws.integers(end - start), -1)
    )


def original(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """The instruction as it was. Nothing of it is ever stored: for audits and tests."""
    return history.instruction[plan.episode]


STRATEGIES: dict[str, Strategy] = {
    "some": some,
    "all": all_goals,
    "all-or-nothing": all_or_nothing,
    "rare": rare,
    "rare-in-episode": rare_in_episode,
    "chain": chain,
    "final": final,
    "future": future,
    "episode": episode,
    "original": original,
}


def find_strategy(name: str) -> Strategy:
    """A strategy by its name, or a user's own by `module:function`.

    Raises:
        UsageError: there is none; the nearest name is given.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    module, colon, function = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, STRATEGIES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"There is no strategy {name!r}.{hint} Choose one of {', '.join(STRATEGIES)}, or name a "
            f"function of your own as module:function."
        )
    try:
        found: Strategy = getattr(importlib.import_module(module), function)
    except Exception as error:  # whatever a user's module raises
        raise UsageError(
            f"--strategy {name}: it cannot be imported: {type(error).__name__}: {error}. Check that "
            f"the module is installed or on PYTHONPATH, also where the workers run."
        ) from error
    if not callable(found):
        raise UsageError(f"--strategy {name}: this is no function. Name one as module:function.")
    return found


def _goals_kept(history: GoalHistory, plan: Plan) -> NDArray[np.int64]:
    """`[plans]`: how many of the goals that were met stay."""
    return np.minimum(history.goals_met[plan.episode], plan.goals)


def _retell(
    history: GoalHistory,
    plan: Plan,
    kept: NDArray[np.int64],
    alternatives: NDArray[np.int64],
    weights: NDArray[np.int64] | None = None,
) -> NDArray[np.int64]:
    """Kept goals and achieved alternatives in order of time, then unmet goals of the original.

    Args:
        history: the batch.
        plan: the plans.
        kept: `[plans]`: how many of the goals that were met stay.
        alternatives: `[plans]`: how many achieved goals to put in.
        weights: as `draw_onsets` takes them.
    """
    told = history.instruction[plan.episode]
    # Where nothing is put in, the instruction stays as it was: a third of the draws of `some`.
    is_asked_anew = plan.goals != history.goals_asked[plan.episode]
    rows = np.flatnonzero((alternatives > 0) | is_asked_anew)
    if not len(rows):
        return told
    changed = _arrange(history, plan.take(rows), kept[rows], alternatives[rows], weights)
    width = max(told.shape[1], changed.shape[1])
    told = np.pad(told, ((0, 0), (0, width - told.shape[1])), constant_values=NO_GOAL)
    told[rows, : changed.shape[1]] = changed
    told[rows, changed.shape[1] :] = NO_GOAL
    return told


def _arrange(
    history: GoalHistory,
    plan: Plan,
    kept: NDArray[np.int64],
    alternatives: NDArray[np.int64],
    weights: NDArray[np.int64] | None,
) -> NDArray[np.int64]:
    """The changed instructions of `_retell`."""
    width = history.instruction.shape[1]
    place = np.arange(width)
    is_kept = place < kept[:, None]
    onsets: list[NDArray[np.int64]] = []
    if history.onsets:
        moments = history.completed_moment[plan.episode]
        taken = np.where(is_kept & (moments >= 0), moments, NOTHING)
        columns = [taken[:, number] for number in range(width)]
        onsets = draw_onsets(history, plan, columns, alternatives, weights)
    told = np.full((len(kept), width + len(onsets)), NOTHING)
    found = np.zeros(len(kept), np.int64)
    for number, onset in enumerate(onsets):
        is_there = onset >= 0
        found += is_there
        told[:, width + number] = np.where(is_there, history.in_time(onset), NOTHING)
    left = plan.goals - kept - found
    met = history.goals_met[plan.episode]
    is_last = (place >= met[:, None]) & (place < (met + left)[:, None])
    is_last &= place < history.goals_asked[plan.episode][:, None]
    told[:, :width] = np.where(is_kept | is_last, history.goals_in_time[plan.episode], NOTHING)
    return unpack_goals(told)


def _single(history: GoalHistory, plan: Plan, moment: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[plans, 1]`: one goal of a moment, `NO_GOAL` where that is -1."""
    if not history.onsets:
        return np.full((len(moment), 1), NO_GOAL)
    onset = draw_goal(history, np.where(moment >= 0, moment, NOTHING), plan.draws)
    return np.where(moment >= 0, history.onset_goal[onset], NO_GOAL)[:, None]


def _prerequisite_steps(history: GoalHistory) -> NDArray[np.int64]:
    """`[onsets, most]`: the last onset of each prerequisite of the onset's goal before it."""
    assert history.prerequisites is not None
    bits, goal_bits = history.index.step_bits, history.index.goal_bits
    group = (history.onset_episode << goal_bits) + history.onset_goal
    keys = np.sort((group << bits) + history.onset_step)
    needed = history.prerequisites[history.onset_goal]
    group = (history.onset_episode[:, None] << goal_bits) + needed
    place = np.searchsorted(keys, (group << bits) + history.onset_step[:, None]) - 1
    found = keys[np.maximum(place, 0)]
    is_there = (place >= 0) & (needed >= 0) & (found >> bits == group)
    return np.where(is_there, found & ((1 << bits) - 1), NOT_MET)
