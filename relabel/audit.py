"""The reward audit: every stored reward, flag and length, recomputed from goal events."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from retold.dataset.paths import DatasetPath
from retold.dataset.reader import DatasetReader
from retold.dataset.shard_reader import ShardReader
from retold.relabel.goal_audit import audit_goal_variants
from retold.relabel.history import pad_goals
from retold.relabel.source_shard import EpisodeBatch, column, ragged_column, read_batches
from retold.schemas.errors import RelabelError, RetoldError
from retold.schemas.event_index import EventIndex, count_present
from retold.schemas.findings import Finding
from retold.schemas.instruction import REWARD_VERSION

_TODO = "Retell or collect it again."


def audit_rewards(
    path: DatasetPath, sources: Mapping[str, DatasetPath] | None = None
) -> list[Finding]:
    """Everything in which a dataset's rewards differ from the instruction reward function.

    Args:
        path: the dataset, or a snapshot of it.
        sources: where datasets that variants refer to have moved, by dataset id.
    """
    with DatasetReader.open(path, sources=sources) as reader:
        return [
            finding
            for entry in reader.shards
            for finding in _audit_shard(reader, reader.shard_reader(entry.shard_id))
        ]


def _audit_shard(reader: DatasetReader, shard: ShardReader) -> Iterator[Finding]:
    tasks = column(shard.table, "task")
    unknown = [
        number
        for number in np.unique(tasks).tolist()
        if shard.schema.tasks[number].reward_version != REWARD_VERSION
    ]
    for number in unknown:
        task = shard.schema.tasks[number]
        yield Finding(
            where=f"{reader.path}: shard {shard.entry.shard_id}: task {task.name}",
            what=f"its reward version is {task.reward_version}; this retold knows {REWARD_VERSION}, "
            f"so the rewards of {int((tasks == number).sum())} episodes are unverifiable",
            todo="Upgrade with `pip install -U retold`.",
            severity="warning",
        )
    rows = np.flatnonzero(~np.isin(tasks, unknown))
    audit = _audit_variants if shard.entry.kind == "variant" else _audit_raw
    try:
        for row, fault in audit(reader, shard, rows):
            yield Finding(where=_where(reader, shard, row), what=fault, todo=_TODO)
    except RelabelError as error:
        yield Finding(
            where=f"{reader.path}: shard {shard.entry.shard_id}",
            what=f"its rewards are unverifiable: {str(error).rstrip('.')}",
            todo="Audit it where they can be computed.",
            severity="warning",
        )
    except RetoldError as error:
        yield Finding(
            where=f"{reader.path}: shard {shard.entry.shard_id}",
            what=str(error).rstrip("."),
            todo="Restore it, then audit again.",
        )


def _where(reader: DatasetReader, shard: ShardReader, row: int) -> str:
    number = reader.shard_rows(shard.entry.shard_id)[row]
    name = shard.table["episode_id"][row].as_py()
    return f"{reader.path}: shard {shard.entry.shard_id}: episode {name} (row {number})"


@dataclass(frozen=True, kw_only=True)
class _Expected:
    """What the reward function says of some episodes, next to what their rows say."""

    completed: NDArray[np.int64]
    """`[episodes, goals]`"""
    goals: NDArray[np.int64]
    """`[episodes]`: asked."""
    length: NDArray[np.int64]
    """`[episodes]`"""
    environment_terminated: NDArray[np.bool_]
    """`[episodes]`: at the last transition."""

    @property
    def is_complete(self) -> NDArray[np.bool_]:
        return np.equal(count_present(self.completed), self.goals)

    def row_faults(self, table: pa.Table, rows: NDArray[np.int64]) -> Iterator[tuple[int, str]]:
        """Rows of the episode table that say something else.

        Args:
            table: of the shard.
            rows: `[episodes]`: which of its rows these are.
        """
        terminated = self.is_complete & (self.goals > 0) | self.environment_terminated
        met = count_present(self.completed)
        expected: Mapping[str, NDArray[Any]] = {
            "length": self.length,
            "environment_terminated": self.environment_terminated,
            "terminated": terminated,
            "truncated": ~terminated,
            "success": self.is_complete,
            "episode_return": met.astype(np.float64),
        }
        part = table.take(rows)
        for name, values in expected.items():
            told = (
                part[name].fill_null(False).to_numpy() if name == "success" else column(part, name)
            )
            for place in np.flatnonzero(told != values).tolist():
                yield (
                    int(rows[place]),
                    f"its row says {name} is {told[place]}, its goal events say {values[place]}",
                )
        steps, offset = ragged_column(part, "completed")
        width = max(self.completed.shape[1], int(np.diff(offset).max(initial=0)))
        told = pad_goals(steps, offset, width)
        wrong = (told != _widen(self.completed, width)).any(1)
        for place in np.flatnonzero(wrong).tolist():
            yield (
                int(rows[place]),
                (
                    f"its row says its goals are met at {_listed(told[place])}, its goal events say "
                    f"{_listed(self.completed[place])}"
                ),
            )


def _audit_raw(
    reader: DatasetReader, shard: ShardReader, rows: NDArray[np.int64]
) -> Iterator[tuple[int, str]]:
    """Stored arrays and rows, against the episodes' own instructions."""
    lengths = column(shard.table, "length").astype(np.int64)
    stored = {
        name: shard.read_rows(name, 0, int((lengths + 1).sum()))
        for name in ("reward", "terminated", "truncated", "environment_terminated")
    }
    sums = np.add.reduceat(stored["reward"].astype(np.float64), shard.offsets)
    told = column(shard.table, "episode_return")
    for row in np.flatnonzero(sums != told).tolist():
        if row in rows:
            yield row, f"its row says return {told[row]}, its rewards sum to {sums[row]}"
    for batch in read_batches(shard, rows):
        is_asked = batch.history.goals_asked > 0
        expected = _own_outcome(batch, shard, stored["environment_terminated"])
        faults = (
            *expected.row_faults(shard.table, batch.rows),
            *_array_faults(expected, batch, shard, stored),
        )
        asked = set(batch.rows[is_asked].tolist())
        yield from (fault for fault in faults if fault[0] in asked)


