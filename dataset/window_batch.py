"""Arrays that a sampler fills with one draw after the other."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.episode import Leaves
from retold.schemas.spaces import Leaf


@dataclass(frozen=True, kw_only=True)
class WindowBatch:
    """Windows side by side. What lies after a window's end is zero, and no mark: ask `length`.

    Row `t` of the `previous_…` arrays is what went before `observation[t]`, as the policy sees it:
    zero at an episode's first step, and stored data, not padding, at the first row of a window
    that starts later. `action`, `reward` and `reset` are the same memory from row 1 on.
    """

    observation: Leaves
    """`[batch, time + 1, ...]` each."""
    previous_action: Leaves
    """`[batch, time + 1, ...]` each."""
    previous_reward: NDArray[np.float32]
    """`[batch, time + 1]`, raw; for variants, what their own instruction earns."""
    previous_reset: NDArray[np.bool_]
    """`[batch, time + 1]`"""
    terminated: NDArray[np.bool_]
    """`[batch, time]`"""
    truncated: NDArray[np.bool_]
    """`[batch, time]`"""
    progress: NDArray[np.int64]
    """`[batch, time + 1]`: goals completed since the episode's start."""
    dataset: NDArray[np.int64]
    """`[batch]`: number of the dataset in the mixture."""
    row: NDArray[np.int64]
    """`[batch]`: the episode's row in its dataset."""
    start: NDArray[np.int64]
    """`[batch]`: number of the window's first transition in its episode."""
    length: NDArray[np.int64]
    """`[batch]`: transitions of the window."""

    @property
    def size(self) -> int:
        """Number of windows."""
        return len(self.length)

    @property
    def window_length(self) -> int:
        """Most transitions of a window."""
        return int(self.terminated.shape[1])

    @property
    def action(self) -> Leaves:
        """`[batch, time, ...]` each."""
        return {path: rows[:, 1:] for path, rows in self.previous_action.items()}

    @property
    def reward(self) -> NDArray[np.float32]:
        """`[batch, time]`, raw."""
        return self.previous_reward[:, 1:]

    @property
    def reset(self) -> NDArray[np.bool_]:
        """`[batch, time]`: soft resets."""
        return self.previous_reset[:, 1:]

    def first(self, count: int) -> "WindowBatch":
        """The same memory as a batch of the first `count` windows alone."""
        return replace(
            self,
            observation={path: rows[:count] for path, rows in self.observation.items()},
            previous_action={path: rows[:count] for path, rows in self.previous_action.items()},
            previous_reward=self.previous_reward[:count],
            previous_reset=self.previous_reset[:count],
            terminated=self.terminated[:count],
            truncated=self.truncated[:count],
            progress=self.progress[:count],
            dataset=self.dataset[:count],
            row=self.row[:count],
            start=self.start[:count],
            length=self.length[:count],
        )

    @property
    def is_real(self) -> NDArray[np.bool_]:
        """`[batch, time]`: transitions that are no padding."""
        is_real: NDArray[np.bool_] = np.arange(self.window_length) < self.length[:, None]
        return is_real


def make_window_batch(schema: DatasetSchema, size: int, window_length: int) -> WindowBatch:
    """Zeros for `size` windows of at most `window_length` transitions."""
    rows = window_length + 1

    def leaves(all_leaves: tuple[Leaf, ...]) -> dict[str, NDArray[Any]]:
        return {
            leaf.path: np.full((size, rows), "", object)
            if leaf.is_ragged
            else np.zeros((size, rows, *leaf.shape), leaf.dtype)
            for leaf in all_leaves
        }

    return WindowBatch(
        observation=leaves(schema.observation_leaves),
        previous_action=leaves(schema.action_leaves),
        previous_reward=np.zeros((size, rows), np.float32),
        previous_reset=np.zeros((size, rows), np.bool_),
        terminated=np.zeros((size, window_length), np.bool_),
        truncated=np.zeros((size, window_length), np.bool_),
        progress=np.zeros((size, rows), np.int64),
        dataset=np.zeros(size, np.int64),
        row=np.zeros(size, np.int64),
        start=np.zeros(size, np.int64),
        length=np.zeros(size, np.int64),
    )
