"""Filling batches with windows of one dataset; variants are read through their sources alike."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.chunk_cache import ChunkCache
from retold.dataset.episode_columns import UNKNOWN, format_id
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import explain_dangling
from retold.dataset.step_store import Span, StepStore
from retold.dataset.window_batch import WindowBatch
from retold.schemas.dataset_schema import ACHIEVED_GOAL, DESIRED_GOAL, DatasetSchema
from retold.schemas.errors import DatasetError

Rows = NDArray[np.int64]
Reward = NDArray[np.float32]


class WindowFiller:
    """Knows for each episode of a snapshot which store holds its arrays, and where they begin."""

    def __init__(
        self,
        reader: DatasetReader,
        *,
        resident_bytes: int,
        cache: ChunkCache | None,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self._reader = reader
        self._columns = reader.columns
        self._has_goals = bool((reader.columns.goal_row != UNKNOWN).any())
        self._is_variant = self._columns.source >= 0
        self._has_variants = bool(self._is_variant.any())
        # Store 0 is the dataset's own, store k that of its (k-1)th source.
        readers = [reader, *map(reader.source_reader, self._columns.source_ids)]
        self._store = np.where(self._is_variant, self._columns.source + 1, 0)
        self._first_row = self._columns.first_row.copy()
        for number, source in enumerate(readers[1:]):
            mine, rows = find_source_rows(reader, source, number)
            self._first_row[mine] = source.columns.first_row[rows]
        budgets = _share_budget(resident_bytes, [r.raw_steps for r in readers])
        self._stores = [
            StepStore(one, resident_bytes=budget, cache=cache, pool=pool)
            for one, budget in zip(readers, budgets, strict=True)
        ]
        self._schemas = [one.schema if one.shards else None for one in readers]

    def fill(self, batch: WindowBatch, members: Rows) -> None:
        """Read the windows that the batch names at `members`, all of this dataset."""
        groups = [(0, members)]
        if len(self._stores) > 1:
            stores = self._store[batch.row[members]]
            groups = [(n, members[stores == n]) for n in np.unique(stores).tolist()]
        for number, places in groups:
            schema, store = self._schemas[number], self._stores[number]
            assert schema is not None
            windows = _Windows(batch, places, self._first_row[batch.row[places]])
            _read_arrays(store, schema, batch, windows)
            _read_scalars(store, schema, batch, windows)
            batch.previous_reward[windows.where] = self._earn(store, batch, windows)
            self._set_flags(batch, windows)
            if self._has_goals:
                self._set_goals(store, batch, windows)

    def sum_rewards(self, row: int, stop: int) -> float:
        """The sum of an episode's rewards before transition `stop`, stored or derived."""
        if self._columns.goal_row[row] != UNKNOWN:
            return float(self._reader.read_goal_reward(row, 0, stop).sum(dtype=np.float64))
        if self._is_variant[row]:
            return float((self._columns.completed.of(row) < stop).sum())
        rows = self._first_row[row] + np.arange(stop)
        store = self._stores[0]
        return float(store.gather("reward", rows[None], rows[:1], rows[-1:]).sum(dtype=np.float64))

    def _set_goals(self, store: StepStore, batch: WindowBatch, windows: "_Windows") -> None:
        """Desired goals and stored rewards of variants that have a goal of their own."""
        rows = batch.row[windows.members]
        for place in np.flatnonzero(self._columns.goal_row[rows] != UNKNOWN).tolist():
            row, member = int(rows[place]), int(windows.members[place])
            start, length = int(windows.start[place]), int(windows.length[place])
            goal = int(self._first_row[row] + self._columns.goal_row[row])
            desired = batch.observation[DESIRED_GOAL][member]
            store.read(ACHIEVED_GOAL, [(goal, goal + 1, desired[:1])])
            desired[1 : length + 1] = desired[0]
            skip = 0 if start else 1
            reward = batch.previous_reward[member]
            reward[:] = 0
            reward[skip : length + 1] = self._reader.read_goal_reward(
                row, start - 1 + skip, start + length
            )

    def _earn(self, store: StepStore, batch: WindowBatch, windows: "_Windows") -> Reward:
        """`[windows, time + 1]`: rewards, stored or derived; sets the batch's progress."""
        rows = batch.row[windows.members]
        if self._has_variants:
            is_variant = self._is_variant[rows]
            reward: Reward = np.zeros(windows.before.shape, np.float32)
            if not is_variant.all():
                reward = windows.gather(store, "reward")
                reward[is_variant] = 0.0
        else:
            reward = windows.gather(store, "reward")
        if not len(self._columns.completed.values):
            batch.progress[windows.where] = 0
            return reward
        step, owner = self._columns.completed.gather(rows)
        place = step - windows.start[owner] + 1  # the row of `progress` that counts it first
        gained = np.zeros(windows.before.shape, np.int64)
        known = place <= windows.length[owner]
        np.add.at(gained, (owner[known], np.maximum(place[known], 0)), 1)
        progress = np.cumsum(gained, axis=1)
        if self._has_variants:
            mine = is_variant[owner] & (place >= 0) & (place <= windows.length[owner])
            reward[owner[mine], place[mine]] = 1.0
        batch.progress[windows.where] = windows.clear(progress, is_state=True)
        return reward

    def _set_flags(self, batch: WindowBatch, windows: "_Windows") -> None:
        members, rows = windows.members, batch.row[windows.members]
        is_last = windows.start + windows.length == self._columns.length[rows]
        terminated = self._columns.terminated[rows]
        batch.terminated[windows.where] = False
        batch.truncated[windows.where] = False
        batch.terminated[members, windows.length - 1] = is_last & terminated
        batch.truncated[members, windows.length - 1] = is_last & ~terminated


