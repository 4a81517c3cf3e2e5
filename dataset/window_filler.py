"""Filling batches with windows of one dataset; variants are read through their sources alike."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retold.dataset.chunk_cache import ChunkCache
from retold.dataset.episode_columns import format_id
from retold.dataset.reader import DatasetReader
from retold.dataset.sources import explain_dangling
from retold.dataset.step_store import Span, StepStore
from retold.dataset.window_batch import WindowBatch
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import DatasetError

Rows = NDArray[np.int64]


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
        self._columns = reader.columns
        self._is_variant = self._columns.source >= 0
        self._has_variants = bool(self._is_variant.any())
        self._has_raw = not bool(self._is_variant.all())
        # Store 0 is the dataset's own, store k that of its (k-1)th source.
        readers = [reader, *map(reader.source_reader, self._columns.source_ids)]
        self._store = np.where(self._is_variant, self._columns.source + 1, 0)
        self._first_row = self._columns.first_row.copy()
        for number, source in enumerate(readers[1:]):
            _locate_variants(reader, source, number, self._first_row)
        budgets = _share_budget(resident_bytes, [r.raw_steps for r in readers])
        self._stores = [
            StepStore(one, resident_bytes=budget, cache=cache, pool=pool)
            for one, budget in zip(readers, budgets, strict=True)
        ]
        self._schemas = [one.schema if one.shards else None for one in readers]

    def fill(self, batch: WindowBatch, members: Rows) -> None:
        """Read the windows that the batch names at `members`, all of this dataset."""
        stores = self._store[batch.row[members]]
        if len(self._stores) == 1:
            groups = [(0, members)]
        else:
            groups = [(n, members[stores == n]) for n in np.unique(stores).tolist()]
        for number, places in groups:
            schema = self._schemas[number]
            assert schema is not None
            windows = self._place(batch, places)
            _read_arrays(self._stores[number], schema, batch, windows)
            _read_scalars(self._stores[number], schema, batch, windows)
            self._derive(self._stores[number], batch, windows)

    def _place(self, batch: WindowBatch, members: Rows) -> "_Windows":
        start, length = batch.start[members], batch.length[members]
        first = self._first_row[batch.row[members]] + start
        step = np.arange(batch.window_length + 1)
        is_real = None
        if len(length) and (int(length.min()) < batch.window_length or not start.all()):
            is_real = step <= length[:, None]
            is_real[start == 0, 0] = False
        return _Windows(
            members=members,
            first=first,
            start=start,
            length=length,
            before=np.maximum(first[:, None] - 1 + step, 0),
            is_real=is_real,
            is_all=len(members) == batch.size,
        )

    def _derive(self, store: StepStore, batch: WindowBatch, windows: "_Windows") -> None:
        """Flags, progress and the rewards of variants, from the episode columns."""
        members, start, rows = windows.members, windows.start, batch.row[windows.members]
        most = batch.window_length
        is_variant = self._is_variant[rows] if self._has_variants else np.zeros(len(rows), bool)
        reward = np.zeros((len(rows), most + 1), np.float32)
        if self._has_raw and not is_variant.all():
            reward = windows.gather(store, "reward").astype(np.float32, copy=False)
            reward[is_variant] = 0.0
        gained = np.zeros((len(rows), most + 1), np.int64)
        before = np.zeros(len(rows), np.int64)
        if len(self._columns.completed.values):
            step, owner = self._columns.completed.gather(rows)
            place = step - start[owner] + 1  # the row of `progress` that counts it first
            early = place < 1
            np.add.at(before, owner[early], 1)
            inside = ~early & (place <= windows.length[owner])
            gained[owner[inside], place[inside]] = 1
            mine = is_variant[owner] & (place >= 0) & (place <= windows.length[owner])
            reward[owner[mine], place[mine]] = 1.0
        gained[:, 0] = before
        progress = np.cumsum(gained, axis=1)
        if windows.is_real is not None:
            progress[np.arange(most + 1) > windows.length[:, None]] = 0
        batch.previous_reward[members] = reward
        batch.progress[members] = progress
        end = windows.length - 1
        is_last = start + windows.length == self._columns.length[rows]
        terminated = self._columns.terminated[rows]
        batch.terminated[members] = False
        batch.truncated[members] = False
        batch.terminated[members, end] = is_last & terminated
        batch.truncated[members, end] = is_last & ~terminated


@dataclass(frozen=True, kw_only=True)
class _Windows:
    """Windows of one store, `[windows]` each."""

    members: Rows
    """Their places in the batch."""
    first: Rows
    """Row of the store that holds their first transition."""
    start: Rows
    length: Rows
    before: Rows
    """`[windows, time + 1]`: the row before each row."""
    is_real: NDArray[np.bool_] | None
    """`[windows, time + 1]`: rows before which something was; None if all are."""
    is_all: bool
    """Whether they are the whole batch, in order."""

    def gather(self, store: StepStore, path: str) -> NDArray[np.generic]:
        """`[windows, time + 1]`: what a scalar leaf was before each row, zero where nothing was."""
        start = np.maximum(self.first - 1, 0)
        start = np.where(self.start > 0, start, self.first)
        values = store.gather(path, self.before, start, self.first + self.length - 1)
        if self.is_real is not None:
            values[~self.is_real] = 0
        return values


def _read_arrays(
    store: StepStore, schema: DatasetSchema, batch: WindowBatch, windows: _Windows
) -> None:
    """Leaves that are decoded: observations, and actions that are no single number."""
    places = list(
        zip(
            windows.members.tolist(),
            windows.first.tolist(),
            windows.start.tolist(),
            windows.length.tolist(),
            strict=True,
        )
    )
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
            batch.previous_action[leaf.path][windows.members] = windows.gather(store, leaf.path)
    if store.is_zero("reset"):
        batch.previous_reset[windows.members] = False
    else:
        batch.previous_reset[windows.members] = windows.gather(store, "reset")
    step = np.arange(batch.window_length + 1)
    for leaf in schema.observation_leaves:
        if not leaf.shape and not leaf.is_ragged:
            rows = windows.first[:, None] + np.minimum(step, windows.length[:, None])
            last = windows.first + windows.length
            values = store.gather(leaf.path, rows, windows.first, last)
            values[step > windows.length[:, None]] = 0
            batch.observation[leaf.path][windows.members] = values


def _locate_variants(
    reader: DatasetReader, source: DatasetReader, number: int, first_row: Rows
) -> None:
    """Fill in where the arrays of the variants of one source begin."""
    columns = reader.columns
    mine = np.flatnonzero(columns.source == number)
    wanted = columns.source_episode_id[mine]
    rows = source.columns.rows_of(wanted)
    first = np.where(rows >= 0, source.columns.first_row[rows], -1) if len(source) else rows
    if (first < 0).any():
        place = int(np.argmax(first < 0))
        raise DatasetError(
            explain_dangling(
                reader.path,
                format_id(columns.episode_id[mine[place]]),
                format_id(wanted[place]),
                source.path,
                source.dataset_id,
            )
        )
    first_row[mine] = first


def _share_budget(budget_bytes: int, steps: list[int]) -> list[int]:
    """A budget, shared out in proportion to the steps of each store."""
    return [budget_bytes * count // max(1, sum(steps)) for count in steps]
