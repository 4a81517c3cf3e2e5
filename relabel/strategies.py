"""Hindsight instruction relabelling: the goals an episode happened to achieve, told as its aim.

After AMAGO (arXiv 2310.09971, Algorithm 1): with n of k goals met, h alternatives that the episode
achieved are put among the met ones in order of time, and unmet goals of the original go to the end.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Strategy = Literal["some", "all"]
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)


def retell_instruction(
    strategy: Strategy,
    instruction: Sequence[int],
    completed: Sequence[int],
    onset_step: NDArray[np.uint32],
    onset_goal: NDArray[np.uint32],
    rng: np.random.Generator,
) -> tuple[int, ...]:
    """A new instruction of the original's length or less.

    Alternatives lie at distinct transitions, none at which a kept goal was met; uniform over
    transitions, then over the goals of each. With too few transitions h shrinks.

    Args:
        strategy: `some` draws h from 0..k-n; `all` takes k-n.
        instruction: the k original goals.
        completed: transitions at which the first n were met.
        onset_step: `[onsets]`, sorted.
        onset_goal: `[onsets]`.
        rng: the draws.
    """
    missing = len(instruction) - len(completed)
    count = int(rng.integers(missing + 1)) if strategy == "some" else missing
    steps, starts = np.unique(onset_step, return_index=True)
    ends = np.append(starts[1:], len(onset_step))
    free = np.flatnonzero(~np.isin(steps, np.asarray(completed, np.uint32)))
    chosen = rng.permutation(free)[:count]
    told = list(zip(completed, instruction, strict=False))
    for place in chosen.tolist():
        event = int(rng.integers(starts[place], ends[place]))
        told.append((int(steps[place]), int(onset_goal[event])))
    told.sort()
    kept = missing - len(chosen)
    last = instruction[len(completed) : len(completed) + kept]
    return (*(goal for _, goal in told), *last)
