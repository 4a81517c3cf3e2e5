"""What the policy sees at each step, made from stored arrays or from the step just taken.

At step t: `observation[t]`, `action[t-1]`, `reward[t-1]`, `reset[t-1]`, t itself, the instruction and
its progress after transition t-1. At t = 0 reward and reset are zero and the previous action is the
null action, which is no action of the task.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retold.schemas.episode import Leaves, Window

Array = NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class PolicyInputs:
    """A batch of steps, side by side or packed; `time` is 1 when acting.

    Packed, sequences lie one after the other with nothing between them: `[batch, time]` is `[rows]`.
    """

    observation: dict[str, Tensor]
    """`[batch, time, ...]` by leaf path."""
    previous_action: dict[str, Tensor]
    """`[batch, time, ...]` by leaf path; zero where there was none."""
    has_previous: Tensor
    """`[batch, time]`, bool: False at an episode's first step."""
    previous_reward: Tensor
    """`[batch, time]`, raw."""
    previous_reset: Tensor
    """`[batch, time]`, bool."""
    step: Tensor
    """`[batch, time]`, int64: number of the step in its episode."""
    instruction: Tensor
    """`[batch, goals]`, int64: goal id + 1; 0 after the last goal."""
    progress: Tensor
    """`[batch, time]`, int64."""
    return_to_go: Tensor | None = None
    """`[batch, time]`: sum of raw rewards from the step on; None where no policy sees it."""
    position: Tensor | None = None
    """`[batch, time]`, int64: number of the step in its trajectory, where that is not its episode."""
    sequence: Tensor | None = None
    """`[rows]`, int64: the row of `instruction` that each packed row follows; None: not packed."""
    lengths: tuple[int, ...] = ()
    """Rows of each packed sequence."""

    @property
    def place(self) -> Tensor:
        """`[batch, time]`, int64: number of the step in its trajectory."""
        return self.step if self.position is None else self.position


def pack_inputs(
    inputs: PolicyInputs, lengths: Sequence[int], parts: Sequence[int] = ()
) -> PolicyInputs:
    """The first rows of each sequence alone, packed.

    Args:
        inputs: side by side.
        lengths: rows to keep of each.
        parts: how many of them, one after the other, make each sequence; none: one each.
    """
    index = packed_index(lengths, inputs.step.shape[1])

    def pack(rows: Tensor) -> Tensor:
        return rows.flatten(0, 1)[index]

    return PolicyInputs(
        observation={path: pack(rows) for path, rows in inputs.observation.items()},
        previous_action={path: pack(rows) for path, rows in inputs.previous_action.items()},
        has_previous=pack(inputs.has_previous),
        previous_reward=pack(inputs.previous_reward),
        previous_reset=pack(inputs.previous_reset),
        step=pack(inputs.step),
        instruction=inputs.instruction,
        progress=pack(inputs.progress),
        return_to_go=None if inputs.return_to_go is None else pack(inputs.return_to_go),
        position=None if inputs.position is None else pack(inputs.position),
        sequence=index // inputs.step.shape[1],
        lengths=join_lengths(lengths, parts),
    )


def join_lengths(lengths: Sequence[int], parts: Sequence[int]) -> tuple[int, ...]:
    """Sums of `parts[0]` lengths, of the next `parts[1]`, and so on; without parts, the lengths."""
    if not parts:
        return tuple(lengths)
    rest = iter(lengths)
    return tuple(sum(next(rest) for _ in range(count)) for count in parts)


def packed_index(lengths: Sequence[int], time: int) -> Tensor:
    """`[rows]`: places of the first rows of each sequence in `[batch, time]`, flattened."""
    parts = [np.arange(length) + number * time for number, length in enumerate(lengths)]
    return torch.from_numpy(np.concatenate(parts))


def encode_instruction(instruction: Sequence[int], most_goals: int) -> Array:
    """`[goals]`, int64: goal ids + 1, then zeros; no longer than `most_goals`."""
    row = np.zeros(max(1, most_goals), np.int64)
    assert len(instruction) <= len(row), (instruction, most_goals)  # `DatasetSchema.covers`
    row[: len(instruction)] = np.asarray(instruction, np.int64) + 1
    return row


def stack_windows(windows: Sequence[Window], most_goals: int) -> PolicyInputs:
    """The inputs of whole windows: `length + 1` rows each, zeros after the end of shorter ones.

    The zeros are no mark: which rows are real follows from the windows' lengths.
    """
    rows = max(window.length for window in windows) + 1
    return PolicyInputs(
        observation={
            path: pad_rows([window.observation[path] for window in windows], rows)
            for path in windows[0].observation
        },
        previous_action={
            path: pad_rows([_previous_rows(window, path) for window in windows], rows)
            for path in windows[0].action
        },
        has_previous=pad_rows([_step_numbers(window) > 0 for window in windows], rows),
        previous_reward=pad_rows(
            [np.concatenate([[np.float32(w.previous_reward)], w.reward]) for w in windows], rows
        ),
        previous_reset=pad_rows(
            [np.concatenate([[w.previous_reset], w.reset]) for w in windows], rows
        ),
        step=pad_rows([_step_numbers(window) for window in windows], rows),
        instruction=torch.from_numpy(
            np.stack([encode_instruction(w.record.instruction, most_goals) for w in windows])
        ),
        progress=pad_rows([window.progress.astype(np.int64) for window in windows], rows),
    )


def pad_rows(columns: Sequence[Array], rows: int) -> Tensor:
    """`[batch, rows, ...]`: each column followed by zeros."""
    batch = np.zeros((len(columns), rows, *columns[0].shape[1:]), columns[0].dtype)
    for row, column in zip(batch, columns, strict=True):
        row[: len(column)] = column
    return torch.from_numpy(batch)


def step_inputs(
    observations: Sequence[Leaves],
    previous_actions: Sequence[Leaves],
    previous_reward: Sequence[float],
    previous_reset: Sequence[bool],
    steps: Sequence[int],
    instructions: Sequence[Array],
    progress: Sequence[int],
) -> PolicyInputs:
    """The inputs of one step in several episodes, `time` = 1."""
    step = torch.tensor(steps, dtype=torch.int64)[:, None]
    return PolicyInputs(
        observation={
            path: torch.from_numpy(np.stack([row[path] for row in observations])[:, None])
            for path in observations[0]
        },
        previous_action={
            path: torch.from_numpy(np.stack([row[path] for row in previous_actions])[:, None])
            for path in previous_actions[0]
        },
        has_previous=step > 0,
        previous_reward=torch.tensor(previous_reward, dtype=torch.float32)[:, None],
        previous_reset=torch.tensor(previous_reset)[:, None],
        step=step,
        instruction=torch.from_numpy(np.stack(instructions)),
        progress=torch.tensor(progress, dtype=torch.int64)[:, None],
    )


def _step_numbers(window: Window) -> Array:
    return np.arange(window.start, window.start + window.length + 1)


def _previous_rows(window: Window, path: str) -> Array:
    rows = window.action[path]
    first = np.zeros((1, *rows.shape[1:]), rows.dtype)
    if window.previous_action is not None:
        first[0] = window.previous_action[path]
    return np.concatenate([first, rows])
