"""The episode columns that sampling needs, as plain compact arrays: no Python object an episode."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.table import TABLE_SCHEMA
from retold.schemas.errors import FormatError

ID_TYPE = np.dtype("S16")
"""An episode id as 16 bytes."""
UNKNOWN = -1
"""In `policy_update` where none is stored."""
_NAMES = (
    *("episode_id", "length", "episode_return", "terminated", "instruction", "completed"),
    *("policy_update", "source_dataset_id", "source_episode_id", "offset", "goal_row"),
)
COLUMN_SCHEMA = pa.schema([TABLE_SCHEMA.field(name) for name in _NAMES])
"""The columns of the episode table that are read to make them."""


@dataclass(frozen=True)
class RaggedColumn:
    """A list for each episode, one after the other."""

    values: NDArray[np.uint32]
    """`[values of all episodes]`"""
    ends: NDArray[np.int64]
    """`[episodes + 1]`, from 0: episode `i` has `values[ends[i]:ends[i + 1]]`."""

    def of(self, row: int) -> NDArray[np.uint32]:
        """`[values]` of one episode."""
        return self.values[self.ends[row] : self.ends[row + 1]]

    def gather(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The values of some episodes, and beside each the place in `rows` that it belongs to."""
        first = self.ends[rows]
        counts = self.ends[rows + 1] - first
        owner = np.repeat(np.arange(len(rows)), counts)
        place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.values[first[owner] + place].astype(np.int64), owner


@dataclass(frozen=True, kw_only=True)
class EpisodeColumns:
    """`[episodes]` each, in the order of a snapshot's rows."""

    path: str
    """The dataset, for messages."""
    episode_id: NDArray[np.bytes_]
    length: NDArray[np.int64]
    episode_return: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    policy_update: NDArray[np.int64]
    """`UNKNOWN` where none is stored."""
    instruction: RaggedColumn
    completed: RaggedColumn
    first_row: NDArray[np.int64]
    """First row of a raw episode when all shards' arrays stand one after the other; -1: variant."""
    source: NDArray[np.int16]
    """Number of a variant's dataset in `source_ids`; -1 for raw episodes."""
    source_ids: tuple[str, ...]
    source_episode_id: NDArray[np.bytes_]
    goal_row: NDArray[np.int64]
    """Row of the source whose achieved goal a variant wants; `UNKNOWN` where it wants none."""

    @cached_property
    def _order(self) -> NDArray[np.intp]:
        """Rows by id, each id once."""
        order = np.argsort(self.episode_id)
        twice = np.flatnonzero(self.episode_id[order[1:]] == self.episode_id[order[:-1]])
        if len(twice):
            episode_id = format_id(self.episode_id[order[twice[0]]])
            raise FormatError(
                f"{self.path}: episode {episode_id} is live twice. Restore the log from a copy."
            )
        return order

    def rows_of(self, ids: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """The row of each id, -1 where it is not live."""
        if not len(self.episode_id):
            return np.full(len(ids), -1, np.int64)
        place = np.searchsorted(self.episode_id, ids, sorter=self._order)
        rows = self._order[np.minimum(place, len(self._order) - 1)].astype(np.int64)
        return np.where(self.episode_id[rows] == ids, rows, -1)

    def row_of(self, episode_id: str) -> int:
        """The row of one id in hex digits, -1 where it is not live."""
        try:
            raw = bytes.fromhex(episode_id)
        except ValueError:
            return -1
        return int(self.rows_of(np.array([raw], ID_TYPE))[0]) if len(raw) == 16 else -1


def make_columns(path: str, tables: list[pa.Table]) -> EpisodeColumns:
    """The columns of a snapshot from the tables of its shards, in order.

    Raises:
        FormatError: a table does not hold what the format says.
    """
    table = pa.concat_tables([t.select(_NAMES) for t in tables] or [COLUMN_SCHEMA.empty_table()])
    length = _numbers(table, "length").astype(np.int64)
    offset = _numbers(table, "offset", UNKNOWN).astype(np.int64)
    source, source_ids = _sources(table)
    return EpisodeColumns(
        path=path,
        episode_id=_ids(path, table, "episode_id"),
        length=length,
        episode_return=_numbers(table, "episode_return").astype(np.float64),
        terminated=_numbers(table, "terminated").astype(np.bool_),
        policy_update=_numbers(table, "policy_update", UNKNOWN).astype(np.int64),
        instruction=_ragged(table, "instruction"),
        completed=_ragged(table, "completed"),
        first_row=offset + _bases(tables, length, source < 0),
        source=source,
        source_ids=source_ids,
        source_episode_id=_ids(path, table, "source_episode_id"),
        goal_row=_numbers(table, "goal_row", UNKNOWN).astype(np.int64),
    )


def format_id(episode_id: bytes) -> str:
    """The 32 hex digits of an id."""
    return bytes(episode_id).ljust(16, b"\0").hex()


def _bases(
    tables: list[pa.Table], length: NDArray[np.int64], is_raw: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """`[episodes]`: rows of raw episodes in the shards before an episode's own; 0 for variants."""
    counts = np.array([len(table) for table in tables], np.int64)
    rows = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.where(is_raw, length + 1, 0))])
    first_episode = np.cumsum(counts) - counts
    return np.where(is_raw, np.repeat(rows[first_episode], counts), 0)


def _numbers(table: pa.Table, name: str, null: int | None = None) -> NDArray[np.generic]:
    column = table[name]
    if null is not None and column.null_count:
        kind = pa.int64()
        column = column.cast(kind).fill_null(pa.scalar(null, kind))
    numbers: NDArray[np.generic] = column.to_numpy()
    return numbers


def _ragged(table: pa.Table, name: str) -> RaggedColumn:
    column = table[name].combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks)
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])
    return RaggedColumn(column.flatten().to_numpy(zero_copy_only=False).astype(np.uint32), ends)


def _ids(path: str, table: pa.Table, name: str) -> NDArray[np.bytes_]:
    """`[episodes]` of 16 bytes; zeros where there is none."""
    column = table[name].fill_null("0" * 32)
    digits = "".join(column.to_pylist())
    if len(digits) != 32 * len(column):
        raise FormatError(
            f"{path}: an {name} has not 32 digits. Find all damage with `retold audit`."
        )
    try:
        return np.frombuffer(bytes.fromhex(digits), ID_TYPE)
    except ValueError as error:
        raise FormatError(
            f"{path}: an {name} is not hexadecimal. Find all damage with `retold audit`."
        ) from error


def _sources(table: pa.Table) -> tuple[NDArray[np.int16], tuple[str, ...]]:
    column = table["source_dataset_id"]
    if column.null_count == len(column):
        return np.full(len(column), -1, np.int16), ()
    encoded = column.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.unify_dictionaries().combine_chunks()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    return codes.astype(np.int16), tuple(encoded.dictionary.to_pylist())