def find_source_rows(
    reader: DatasetReader, source: DatasetReader, number: int
) -> tuple[Rows, Rows]:
    """Rows of the variants of one source, and the rows of their episodes in it, `[variants]` each.

    Args:
        reader: the dataset of the variants.
        source: what they refer to.
        number: the source's place in `EpisodeColumns.source_ids`.

    Raises:
        DatasetError: an episode is not live there.
    """
    columns = reader.columns
    mine = np.flatnonzero(columns.source == number)
    wanted = columns.source_episode_id[mine]
    rows = source.columns.rows_of(wanted)
    is_lost = rows < 0
    if len(source):
        is_lost |= source.columns.first_row[rows] < 0
    if is_lost.any():
        place = int(np.argmax(is_lost))
        raise DatasetError(
            explain_dangling(
                reader.path,
                format_id(columns.episode_id[mine[place]]),
                format_id(wanted[place]),
                source.path,
                source.dataset_id,
            )
        )
    return mine, rows


class _Windows:
    """Windows of one store, `[windows]` each."""

    def __init__(self, batch: WindowBatch, members: Rows, first_row: Rows) -> None:
        self.members = members
        """Their places in the batch."""
        is_whole = len(members) == batch.size
        self.where: Rows | slice = slice(None) if is_whole else members
        self.start: Rows = batch.start[self.where]
        self.length: Rows = batch.length[self.where]
        self.first: Rows = first_row + self.start
        """Row of the store that holds their first transition."""
        self.before: Rows = self.first[:, None] + np.arange(-1, batch.window_length)
        """`[windows, time + 1]`: the row of the store before each row."""
        self._fresh = np.flatnonzero(self.start == 0)
        self._ended: NDArray[np.bool_] | None = None
        """`[windows, time + 1]`: rows after a window's end; None if there are none."""
        if int(self.length.min()) < batch.window_length:
            self._ended = np.arange(batch.window_length + 1) > self.length[:, None]

    def gather(self, store: StepStore, path: str) -> NDArray[Any]:
        """`[windows, time + 1]`: what a scalar leaf was before each row, zero where nothing was."""
        start = self.first - (self.start > 0)
        return self.clear(store.gather(path, self.before, start, self.first + self.length - 1))

    def clear(self, values: NDArray[Any], *, is_state: bool = False) -> NDArray[Any]:
        """Set what lies after a window's end to zero, and what would lie before an episode's start.

        Args:
            values: `[windows, time + 1]`, changed in place.
            is_state: whether row t belongs to `observation[t]` itself, not to what went before.
        """
        if self._ended is not None:
            values[self._ended] = 0
        if not is_state and len(self._fresh):
            values[self._fresh, 0] = 0
        return values


def _read_arrays(
    store: StepStore, schema: DatasetSchema, batch: WindowBatch, windows: _Windows
) -> None:
    """Leaves that are decoded: observations, and actions that are no single number."""
    columns = (windows.members, windows.first, windows.start, windows.length)
    places = list(zip(*(column.tolist() for column in columns), strict=True))
    most = batch.window_length
    for leaf in schema.observation_leaves:
        out = batch.observation[leaf.path]
        if leaf.is_ragged or leaf.shape:
            spans: list[Span] = [(f, f + n + 1, out[m, : n + 1]) for m, f, _, n in places]
            store.read(leaf.path, spans)
            for m, _, _, n in places:
                if n < most:
                    out[m, n + 1 :] = "" if leaf.is_ragged else 0
    for leaf in schema.action_leaves:
        out = batch.previous_action[leaf.path]
        if leaf.is_ragged or leaf.shape:
            spans = [
                (f - (s > 0), f + n, out[m, 0 if s > 0 else 1 : n + 1]) for m, f, s, n in places
            ]
            store.read(leaf.path, spans)
            for m, _, s, n in places:
                if n < most:
                    out[m, n + 1 :] = "" if leaf.is_ragged else 0
                if s == 0:
                    out[m, 0] = "" if leaf.is_ragged else 0


def _read_scalars(
    store: StepStore, schema: DatasetSchema, batch: WindowBatch, windows: _Windows
) -> None:
    """Leaves of one number a step, soft resets among them."""
    for leaf in schema.action_leaves:
        if not leaf.shape and not leaf.is_ragged:
            batch.previous_action[leaf.path][windows.where] = windows.gather(store, leaf.path)
    is_zero = store.is_zero("reset")
    batch.previous_reset[windows.where] = False if is_zero else windows.gather(store, "reset")
    for leaf in schema.observation_leaves:
        if not leaf.shape and not leaf.is_ragged:
            last = windows.first + windows.length
            values = store.gather(leaf.path, windows.before + 1, windows.first, last)
            batch.observation[leaf.path][windows.where] = windows.clear(values, is_state=True)


def _share_budget(budget_bytes: int, steps: list[int]) -> list[int]:
    """A budget, shared out in proportion to the steps of each store."""
    return [budget_bytes * count // max(1, sum(steps)) for count in steps]
