"""Reading a snapshot of a dataset: episodes, windows of them, and variants through their sources."""

import logging
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.array_cache import ArrayCache
from retold.dataset.episode_columns import EpisodeColumns, make_columns
from retold.dataset.log import CommitLog
from retold.dataset.outcomes import (
    Signals,
    goal_signals,
    record_outcome,
    stored_signals,
    variant_signals,
)
from retold.dataset.paths import DatasetPath, dataset_path
from retold.dataset.schema_file import read_schema
from retold.dataset.shard_files import fetch_ahead
from retold.dataset.shard_reader import ShardReader
from retold.dataset.snapshot_names import open_log, refuse_dropped
from retold.dataset.sources import explain_dangling, find_source
from retold.dataset.table import TABLE_SCHEMA, record_from_row
from retold.schemas.commit import ShardEntry, Snapshot
from retold.schemas.dataset_schema import ACHIEVED_GOAL, DESIRED_GOAL, DatasetSchema
from retold.schemas.episode import Episode, EpisodeRecord, Leaves, Window
from retold.schemas.errors import DatasetError, FormatError
from retold.schemas.instruction import Outcome

logger = logging.getLogger(__name__)


class DatasetReader:
    """A dataset as one commit left it. Rows are numbered over live shards in log order."""

    def __init__(
        self,
        log: CommitLog,
        snapshot: Snapshot,
        sources: Mapping[str, DatasetPath],
        *,
        shards: Sequence[ShardEntry] | None = None,
        piecewise: bool = False,
        known: Mapping[str, ShardReader] | None = None,
    ) -> None:
        """Read a snapshot.

        Args:
            log: the dataset's.
            snapshot: one of its.
            sources: where datasets that variants refer to have moved, by dataset id.
            shards: only these; all that are live if None.
            piecewise: read no column as a whole, so that damage costs the episodes it lies in.
            known: readers of shards that are open already, by id.
        """
        self.log = log
        self.path = log.path
        self.dataset_id = log.dataset_id
        self.snapshot = snapshot
        self.shards: tuple[ShardEntry, ...] = (
            log.live_shards(snapshot.number) if shards is None else tuple(shards)
        )
        names = dict.fromkeys(entry.schema for entry in self.shards)
        schemas = {name: read_schema(self.path, name) for name in names}
        known = known or {}
        self._shards = [
            known.get(entry.shard_id)
            or ShardReader(self.path, entry, schemas[entry.schema], piecewise=piecewise)
            for entry in self.shards
        ]
        self._schemas = schemas
        self._use_checkpoint()
        fetch_ahead([s for s in self._shards if "table" not in s.__dict__], ["episodes.parquet"])
        self._first_rows = np.cumsum([0, *(entry.episodes for entry in self.shards)]).tolist()
        self._shard_numbers = {entry.shard_id: n for n, entry in enumerate(self.shards)}
        self._source_paths = dict(sources)
        self._sources: dict[str, DatasetReader] = {}
        self._array_cache: ArrayCache | None = None

    @classmethod
    def open(
        cls,
        path: DatasetPath | str,
        *,
        snapshot: int | None = None,
        sources: Mapping[str, DatasetPath] | None = None,
        cache: Path | None = None,
    ) -> "DatasetReader":
        """Open a dataset at its head, or at commit `snapshot`.

        Args:
            path: the dataset's folder or URL; `@12` or `@tag` after it names a snapshot.
            snapshot: number of a commit; beats the path's.
            sources: where datasets that variants refer to have moved, by dataset id.
            cache: folder that `retold cache` filled: what it holds is mapped, not decoded.

        Raises:
            DatasetError: there is no dataset, nothing has been committed, or there is no cache.
        """
        log, chosen = open_log(dataset_path(path))
        if chosen is None:
            raise DatasetError(
                f"{path}: nothing has been committed to this dataset yet. Wait for its collector, "
                f"or run the command that fills it."
            )
        if snapshot is not None:
            chosen = log.snapshot(snapshot)
        refuse_dropped(log, chosen)
        reader = cls(log, chosen, sources or {})
        reader._use_cache(None if cache is None else ArrayCache.open(cache))
        return reader

    def follow(self) -> "DatasetReader":
        """The dataset and its sources as they are now; shards that were live are not read again."""
        known = {shard.entry.shard_id: shard for shard in self._shards}
        log = CommitLog.open(self.path)
        newest = DatasetReader(log, log.head() or self.snapshot, self._source_paths, known=known)
        newest._use_cache(self._array_cache)
        newest._sources = {name: source.follow() for name, source in self._sources.items()}
        return newest

    def _use_cache(self, cache: ArrayCache | None) -> None:
        """Look for decoded arrays there first; called before any is read."""
        self._array_cache = cache
        for shard in self._shards:
            shard.array_cache = cache

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapped files, sources included."""
        for source in self._sources.values():
            source.close()
        self._shards.clear()

    def __len__(self) -> int:
        return int(self._first_rows[-1])

    @property
    def schema(self) -> DatasetSchema:
        """The newest schema; all schemas of a dataset agree on the spaces."""
        if not self.shards:
            raise DatasetError(f"{self.path}: no episode is live. Collect some first.")
        return self._schemas[self.shards[-1].schema]

    @cached_property
    def table(self) -> pa.Table:
        """Live episodes, one row each; `docs/format.md` lists the columns."""
        if not self._shards:
            return TABLE_SCHEMA.empty_table()
        return pa.concat_tables([shard.table for shard in self._shards]).combine_chunks()

    @property
    def lengths(self) -> NDArray[np.int64]:
        """`[episodes]`: transitions of each live episode."""
        return self.columns.length

    def _use_checkpoint(self) -> None:
        """Take the rows that a checkpoint has from there; a damaged one is left alone."""
        if self.log.checkpoint is None or not self._shards:
            return
        try:
            tables = self.log.checkpoint.shard_tables
        except FormatError as error:
            logger.warning("%s", error)
            return
        for shard in self._shards:
            if shard.entry.shard_id in tables:
                shard.table = tables[shard.entry.shard_id]
                shard.known_manifests = partial(getattr, self.log.checkpoint, "manifests")

    @cached_property
    def columns(self) -> EpisodeColumns:
        """What sampling needs of the live episodes, as plain arrays."""
        return make_columns(str(self.path), [shard.columns for shard in self._shards])

    def find(self, episode: str) -> int:
        """The row of an episode, given as row number, id, or an id's unique beginning.

        Raises:
            DatasetError: there is none, or several.
        """
        row = self.columns.row_of(episode)
        if row >= 0:
            return row
        if episode.isdigit() and len(episode) < 12 and int(episode) < len(self):
            return int(episode)
        names = self.table["episode_id"].to_pylist()
        rows = [row for row, name in enumerate(names) if name.startswith(episode)]
        if len(episode) >= 4 and len(rows) == 1:
            return rows[0]
        what = f"{len(rows)} episodes begin so" if rows else "there is no such live episode"
        raise DatasetError(
            f"{self.path}: episode {episode!r}: {what}. Give a row number below {len(self)}, or an "
            f"episode's id or at least 4 digits that begin only one."
        )

    def find_id(self, episode_id: str) -> int | None:
        """The row of a live episode by its whole id, or None."""
        row = self.columns.row_of(episode_id)
        return None if row < 0 else row

    def record(self, row: int) -> EpisodeRecord:
        """The table row of an episode."""
        return record_from_row(self.table.slice(row, 1).to_pylist()[0])

    def shard_of(self, row: int) -> tuple[ShardReader, int]:
        """The shard that holds an episode, and the episode's number in it."""
        shard = bisect_right(self._first_rows, row) - 1
        return self._shards[shard], row - self._first_rows[shard]

    @cached_property
    def raw_shards(self) -> tuple[ShardReader, ...]:
        """Live shards that hold arrays, in order."""
        return tuple(shard for shard in self._shards if shard.entry.kind == "raw")

    @property
    def raw_steps(self) -> int:
        """Transitions that are stored, variants left out."""
        return sum(shard.entry.steps for shard in self.raw_shards)

    def shard_reader(self, shard_id: str) -> ShardReader:
        """A live shard."""
        return self._shards[self._shard_numbers[shard_id]]

    def shard_rows(self, shard_id: str) -> range:
        """The rows of a live shard's episodes."""
        number = self._shard_numbers[shard_id]
        return range(self._first_rows[number], self._first_rows[number + 1])

    def read_events(self, row: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Steps and goals of an episode's events, `[events]` each; a variant's are cut to it."""
        reader, source_row, record = self._locate(row)
        shard, number = reader.shard_of(source_row)
        step, goal = shard.read_events(*shard.event_ranges[number].tolist())
        count = int(np.searchsorted(step, record.length)) if record.is_variant else len(step)
        return step[:count], goal[:count]

    def array_schema(self, row: int) -> DatasetSchema:
        """The schema of the arrays that an episode shows: for a variant, of its source's shard."""
        reader, source_row, _ = self._locate(row)
        return reader.shard_of(source_row)[0].schema

    def outcome(self, row: int) -> Outcome:
        """Reward, flags and progress that follow from an episode's table row."""
        return record_outcome(self.record(row))

    def read_episode(self, row: int) -> Episode:
        """A whole episode; a variant's arrays are its source's, cut, under its own instruction."""
        record = self.record(row)
        window = self.read_window(row, 0, record.length)
        step, goal = self.read_events(row)
        info, info_present = self._read_info(row)
        ended = np.zeros(record.length, np.bool_)
        ended[-1] = record.environment_terminated
        return Episode(
            record=record,
            observation=window.observation,
            action=window.action,
            reward=window.reward,
            terminated=window.terminated,
            truncated=window.truncated,
            environment_terminated=ended,
            reset=window.reset,
            event_step=step,
            event_goal=goal,
            info=info,
            info_present=info_present,
        )

    def read_window(self, row: int, start: int, length: int, *, dataset: int = 0) -> Window:
        """Transitions `start..start+length-1` of an episode, and the row before and after them.

        Args:
            row: the episode.
            start: number of the first transition.
            length: transitions, at least 1; the window must lie inside the episode.
            dataset: number of this dataset in a mixture, copied into the window.
        """
        reader, source_row, record = self._locate(row)
        assert 0 <= start and 1 <= length <= record.length - start, (start, length, record.length)
        shard, number = reader.shard_of(source_row)
        first = int(shard.offsets[number]) + start
        before = first - 1 if start else first
        schema = shard.schema
        action = {
            leaf.path: shard.read_rows(leaf.path, before, first + length)
            for leaf in schema.action_leaves
        }
        reset = shard.read_rows("reset", before, first + length)
        skip = first - before
        reward, terminated, truncated, progress = self._signals(
            row, shard, record, start - skip, start + length, before
        )
        observation = {
            leaf.path: shard.read_rows(leaf.path, first, first + length + 1)
            for leaf in schema.observation_leaves
        }
        if record.goal_row is not None:
            place = first - start + record.goal_row
            goal = shard.read_rows(ACHIEVED_GOAL, place, place + 1)
            observation[DESIRED_GOAL] = np.repeat(goal, length + 1, axis=0)
        previous: Leaves | None = {path: rows[0] for path, rows in action.items()} if skip else None
        return Window(
            record=record,
            dataset=dataset,
            start=start,
            observation=observation,
            action={path: rows[skip:] for path, rows in action.items()},
            reward=reward[skip:],
            terminated=terminated[skip:],
            truncated=truncated[skip:],
            reset=reset[skip:],
            progress=progress[skip:],
            previous_action=previous,
            previous_reward=float(reward[0]) if skip else 0.0,
            previous_reset=bool(reset[0]) if skip else False,
        )

    def read_goal_reward(self, row: int, start: int, stop: int) -> NDArray[np.float32]:
        """Stored rewards `[stop - start]` of a variant that has a goal of its own."""
        shard, number = self.shard_of(row)
        first = int(shard.offsets[number])
        return shard.read_rows("reward", first + start, first + stop)

    def _read_info(self, row: int) -> tuple[Leaves, Leaves]:
        """Declared infos of an episode and their masks, `[time, ...]` each."""
        reader, source_row, record = self._locate(row)
        shard, number = reader.shard_of(source_row)
        first = int(shard.offsets[number])
        info: Leaves = {}
        present: Leaves = {}
        for leaf in shard.schema.info_leaves:
            info[leaf.path], present[leaf.path] = shard.read_info(
                leaf.path, first, first + record.length
            )
        return info, present

    def source_reader(self, dataset_id: str) -> "DatasetReader":
        """The dataset that variants refer to, opened at its head."""
        if dataset_id == self.dataset_id:
            return self
        if dataset_id not in self._sources:
            path = find_source(
                self.log, self.snapshot.number, dataset_id, self._source_paths.get(dataset_id)
            )
            source = DatasetReader.open(path, sources=self._source_paths)
            source._use_cache(self._array_cache)
            self._sources[dataset_id] = source
        return self._sources[dataset_id]

    def _locate(self, row: int) -> tuple["DatasetReader", int, EpisodeRecord]:
        """The reader and row that hold an episode's arrays, and the episode's own record."""
        record = self.record(row)
        if record.source_dataset_id is None or record.source_episode_id is None:
            return self, row, record
        reader = self.source_reader(record.source_dataset_id)
        source_row = reader.columns.row_of(record.source_episode_id)
        if source_row < 0:
            raise DatasetError(
                explain_dangling(
                    self.path,
                    record.episode_id,
                    record.source_episode_id,
                    reader.path,
                    reader.dataset_id,
                )
            )
        return reader, source_row, record

    def _signals(
        self, row: int, shard: ShardReader, record: EpisodeRecord, start: int, stop: int, first: int
    ) -> Signals:
        """Those of transitions `start..stop-1`, which lie in the source's shard from `first` on."""
        if record.goal_row is not None:
            return goal_signals(record, self.read_goal_reward(row, start, stop), start, stop)
        if record.is_variant:
            return variant_signals(record, start, stop)
        return stored_signals(shard, record, start, stop, first)
