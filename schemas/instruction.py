"""The instruction reward function: the one place that says what an instruction earns.

The task wrapper, the relabeller, the sampler and the audit all call it. Transitions are walked in
order; if the current goal is among the goal events of transition `t`, the reward of `t` is 1 and the
next goal becomes current. At most one goal is completed in a transition.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REWARD_VERSION = 1
"""Version of the rule above, stored with every dataset schema."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What an episode earns under one instruction. `time` is its length under that instruction."""

    completed: NDArray[np.uint32]
    """`[goals completed]`: the transition at which each goal was met, rising."""
    reward: NDArray[np.float32]
    """`[time]`"""
    terminated: NDArray[np.bool_]
    """`[time]`"""
    truncated: NDArray[np.bool_]
    """`[time]`"""
    progress: NDArray[np.uint32]
    """`[time + 1]`: goals completed before `observation[t]`."""

    @property
    def length(self) -> int:
        """Number of transitions."""
        return len(self.reward)


def advance(instruction: Sequence[int], progress: int, goals: Collection[int]) -> int:
    """Progress after one transition whose goal events are `goals`."""
    if progress < len(instruction) and instruction[progress] in goals:
        return progress + 1
    return progress


def find_completed(
    instruction: Sequence[int],
    event_step: NDArray[np.uint32],
    event_goal: NDArray[np.uint32],
) -> NDArray[np.uint32]:
    """The transition at which each goal of an instruction is met, for those that are.

    Args:
        instruction: goal ids, in order.
        event_step: `[events]`, sorted: the transition of each goal event.
        event_goal: `[events]`, the goal of each event.

    Returns:
        `[goals completed]`, strictly rising.
    """
    completed: list[int] = []
    steps, goals = event_step.tolist(), event_goal.tolist()
    first = 0
    while first < len(steps) and len(completed) < len(instruction):
        last = first
        while last < len(steps) and steps[last] == steps[first]:
            last += 1
        if advance(instruction, len(completed), goals[first:last]) > len(completed):
            completed.append(steps[first])
        first = last
    return np.array(completed, np.uint32)


def retell(
    instruction: Sequence[int],
    event_step: NDArray[np.uint32],
    event_goal: NDArray[np.uint32],
    *,
    source_length: int,
    environment_terminated: bool,
) -> Outcome:
    """What a recorded episode would have earned under `instruction`.

    Args:
        instruction: goal ids, in order; empty means that nothing is asked.
        event_step: `[events]`, sorted.
        event_goal: `[events]`.
        source_length: transitions recorded.
        environment_terminated: whether the world itself ended at the last recorded transition.
    """
    completed = find_completed(instruction, event_step, event_goal)
    is_complete = 0 < len(instruction) == len(completed)
    length = int(completed[-1]) + 1 if is_complete else source_length
    return derive_outcome(
        completed,
        length=length,
        is_complete=is_complete,
        environment_terminated=environment_terminated and length == source_length,
    )


def derive_outcome(
    completed: NDArray[np.uint32],
    *,
    length: int,
    is_complete: bool,
    environment_terminated: bool,
) -> Outcome:
    """Reward, flags and progress from what a variant's table row stores.

    Args:
        completed: `[goals completed]`.
        length: transitions of the variant, at least 1.
        is_complete: whether the last goal of the instruction was met.
        environment_terminated: whether the world itself ended at transition `length - 1`.

    A variant that neither completes its instruction nor ends with its world ran out of data: its
    last transition is truncated, also where the source ended by completing *its* instruction.
    """
    assert length >= 1, length
    reward = np.zeros(length, np.float32)
    reward[completed] = 1.0
    terminated = np.zeros(length, np.bool_)
    truncated = np.zeros(length, np.bool_)
    terminated[-1] = is_complete or environment_terminated
    truncated[-1] = not terminated[-1]
    progress = np.zeros(length + 1, np.uint32)
    progress[1:] = np.cumsum(reward, dtype=np.uint32)
    return Outcome(
        completed=completed,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        progress=progress,
    )
