"""What strategies see of a batch of episodes: instructions, goals met, and the onsets to draw from."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from retold.schemas.event_index import NO_GOAL, NOT_MET, EventIndex, count_present

NOTHING = np.iinfo(np.int64).max
"""Stands where there is no moment or no packed goal, above every one."""


@dataclass(frozen=True, kw_only=True)
class GoalHistory:
    """A batch of episodes without their observations. Ragged things are padded or have offsets."""

    index: EventIndex
    """The goal events."""
    length: NDArray[np.int64]
    """`[episodes]`: transitions."""
    instruction: NDArray[np.int64]
    """`[episodes, goals]`: goal ids, `NO_GOAL` after the last."""
    completed: NDArray[np.int64]
    """`[episodes, goals]`: the transition at which each goal was met, or `NOT_MET`."""
    is_state: NDArray[np.bool_]
    """`[vocabulary]`: goals that hold for a while rather than happen."""
    initial_episode: NDArray[np.int64]
    """`[initial goals]`: the episode in whose first observation a state goal was true already."""
    initial_goal: NDArray[np.int64]
    """`[initial goals]`: that goal."""
    goal_weight: NDArray[np.int64] | None = None
    """`[vocabulary]`, 1..4096: how much a strategy with weights wants each goal."""
    prerequisites: NDArray[np.int64] | None = None
    """`[vocabulary, most]`: goals that come before each goal, `NO_GOAL` after the last."""

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.length)

    @cached_property
    def goals_asked(self) -> NDArray[np.int64]:
        """`[episodes]`: goals of the instruction."""
        return count_present(self.instruction)

    @cached_property
    def goals_met(self) -> NDArray[np.int64]:
        """`[episodes]`: how many of them were met."""
        return count_present(self.completed)

    @cached_property
    def _onset_keys(self) -> NDArray[np.int64]:
        """`[onsets]`, sorted: (episode, step, goal) as one number."""
        index, step_bits, goal_bits = self.index, self.index.step_bits, self.index.goal_bits
        if not self.is_state.any():
            keys = (((index.episode << step_bits) + index.step) << goal_bits) + index.goal
            return keys  # events come in this order
        held = index.held_before
        if len(self.initial_goal):
            held = held.copy()
            initial = ((self.initial_episode << goal_bits) + self.initial_goal) << step_bits
            place = np.minimum(np.searchsorted(index.keys, initial), len(index.keys) - 1)
            held[place[index.keys[place] == initial]] = True
        is_onset = ~held
        if not self.is_state.all():
            goal = (index.keys >> step_bits) & ((1 << goal_bits) - 1)
            is_onset |= ~self.is_state[goal]
        group = index.keys[is_onset]
        step = group & ((1 << step_bits) - 1)
        group >>= step_bits
        keys = group >> goal_bits
        keys <<= step_bits
        keys += step
        keys <<= goal_bits
        group &= (1 << goal_bits) - 1
        keys += group
        keys.sort()
        return keys

    @property
    def onsets(self) -> int:
        """Number of onsets."""
        return len(self._onset_keys)

    @cached_property
    def onset_goal(self) -> NDArray[np.int64]:
        """`[onsets]`: goals of the events at which a goal began to hold, by (episode, step, goal)."""
        return self._onset_keys & ((1 << self.index.goal_bits) - 1)

    @cached_property
    def onset_step(self) -> NDArray[np.int64]:
        """`[onsets]`: their transitions."""
        return self._moment_keys & ((1 << self.index.step_bits) - 1)

    @cached_property
    def onset_episode(self) -> NDArray[np.int64]:
        """`[onsets]`: their episodes."""
        return self._moment_keys >> self.index.step_bits

    def in_time(self, onset: NDArray[np.int64]) -> NDArray[np.int64]:
        """`[chosen]`: (step, goal) of some onsets as one number."""
        keys = self._onset_keys[onset]
        step = (keys >> self.index.goal_bits) & ((1 << self.index.step_bits) - 1)
        return pack(step, keys & ((1 << self.index.goal_bits) - 1))

    @cached_property
    def _moment_keys(self) -> NDArray[np.int64]:
        """`[onsets]`: (episode, step) as one number."""
        return self._onset_keys >> self.index.goal_bits

    @cached_property
    def moment_start(self) -> NDArray[np.int64]:
        """`[moments + 1]`: the first onset of each moment, a transition at which goals began."""
        keys = self._moment_keys
        is_first = np.ones(len(keys), np.bool_)
        np.not_equal(keys[1:], keys[:-1], out=is_first[1:])
        return np.append(np.flatnonzero(is_first), len(keys))

    @cached_property
    def _moments(self) -> NDArray[np.int64]:
        """`[moments]`, sorted: (episode, step) as one number."""
        return self._moment_keys[self.moment_start[:-1]]

    @cached_property
    def moment_step(self) -> NDArray[np.int64]:
        """`[moments]`: the transition of each."""
        return self._moments & ((1 << self.index.step_bits) - 1)

    @cached_property
    def moment_offset(self) -> NDArray[np.int64]:
        """`[episodes + 1]`: moments of episode `e` are `moment_offset[e] .. moment_offset[e+1]-1`."""
        firsts = np.arange(self.episodes + 1) << self.index.step_bits
        return np.searchsorted(self._moments, firsts)

    def find_moment(self, episode: NDArray[np.int64], step: NDArray[np.int64]) -> NDArray[np.int64]:
        """`[queries]`: the first moment of an episode at `step` or later; its end if there is none."""
        return np.searchsorted(self._moments, (episode << self.index.step_bits) + step)

    @cached_property
    def completed_moment(self) -> NDArray[np.int64]:
        """`[episodes, goals]`: the moment at which each goal was met, -1 where it was at none.

        A state goal may be met while it has held for long, at a transition where nothing began.
        """
        if not len(self._moments):
            return np.full(self.completed.shape, NOT_MET)
        episode = np.broadcast_to(np.arange(self.episodes)[:, None], self.completed.shape)
        keys = (episode << self.index.step_bits) + np.maximum(self.completed, 0)
        place = np.minimum(np.searchsorted(self._moments, keys), len(self._moments) - 1)
        is_there = (self.completed >= 0) & (self._moments[place] == keys)
        return np.where(is_there, place, -1)

    @cached_property
    def goals_in_time(self) -> NDArray[np.int64]:
        """`[episodes, goals]`: (step, goal) of the instruction as one number, in the order of time.

        A goal that was not met stands after the episode's end, in its place.
        """
        place = np.arange(self.instruction.shape[1])
        step = np.where(self.completed >= 0, self.completed, self.length[:, None] + place)
        return pack(step, self.instruction)

    @cached_property
    def onset_weight(self) -> NDArray[np.int64]:
        """`[onsets + 1]`: running sum of the weights of the onsets before."""
        weight = np.ones(len(self.onset_goal), np.int64)
        if self.goal_weight is not None:
            weight = self.goal_weight[self.onset_goal]
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(weight)])


def pack(step: NDArray[np.int64], goal: NDArray[np.int64]) -> NDArray[np.int64]:
    """Steps and goals as single numbers that sort by step; `unpack_goals` gives the goals back."""
    packed: NDArray[np.int64] = (step << 32) + goal
    return packed


def unpack_goals(packed: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[rows, most]`: the goals of each row by step, `NO_GOAL` after the last; `packed` is sorted.

    Args:
        packed: `[rows, places]`, the largest int64 where there is nothing.
    """
    packed.sort(axis=1)
    goals = np.where(packed < NOTHING, packed & 0xFFFFFFFF, NO_GOAL)
    return goals[:, : max(int(count_present(goals).max(initial=1)), 1)]


def pad_goals(
    values: NDArray[np.int64], offset: NDArray[np.int64], width: int
) -> NDArray[np.int64]:
    """`[rows, width]`: ragged rows, filled with -1 (`NO_GOAL`, `NOT_MET`) after their last value."""
    table = np.full((len(offset) - 1, width), NO_GOAL)
    count = np.diff(offset)
    is_there = np.arange(width) < count[:, None]
    table[is_there] = values
    return table
