"""The goal histories of one raw shard, a batch of episodes at a time; no observation is read."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.shard_reader import ShardReader
from retold.relabel.history import GoalHistory, pad_goals
from retold.schemas.event_index import EventIndex

_BATCH_EVENTS = 262_144
"""Most events of a batch, unless one episode has more: large enough that calls cost little."""
_BATCH_EPISODES = 1024


@dataclass(frozen=True, kw_only=True)
class EpisodeBatch:
    """Some episodes of a shard that belong to one task."""

    rows: NDArray[np.int64]
    """`[episodes]`: their numbers in the shard."""
    task: int
    history: GoalHistory


def read_batches(shard: ShardReader, rows: NDArray[np.int64]) -> Iterator[EpisodeBatch]:
    """The chosen episodes of a shard, in order, task by task.

    Args:
        shard: a raw shard.
        rows: `[episodes]`, rising: which of its episodes.
    """
    if not len(rows):
        return
    ranges = shard.event_ranges
    step, goal = shard.read_events(0, int(ranges[-1, 1]))
    tasks = column(shard.table, "task")
    columns = {name: ragged_column(shard.table, name) for name in _RAGGED}
    lengths = column(shard.table, "length").astype(np.int64)
    for task in np.unique(tasks[rows]).tolist():
        vocabulary = shard.schema.tasks[task].vocabulary
        if vocabulary is None:
            continue
        chosen = rows[tasks[rows] == task]
        for batch in _split(chosen, ranges[:, 1] - ranges[:, 0]):
            places, offset = _gather(ranges[batch, 0], ranges[batch, 1] - ranges[batch, 0])
            instruction = _take(columns["instruction"], batch)
            width = max(int(np.diff(instruction[1]).max(initial=0)), 1)
            initial_goal, initial_offset = _take(columns["initial_goals"], batch)
            yield EpisodeBatch(
                rows=batch,
                task=task,
                history=GoalHistory(
                    index=EventIndex(
                        offset=offset,
                        step=step[places].astype(np.int64),
                        goal=goal[places].astype(np.int64),
                        goals=vocabulary.size,
                    ),
                    length=lengths[batch],
                    instruction=pad_goals(*instruction, width),
                    completed=pad_goals(*_take(columns["completed"], batch), width),
                    is_state=vocabulary.is_state,
                    initial_episode=np.repeat(np.arange(len(batch)), np.diff(initial_offset)),
                    initial_goal=initial_goal,
                ),
            )


def column(table: pa.Table, name: str) -> NDArray[np.generic]:
    """`[episodes]`: a column without nulls."""
    values: NDArray[np.generic] = table[name].to_numpy()
    return values


def ragged_column(table: pa.Table, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Values `[all]` and offsets `[episodes + 1]` of a column of lists; null is an empty list."""
    lists = table[name].combine_chunks()
    if isinstance(lists, pa.ChunkedArray):
        lists = pa.concat_arrays(lists.chunks) if lists.num_chunks else pa.array([], lists.type)
    counts = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = lists.flatten().to_numpy(zero_copy_only=False).astype(np.int64)
    return values, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


_RAGGED = ("instruction", "completed", "initial_goals")


def _split(rows: NDArray[np.int64], events: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Runs of rows whose events fit a batch."""
    total, first = np.cumsum(events[rows]), 0
    while first < len(rows):
        before = total[first - 1] if first else 0
        last = int(np.searchsorted(total, before + _BATCH_EVENTS, side="right"))
        last = min(max(last, first + 1), first + _BATCH_EPISODES)
        yield rows[first:last]
        first = last


def _gather(
    start: NDArray[np.int64], count: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of ragged runs one after the other, and where each run begins and the last ends."""
    offset = np.concatenate([np.zeros(1, np.int64), np.cumsum(count)])
    return np.arange(offset[-1]) + np.repeat(start - offset[:-1], count), offset


def _take(
    ragged: tuple[NDArray[np.int64], NDArray[np.int64]], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    values, offset = ragged
    places, taken = _gather(offset[rows], offset[rows + 1] - offset[rows])
    return values[places], taken
