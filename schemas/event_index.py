"""Goal events of many episodes at once, and the instruction reward function over them.

The vectorised form of `retold.schemas.instruction.find_completed`: events become one sorted array of
(episode, goal, step) keys, so that "the next event of this goal in this episode after that step" is
one binary search, whatever the length of the episode.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

NOT_MET = -1
"""Stands in a table of steps where a goal was not met."""
NO_GOAL = -1
"""Stands in a table of goals after an instruction's last goal."""


@dataclass(frozen=True, kw_only=True)
class EventIndex:
    """Goal events of a batch of episodes.

    Args:
        offset: `[episodes + 1]`, int64: events of episode `e` are `offset[e] .. offset[e+1]-1`.
        step: `[events]`: transition of each event, rising within an episode.
        goal: `[events]`: its goal, rising within a transition, no pair twice.
        goals: size of the goal vocabulary.
    """

    offset: NDArray[np.int64]
    step: NDArray[np.int64]
    goal: NDArray[np.int64]
    goals: int

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.offset) - 1

    @cached_property
    def step_bits(self) -> int:
        """Bits of a key that hold the step; every step + 1 fits, so no key runs into its neighbour."""
        return int(self.step.max(initial=0) + 2).bit_length()

    @cached_property
    def goal_bits(self) -> int:
        """Bits of a key that hold the goal."""
        return max(int(self.goals - 1).bit_length(), 1)

    @cached_property
    def episode(self) -> NDArray[np.int64]:
        """`[events]`: the episode of each event."""
        return np.repeat(np.arange(self.episodes), np.diff(self.offset))

    @cached_property
    def keys(self) -> NDArray[np.int64]:
        """`[events]`, sorted: (episode, goal, step) as one number."""
        assert self.episodes.bit_length() + self.goal_bits + self.step_bits < 63, "too many at once"
        keys = (self.episode << self.goal_bits) + self.goal
        keys <<= self.step_bits
        keys += self.step
        keys.sort()
        return keys

    def next_step(
        self, episode: NDArray[np.int64], goal: NDArray[np.int64], after: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """`[queries]`: the first step above `after` with an event of `goal`, or `NOT_MET`.

        Args:
            episode: `[queries]`
            goal: `[queries]`; `NO_GOAL` is never met.
            after: `[queries]`; -1 asks from the start.
        """
        if not len(self.keys):
            return np.full(len(goal), NOT_MET)
        group = (episode << self.goal_bits) + goal
        # No step lies beyond the largest one, so clipping only keeps keys apart.
        wanted = (group << self.step_bits) + np.minimum(after + 1, (1 << self.step_bits) - 1)
        found = self.keys[np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)]
        is_met = (found >= wanted) & (found >> self.step_bits == group) & (goal >= 0)
        return np.where(is_met, found & ((1 << self.step_bits) - 1), NOT_MET)

    def find_completed(
        self, episode: NDArray[np.int64], instruction: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The transition at which each goal of each instruction is met.

        Equal to `find_completed` of `retold.schemas.instruction`, row by row.

        Args:
            episode: `[instructions]`: the episode that each instruction is put to.
            instruction: `[instructions, goals]`: goal ids, `NO_GOAL` after the last.

        Returns:
            `[instructions, goals]`, strictly rising, `NOT_MET` from the first goal that is not met.
        """
        completed = np.empty(instruction.shape, np.int64)
        step = np.full(len(instruction), -1)
        is_alive = np.ones(len(instruction), np.bool_)
        for number in range(instruction.shape[1]):
            step = self.next_step(episode, instruction[:, number], step)
            is_alive &= step >= 0
            step = np.where(is_alive, step, NOT_MET)
            completed[:, number] = step
        return completed

    @cached_property
    def held_before(self) -> NDArray[np.bool_]:
        """`[events]`, in the order of `keys`: the goal had an event at the transition before."""
        held = np.zeros(len(self.keys), np.bool_)
        np.equal(self.keys[1:], self.keys[:-1] + 1, out=held[1:])
        return held


def count_present(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[rows]`: entries of each row before its padding, for tables of goals or of steps."""
    counts: NDArray[np.int64] = (table >= 0).sum(1)
    return counts
