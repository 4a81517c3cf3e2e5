"""A batch of windows as tensors: what the update needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retold.dataset.sampler import WindowSampler
from retold.dataset.window_batch import WindowBatch
from retold.dataset.window_draws import Draw
from retold.policy.inputs import PolicyInputs, encode_instruction, pad_rows, stack_windows
from retold.schemas.episode import Window


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`rows` = the longest window's transitions + 1; the last row of each only bootstraps."""

    inputs: PolicyInputs
    """`[batch, rows]`"""
    lengths: tuple[int, ...]
    """Transitions of each window."""
    action: Tensor
    """`[batch, rows - 1, ...]`, as stored."""
    reward: Tensor
    """`[batch, rows - 1]`, raw."""
    terminated: Tensor
    """`[batch, rows - 1]`, bool."""
    is_valid: Tensor
    """`[batch, rows - 1]`, bool: transitions that give a loss."""
    numbers: tuple[int, ...] = ()
    """Number of each window among those of its update, whichever process works on it."""


def make_batch(windows: Sequence[Window], *, most_goals: int, burn_in: int) -> Batch:
    """The windows side by side.

    Args:
        windows: of any lengths.
        most_goals: the policy's capacity for goals.
        burn_in: transitions without loss at the start of a window that does not start its episode.
    """
    rows = max(window.length for window in windows)
    (path,) = windows[0].action
    return Batch(
        inputs=stack_windows(windows, most_goals),
        lengths=tuple(window.length for window in windows),
        numbers=tuple(range(len(windows))),
        action=pad_rows([window.action[path] for window in windows], rows),
        reward=pad_rows([window.reward for window in windows], rows),
        terminated=pad_rows([window.terminated for window in windows], rows),
        is_valid=pad_rows([_gives_loss(window, burn_in) for window in windows], rows),
    )


def read_batch(
    sampler: WindowSampler,
    windows: WindowBatch,
    draw: Draw,
    numbers: Sequence[int],
    *,
    most_goals: int,
    burn_in: int,
) -> Batch:
    """Chosen windows as tensors of their own: what `make_batch` makes of them, faster.

    Args:
        sampler: what reads.
        windows: arrays of `sampler.make_batch` for as many windows, used again for every batch.
        draw: the windows.
        numbers: of each window among those of its update.
        most_goals: the policy's capacity for goals.
        burn_in: transitions without loss at the start of a window that does not start its episode.
    """
    sampler.fill(windows, draw)
    rows = int(windows.length.max())
    (path,) = windows.action
    transition = np.arange(rows)
    is_late = transition >= np.where(windows.start > 0, burn_in, 0)[:, None]
    real = transition < windows.length[:, None]
    return Batch(
        inputs=_inputs_of(windows, rows + 1, _instructions(sampler, windows, most_goals)),
        lengths=tuple(windows.length.tolist()),
        numbers=tuple(numbers),
        action=_copy(windows.action[path][:, :rows]),
        reward=_copy(windows.reward[:, :rows]),
        terminated=_copy(windows.terminated[:, :rows]),
        is_valid=_copy(is_late & real),
    )


def _inputs_of(windows: WindowBatch, rows: int, instruction: Tensor) -> PolicyInputs:
    row = np.arange(rows)
    is_real = row <= windows.length[:, None]
    step = np.where(is_real, windows.start[:, None] + row, 0)
    return PolicyInputs(
        observation={path: _copy(all_[:, :rows]) for path, all_ in windows.observation.items()},
        previous_action={
            path: _copy(all_[:, :rows]) for path, all_ in windows.previous_action.items()
        },
        has_previous=_copy(is_real & (step > 0)),
        previous_reward=_copy(windows.previous_reward[:, :rows]),
        previous_reset=_copy(windows.previous_reset[:, :rows]),
        step=_copy(step),
        instruction=instruction,
        progress=_copy(windows.progress[:, :rows]),
    )


def _instructions(sampler: WindowSampler, windows: WindowBatch, most_goals: int) -> Tensor:
    places = zip(windows.dataset.tolist(), windows.row.tolist(), strict=True)
    goals = [sampler.columns(dataset).instruction.of(row).tolist() for dataset, row in places]
    return torch.from_numpy(np.stack([encode_instruction(one, most_goals) for one in goals]))


def _copy(rows: NDArray[Any]) -> Tensor:
    """A tensor that the next draw into the same arrays leaves alone."""
    return torch.from_numpy(rows.copy())


def _gives_loss(window: Window, burn_in: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.arange(window.length) >= (burn_in if window.start else 0)
