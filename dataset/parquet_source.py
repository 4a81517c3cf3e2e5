"""Reading Parquet tables of steps or episodes: those of `retold export`, and others alike.

A table of steps needs the columns `episode_id`, `observation`, `action`, `reward` and `terminated`, its
rows in order; a table of episodes holds lists of them. The observation after the last transition is a
row of its own, whose reward is null. Where it is missing, the last transition is left out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from retold.dataset.foreign_conversion import to_foreign
from retold.dataset.foreign_episode import ForeignEpisode
from retold.dataset.foreign_files import hash_files, reading
from retold.dataset.parquet_columns import decode_column, decode_rows, split_column
from retold.dataset.parquet_export import FLAGS, RECORD_FIELDS, SCHEMA_KEY
from retold.dataset.parquet_spaces import infer_space
from retold.dataset.table import record_from_row
from retold.schemas.dataset_schema import IMPORTED, DatasetSchema, TaskDescription
from retold.schemas.episode import Episode, EpisodeRecord, Leaves
from retold.schemas.errors import DatasetError
from retold.schemas.spaces import Space

_NEEDED = ("observation", "action", "reward")
_OPTIONAL = ("info", "initial_info", "source", "column")


class ParquetSource:
    """A Parquet file, or a folder of them in the order of their names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = (path,) if path.is_file() else tuple(sorted(path.rglob("*.parquet")))
        if not self.files:
            raise DatasetError(
                f"{path}: there is no Parquet file here. Give a file, or a folder of *.parquet."
            )
        with reading(self.files[0], "a Parquet file"):
            self._arrow = pq.read_schema(self.files[0])
        for name in _NEEDED:
            if name not in self._arrow.names:
                raise DatasetError(
                    f"{self.files[0]}: column {name!r} is missing. A table of steps has episode_id, "
                    f"observation, action, reward and terminated."
                )
        about: Mapping[bytes, bytes] = self._arrow.metadata or {}
        with reading(self.files[0], "the schema in its metadata"):
            self._schema = (
                DatasetSchema.from_json(json.loads(about[SCHEMA_KEY]))
                if SCHEMA_KEY in about
                else None
            )
        reward = self._arrow.field("reward").type
        self._is_steps = not (pa.types.is_list(reward) or pa.types.is_large_list(reward))
        if self._is_steps and not {"episode_id", "terminated"} <= set(self._arrow.names):
            raise DatasetError(
                f"{self.files[0]}: column 'episode_id' or 'terminated' is missing, so nobody can tell "
                f"where an episode ends. Add them."
            )
        self.left_out = self._find_left_out()

    @property
    def sha256(self) -> str:
        """Of the files."""
        return hash_files(self.path, self.files)

    @cached_property
    def spaces(self) -> tuple[Space, Space]:
        """Those that were exported, or inferred from the types of the columns."""
        if self._schema is not None:
            return self._schema.observation_space, self._schema.action_space
        with reading(self.path, "Parquet columns"):
            observation, action = (
                infer_space(self.files, name, is_steps=self._is_steps)
                for name in ("observation", "action")
            )
            return observation, action

    def task(self, horizon: int) -> TaskDescription:
        """The exported task if it had been imported before; otherwise what its name was."""
        tasks = () if self._schema is None else self._schema.tasks
        if tasks and tasks[0].is_imported:
            return tasks[0]
        kwargs: dict[str, Any] = {"format": "parquet"}
        if tasks:
            kwargs |= {"task": tasks[0].name, "kwargs": dict(tasks[0].kwargs)}
        return TaskDescription(
            name=tasks[0].name if tasks else self.path.stem,
            kwargs=kwargs,
            code_version=IMPORTED,
            limit_is=tasks[0].limit_is if tasks else "truncation",
            horizon=max([horizon, *(task.horizon for task in tasks)]),
        )

    def episodes(self) -> Iterator[ForeignEpisode | None]:
        """The episodes in order; None for one without a whole transition."""
        for number, (row, steps) in enumerate(self._tables()):
            where = f"{self.path}: episode {number}"
            with reading(where, "Parquet columns"):
                yield self._read(where, row, steps)

    def _tables(self) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
        """For each episode its scalar columns by name, and its columns of steps."""
        with reading(self.path, "a Parquet file"):
            if not self._is_steps:
                for file in self.files:
                    yield from _episode_rows(file)
                return
            pieces: list[pa.Table] = []
            for file in self.files:
                for batch in pq.ParquetFile(file).iter_batches(batch_size=16_384):
                    for part in _split_batch(pa.Table.from_batches([batch])):
                        if pieces and _id_of(pieces[-1]) != _id_of(part):
                            yield _join_steps(pieces)
                            pieces = []
                        pieces.append(part)
            if pieces:
                yield _join_steps(pieces)

    def _read(
        self, where: str, row: Mapping[str, Any], steps: Mapping[str, Any]
    ) -> ForeignEpisode | None:
        reward, has_reward = decode_rows(steps["reward"])
        length = int(has_reward.sum())
        has_final = length < len(reward)
        if has_final and (length != len(reward) - 1 or has_reward[-1]):
            step = int(np.argmin(has_reward))
            raise ValueError(f"the reward of step {step} is null, which only the last row's may be")
        length -= not has_final
        if length < 1:
            return None
        flags = {name: _flag_rows(steps, row, name, length) for name in FLAGS}
        if not has_final:
            flags["truncated"][-1] = not flags["terminated"][-1]
        record = self._record(row, length, reward, flags)
        info, present = _decode_optional(steps, length)
        episode = Episode(
            record=record,
            observation=decode_column(steps["observation"].slice(0, length + 1), "observation"),
            action=decode_column(steps["action"].slice(0, length), "action"),
            reward=reward[:length],
            terminated=flags["terminated"],
            truncated=flags["truncated"],
            environment_terminated=flags["environment_terminated"],
            reset=flags["reset"],
            event_step=np.zeros(0, np.uint32),
            event_goal=np.zeros(0, np.uint32),
            info=info,
            info_present=present,
        )
        foreign = to_foreign(episode, where)
        return foreign if has_final else replace(foreign, notes={**foreign.notes, "last": {}})

    def _record(
        self, row: Mapping[str, Any], length: int, reward: Any, flags: Mapping[str, Any]
    ) -> EpisodeRecord:
        if self._schema is not None and set(RECORD_FIELDS) <= set(row):
            return record_from_row(row)
        seed = row.get("seed")
        return EpisodeRecord(
            episode_id="",
            task=0,
            length=length,
            episode_return=float(np.sum(reward[:length], dtype=np.float64)),
            terminated=bool(flags["terminated"][-1]),
            truncated=bool(flags["truncated"][-1]),
            environment_terminated=bool(flags["terminated"][-1]),
            seed=seed if isinstance(seed, int) else None,
        )

    def _find_left_out(self) -> tuple[str, ...]:
        known = {*_NEEDED, *_OPTIONAL, *FLAGS, "episode_id", "episode", "step", "seed"}
        if self._schema is None:
            return tuple(name for name in self._arrow.names if name not in known)
        is_imported = all(task.is_imported for task in self._schema.tasks)
        return () if is_imported else ("goal events", "instructions", "soft resets", "policies")


