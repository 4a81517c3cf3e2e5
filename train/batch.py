"""A batch of windows as tensors: what the update needs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from retold.policy.inputs import PolicyInputs, pad_rows, stack_windows
from retold.schemas.episode import Window


@dataclass(frozen=True, kw_only=True)
class Batch:
    """`rows` = the longest window's transitions + 1; the last row of each only bootstraps."""

    inputs: PolicyInputs
    """`[batch, rows]`"""
    lengths: tuple[int, ...]
    """Transitions of each window, or of each part of one."""
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
    parts: tuple[int, ...] = ()
    """Parts, one after the other, of each window over several episodes; none: windows are whole."""


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


def _gives_loss(window: Window, burn_in: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.arange(window.length) >= (burn_in if window.start else 0)