def _own_outcome(batch: EpisodeBatch, shard: ShardReader, ended: NDArray[np.bool_]) -> _Expected:
    history = batch.history
    every = np.arange(history.episodes)
    completed = history.index.find_completed(every, history.instruction)
    last = completed[every, np.maximum(history.goals_asked - 1, 0)]
    is_complete = count_present(completed) == history.goals_asked
    return _Expected(
        completed=completed,
        goals=history.goals_asked,
        length=np.where(is_complete & (history.goals_asked > 0), last + 1, history.length),
        environment_terminated=ended[shard.offsets[batch.rows] + history.length - 1],
    )


def _array_faults(
    expected: _Expected,
    batch: EpisodeBatch,
    shard: ShardReader,
    stored: Mapping[str, NDArray[Any]],
) -> Iterator[tuple[int, str]]:
    """Reward and flags as arrays: ones at the steps at which goals are met, flags at the end."""
    offsets = shard.offsets[batch.rows]
    size = len(stored["reward"])
    arrays: dict[str, NDArray[Any]] = {
        "reward": np.zeros(size, np.float32),
        "terminated": np.zeros(size, np.bool_),
        "truncated": np.zeros(size, np.bool_),
    }
    row, goal = np.nonzero(expected.completed >= 0)
    arrays["reward"][offsets[row] + expected.completed[row, goal]] = 1.0
    terminated = expected.is_complete | expected.environment_terminated
    last = offsets + batch.history.length - 1
    arrays["terminated"][last] = terminated
    arrays["truncated"][last] = ~terminated
    for name, values in arrays.items():
        wrong = np.concatenate([np.zeros(1, np.int64), np.cumsum(values != stored[name])])
        counts = wrong[offsets + batch.history.length + 1] - wrong[offsets]
        for place in np.flatnonzero(counts).tolist():
            yield int(batch.rows[place]), f"its stored {name} is not what its goal events earn"


def _audit_variants(
    reader: DatasetReader, shard: ShardReader, rows: NDArray[np.int64]
) -> Iterator[tuple[int, str]]:
    """Rows of variants, against the events of their sources, or the goals that those achieved."""
    has_goal = np.asarray(pc.is_valid(shard.table["goal_row"]).to_numpy(), np.bool_)
    yield from audit_goal_variants(reader, shard, rows[has_goal[rows]])
    rows = rows[~has_goal[rows]]
    ids = shard.table["source_episode_id"].to_pylist()
    datasets = shard.table["source_dataset_id"].to_pylist()
    places: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for row in rows.tolist():
        source = reader.source_reader(datasets[row])
        source_row = source.find_id(ids[row])
        if source_row is None:
            yield (
                row,
                (
                    f"it refers to episode {ids[row]} of {source.path} (dataset {datasets[row]}), where "
                    f"it is not live"
                ),
            )
            continue
        holder, number = source.shard_of(source_row)
        places.setdefault((datasets[row], holder.entry.shard_id), []).append((row, number))
    for (dataset, shard_id), pairs in places.items():
        holder = reader.source_reader(dataset).shard_reader(shard_id)
        yield from _check_variants(shard, holder, np.array(pairs, np.int64))


def _check_variants(
    shard: ShardReader, source: ShardReader, pairs: NDArray[np.int64]
) -> Iterator[tuple[int, str]]:
    """Variants of one source shard. `pairs` `[variants, 2]`: their rows, and those of the sources."""
    pairs = pairs[np.argsort(pairs[:, 1], kind="stable")]
    goals, goal_offset = ragged_column(shard.table, "instruction")
    instruction = pad_goals(goals, goal_offset, max(int(np.diff(goal_offset).max(initial=0)), 1))
    for batch in read_batches(source, np.unique(pairs[:, 1])):
        first = np.searchsorted(pairs[:, 1], batch.rows[0])
        last = np.searchsorted(pairs[:, 1], batch.rows[-1], side="right")
        rows = pairs[first:last, 0]
        episode = np.searchsorted(batch.rows, pairs[first:last, 1])
        told = instruction[rows]
        expected = _outcome(batch.history.index, batch, source, episode, told)
        yield from expected.row_faults(shard.table, rows)
        width = max(told.shape[1], batch.history.instruction.shape[1])
        original = _widen(batch.history.instruction, width)[episode]
        for place in np.flatnonzero((_widen(told, width) == original).all(1)).tolist():
            yield int(rows[place]), "its instruction is the original's"


def _outcome(
    index: EventIndex,
    batch: EpisodeBatch,
    source: ShardReader,
    episode: NDArray[np.int64],
    told: NDArray[np.int64],
) -> _Expected:
    completed = index.find_completed(episode, told)
    goals = count_present(told)
    is_complete = count_present(completed) == goals
    last = completed[np.arange(len(told)), np.maximum(goals - 1, 0)]
    whole = batch.history.length[episode]
    length = np.where(is_complete & (goals > 0), last + 1, whole)
    ended = column(source.table, "environment_terminated")[batch.rows][episode]
    return _Expected(
        completed=completed,
        goals=goals,
        length=length,
        environment_terminated=np.asarray(ended & (length == whole), np.bool_),
    )


def _widen(table: NDArray[np.int64], width: int) -> NDArray[np.int64]:
    return np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=-1)


def _listed(steps: NDArray[np.int64]) -> str:
    return str(steps[steps >= 0].tolist())