def _flag_rows(steps: Mapping[str, Any], row: Mapping[str, Any], name: str, length: int) -> Any:
    """`[length]`: a flag's column, or its value at the last transition where it is one."""
    if name in steps:
        rows, present = decode_rows(steps[name])
        if not present[:length].all():
            raise ValueError(f"{name!r} is null at step {int(np.argmin(present))}")
        return rows[:length]
    last = np.arange(length) == length - 1
    return last & bool(row.get(name, False))


def _decode_optional(steps: Mapping[str, Any], length: int) -> tuple[Leaves, Leaves]:
    info: Leaves = {}
    present: Leaves = {}
    for name in _OPTIONAL:
        if name in steps:
            for path, column in split_column(steps[name].slice(0, length), name).items():
                info[path], present[path] = decode_rows(column)
    return info, present


def _split_batch(batch: pa.Table) -> Iterator[pa.Table]:
    """Runs of one episode."""
    ids = batch["episode_id"].to_numpy()
    stops = [*(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
    start = 0
    for stop in stops:
        yield batch.slice(start, stop - start)
        start = stop


def _id_of(part: pa.Table) -> Any:
    return part["episode_id"][0].as_py()


def _join_steps(pieces: list[pa.Table]) -> tuple[Mapping[str, Any], dict[str, Any]]:
    table = pa.concat_tables(pieces).combine_chunks()
    per_step = {*_NEEDED, *_OPTIONAL, *FLAGS}
    scalars = table.select([name for name in table.column_names if name not in per_step])
    row: dict[str, Any] = scalars.slice(0, 1).to_pylist()[0]
    steps = {name: _one_chunk(table[name]) for name in table.column_names if name in per_step}
    for name in ("terminated", "truncated", "environment_terminated"):
        if name in steps and "reward" in steps:
            valid = steps[name].drop_null()
            row.setdefault(name, bool(len(valid) and valid[-1].as_py()))
    return row, steps


def _episode_rows(file: Path) -> Iterator[tuple[Mapping[str, Any], dict[str, Any]]]:
    names = [*_NEEDED, *_OPTIONAL, "reset", "events"]
    for batch in pq.ParquetFile(file).iter_batches(batch_size=64):
        table = pa.Table.from_batches([batch])
        lists = [name for name in names if name in table.column_names]
        rows = table.drop_columns(lists).to_pylist()
        for number, row in enumerate(rows):
            steps = {name: _one_chunk(table[name].slice(number, 1)).flatten() for name in lists}
            yield row, steps


def _one_chunk(column: Any) -> Any:
    chunk = column.combine_chunks()
    return chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk
