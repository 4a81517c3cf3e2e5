"""Chosen windows as tensors: what `make_batch` makes of them, faster, and what objectives add."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from retold.dataset.episode_columns import UNKNOWN, EpisodeColumns
from retold.dataset.episode_histories import WindowParts
from retold.dataset.sampler import WindowSampler
from retold.dataset.window_batch import WindowBatch
from retold.dataset.window_draws import Draw
from retold.policy.architecture import Objective
from retold.policy.inputs import PolicyInputs, encode_instruction
from retold.train.batch import Batch


class BatchReader:
    """Reads windows that a sampler chose, for one objective."""

    def __init__(
        self,
        sampler: WindowSampler,
        columns: Sequence[EpisodeColumns],
        *,
        burn_in: int,
        objective: Objective = "actor-critic",
    ) -> None:
        """Know the episodes.

        Args:
            sampler: what reads.
            columns: episodes of each dataset of the mixture.
            burn_in: transitions without loss at the start of a window that does not start its episode.
            objective: `dt` sees returns to go, `gcsl` learns from what led to goals alone.
        """
        self._sampler = sampler
        self._columns = tuple(columns)
        self._burn_in = burn_in
        self._sees_return = objective == "dt"
        self._goal_steps: tuple[NDArray[np.int64], ...] | None = None
        if objective == "gcsl":
            self._goal_steps = tuple(map(steps_to_goals, columns))

    def read(
        self, windows: WindowBatch, draw: Draw, numbers: Sequence[int], *, most_goals: int
    ) -> Batch:
        """Chosen windows as tensors of their own.

        Args:
            windows: arrays of `sampler.make_batch` for as many windows, used again for every batch.
            draw: the windows.
            numbers: of each window among those of its update.
            most_goals: the policy's capacity for goals.
        """
        self._sampler.fill(windows, draw)
        rows = int(windows.length.max())
        (path,) = windows.action
        return Batch(
            inputs=self._inputs(windows, draw, rows + 1, most_goals),
            lengths=tuple(windows.length.tolist()),
            numbers=tuple(numbers),
            action=_copy(windows.action[path][:, :rows]),
            reward=_copy(windows.reward[:, :rows]),
            terminated=_copy(windows.terminated[:, :rows]),
            is_valid=_copy(self._gives_loss(draw, rows)),
        )

    def read_parts(
        self, windows: WindowBatch, parts: WindowParts, numbers: Sequence[int], *, most_goals: int
    ) -> Batch:
        """Windows of histories as tensors, in which the end of an episode is that of an attempt.

        Args:
            windows: arrays for as many windows as there are parts.
            parts: windows of single episodes, in order.
            numbers: of each window of histories among those of its update.
            most_goals: the policy's capacity for goals.
        """
        batch = self.read(windows, parts.draw, numbers, most_goals=most_goals)
        inputs, rows = batch.inputs, batch.reward.shape[1]
        position = parts.position[:, None] + np.arange(rows + 1)
        first = np.where(parts.position > parts.before, self._burn_in, 0) - parts.before
        _join(batch, parts)
        return replace(
            batch,
            inputs=replace(inputs, position=torch.from_numpy(position)),
            is_valid=torch.from_numpy(self._gives_loss(parts.draw, rows, first)),
            parts=parts.counts,
        )

    def _gives_loss(
        self, draw: Draw, rows: int, first: NDArray[np.int64] | None = None
    ) -> NDArray[np.bool_]:
        """`[windows, rows]`: transitions to learn from, from the `first` of each window on."""
        transition = np.arange(rows)
        if first is None:
            first = np.where(draw.start > 0, self._burn_in, 0)
        end = draw.length
        if self._goal_steps is not None:
            whole = [self._goal_steps[dataset][row] for dataset, row in _places(draw)]
            end = np.minimum(end, np.array(whole, np.int64) - draw.start)
        gives_loss: NDArray[np.bool_] = transition >= first[:, None]
        return gives_loss & (transition < end[:, None])

    def _inputs(self, windows: WindowBatch, draw: Draw, rows: int, most_goals: int) -> PolicyInputs:
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
            instruction=self._instructions(draw, most_goals),
            progress=_copy(windows.progress[:, :rows]),
            return_to_go=self._returns_to_go(windows, draw, rows) if self._sees_return else None,
        )

    def _instructions(self, draw: Draw, most_goals: int) -> Tensor:
        goals = [
            self._columns[dataset].instruction.of(row).tolist() for dataset, row in _places(draw)
        ]
        return torch.from_numpy(np.stack([encode_instruction(one, most_goals) for one in goals]))

    def _returns_to_go(self, windows: WindowBatch, draw: Draw, rows: int) -> Tensor:
        """`[windows, rows]`: what each episode still earns from every row on."""
        whole = [self._columns[dataset].episode_return[row] for dataset, row in _places(draw)]
        left = np.array(whole) - self._sampler.rewards_before(draw)
        earned = np.zeros((len(draw), rows), np.float64)
        np.cumsum(windows.reward[:, : rows - 1], axis=1, out=earned[:, 1:])
        return torch.from_numpy((left[:, None] - earned).astype(np.float32))


def _join(batch: Batch, parts: WindowParts) -> None:
    """Let parts that follow another in their window go on from its last transition, in place."""
    is_first = np.zeros(len(batch.lengths), np.bool_)
    is_first[np.cumsum(parts.counts) - parts.counts] = True
    after = torch.from_numpy(np.flatnonzero(~is_first))
    before, last = after - 1, torch.tensor(batch.lengths)[after - 1] - 1
    inputs = batch.inputs
    (previous_action,) = inputs.previous_action.values()
    previous_action[after, 0] = batch.action[before, last]
    inputs.previous_reward[after, 0] = batch.reward[before, last]
    inputs.previous_reset[after, 0] = True
    inputs.has_previous[after, 0] = True
    batch.terminated[before, last] = False


def steps_to_goals(columns: EpisodeColumns) -> NDArray[np.int64]:
    """`[episodes]`: transitions up to the last goal of the instruction that was reached; 0 if none.

    Of goal-conditioned variants: up to the observation that shows the goal they want.
    """
    ends = columns.completed.ends
    has_reached = ends[1:] > ends[:-1]
    steps = np.zeros(len(columns.length), np.int64)
    steps[has_reached] = columns.completed.values[ends[1:][has_reached] - 1].astype(np.int64) + 1
    return np.where(columns.goal_row == UNKNOWN, steps, columns.goal_row)


def _places(draw: Draw) -> list[tuple[int, int]]:
    """Dataset and row of each window's episode."""
    return list(zip(draw.dataset.tolist(), draw.row.tolist(), strict=True))


def _copy(rows: NDArray[Any]) -> Tensor:
    """A tensor that the next draw into the same arrays leaves alone."""
    return torch.from_numpy(rows.copy())
