"""Per-step arrays of all raw shards of a snapshot, as if they stood one after the other."""

from bisect import bisect_right
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.chunk_cache import ChunkCache
from retold.dataset.reader import DatasetReader
from retold.dataset.remote_array import ArrayRead, read_arrays
from retold.dataset.remote_path import RemotePath
from retold.dataset.shard_files import fetch_ahead
from retold.dataset.shard_reader import ShardReader, StoredArray
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import FormatError
from retold.schemas.spaces import DiscreteSpace, Leaf

_THREADED_BYTES = 100_000
"""Chunks below this decode faster on one thread than two threads can be told to."""

Span = tuple[int, int, NDArray[Any]]
"""First row, end, and where the rows go."""


class StepStore:
    """Scalar leaves stay in memory as far as a budget goes; all else is decoded where it is wanted."""

    def __init__(
        self,
        reader: DatasetReader,
        *,
        resident_bytes: int,
        cache: ChunkCache | None,
        pool: ThreadPoolExecutor | None,
    ) -> None:
        self._cache, self._pool = cache, pool
        self._is_remote = isinstance(reader.path, RemotePath)
        self._shards = reader.raw_shards
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(reader.columns.length + 1)])
        rows = [0]
        for shard in self._shards:
            span = reader.shard_rows(shard.entry.shard_id)
            rows.append(rows[-1] + int(ends[span.stop] - ends[span.start]))
        self._first_rows = np.array(rows, np.int64)
        self._starts: list[int] = rows
        self._arrays: dict[str, dict[int, StoredArray]] = defaultdict(dict)
        self._columns: dict[str, _ResidentColumn] = {}
        self._leaves = {leaf.path: leaf for shard in self._shards for leaf in shard.schema.leaves}
        self._plan(reader, resident_bytes)

    def gather(
        self, path: str, rows: NDArray[np.int64], first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> NDArray[Any]:
        """Values of a scalar leaf, shaped as `rows`.

        Args:
            path: the leaf.
            rows: `[windows, time]`; what lies outside `first` to `last` is not promised a value.
            first: `[windows]`: the first row that is wanted of each.
            last: `[windows]`: the last one, in the same shard.
        """
        column = self._columns.get(path)
        if column is not None:
            return column.gather(self._shards, rows, first)
        values = np.zeros(rows.shape, self._leaves[path].dtype)
        for place, (start, stop) in enumerate(zip(first.tolist(), last.tolist(), strict=True)):
            wanted = np.clip(rows[place], start, stop)
            values[place] = self._read_rows(path, start, stop + 1)[wanted - start]
        return values

    def is_zero(self, path: str) -> bool:
        """Whether a resident leaf is known to be zero throughout."""
        column = self._columns.get(path)
        return column is not None and column.is_zero

    def read(self, path: str, spans: list[Span]) -> None:
        """Fill arrays with spans of one leaf, none of them over a shard's end."""
        if not spans or 0 in self._leaves[path].shape:  # codecs do not decode nothing
            return
        if self._pool is None or self._leaves[path].is_ragged or not self._is_threaded(path, spans):
            self._read_spans(path, spans)
            return
        other = self._pool.submit(self._read_spans, path, spans[1::2])
        try:
            self._read_spans(path, spans[::2])
        finally:
            other.result()

    def _is_threaded(self, path: str, spans: list[Span]) -> bool:
        if self._is_remote:
            return False  # everything is asked for at once already
        return len(spans) > 1 and self._array(spans[0][0], path)[0].chunk_bytes >= _THREADED_BYTES

    def _read_spans(self, path: str, spans: list[Span]) -> None:
        if self._leaves[path].is_ragged:
            for start, stop, out in spans:
                out[:] = self._read_rows(path, start, stop)
            return
        if self._is_remote:
            self._read_remote(path, spans)
            return
        starts, arrays = self._starts, self._arrays[path]  # the hot path: kept flat
        for start, stop, out in spans:
            place = bisect_right(starts, start) - 1
            array = arrays.get(place) or self._open_array(path, place)
            array.fill(start - starts[place], stop - start, out)

    def _read_remote(self, path: str, spans: list[Span]) -> None:
        """All spans at once, and before that what their arrays need to be opened."""
        places = [bisect_right(self._starts, start) - 1 for start, _, _ in spans]
        missing = sorted(set(places) - self._arrays[path].keys())
        fetch_ahead([self._shards[place] for place in missing], [f"arrays/{path}/zarr.json"])
        reads = []
        for place, (start, _, out) in zip(places, spans, strict=True):
            array = self._arrays[path].get(place) or self._open_array(path, place)
            reads.append(ArrayRead(array, start - self._starts[place], out))
        read_arrays(reads)

    def _read_rows(self, path: str, start: int, stop: int) -> NDArray[Any]:
        if self._leaves[path].is_ragged:
            place = bisect_right(self._starts, start) - 1
            base = self._starts[place]
            return self._shards[place].read_rows(path, start - base, stop - base)
        array, base = self._array(start, path)
        return array.read(start - base, stop - base)

    def _array(self, row: int, path: str) -> tuple[StoredArray, int]:
        """The array that holds a row of a leaf, and the row it begins with."""
        place = bisect_right(self._starts, row) - 1
        array = self._arrays[path].get(place) or self._open_array(path, place)
        return array, self._starts[place]

    def _open_array(self, path: str, place: int) -> StoredArray:
        array = self._shards[place].open_array(path, self._cache)
        self._arrays[path][place] = array
        return array

    def _plan(self, reader: DatasetReader, budget_bytes: int) -> None:
        """Choose the leaves that are kept, smallest first."""
        if not self._shards:
            return
        schema = reader.schema
        scalars = {
            leaf.path: _compact_dtype(schema, leaf)
            for leaf in (*schema.observation_leaves, *schema.action_leaves, *schema.leaves)
            if leaf.path in ("reward", "reset") or leaf.path.split("/")[0] in _INPUTS
            if not leaf.shape and not leaf.is_ragged
        }
        rows = self._starts[-1]
        for path, dtype in sorted(scalars.items(), key=lambda item: item[1].itemsize):
            if rows * dtype.itemsize <= budget_bytes:
                budget_bytes -= rows * dtype.itemsize
                self._columns[path] = _ResidentColumn(path, dtype, self._first_rows)


_INPUTS = ("observation", "action")


class _ResidentColumn:
    """One scalar leaf in memory; a shard is decoded when the first of its rows is asked for."""

    def __init__(self, path: str, dtype: np.dtype[Any], first_rows: NDArray[np.int64]) -> None:
        self._path = path
        self._first_rows = first_rows
        self._values: NDArray[Any] = np.empty(int(first_rows[-1]), dtype)  # pages come with use
        self._is_loaded = np.zeros(len(first_rows) - 1, np.bool_)
        self._is_whole = False
        self._has_value = False

    @property
    def is_zero(self) -> bool:
        """Whether every row is there and zero."""
        return self._is_whole and not self._has_value

    def gather(
        self,
        shards: tuple[ShardReader, ...],
        rows: NDArray[np.int64],
        first: NDArray[np.int64],
    ) -> NDArray[Any]:
        if not self._is_whole:
            places = np.searchsorted(self._first_rows, first, side="right") - 1
            self._load(shards, np.unique(places[~self._is_loaded[places]]).tolist())
            self._is_whole = bool(self._is_loaded.all())
        values: NDArray[Any] = self._values.take(rows, mode="clip")
        return values

    def _load(self, shards: tuple[ShardReader, ...], places: list[int]) -> None:
        fetch_ahead([shards[place] for place in places], [f"arrays/{self._path}/zarr.json"])
        reads = []
        for place in places:
            first, end = self._first_rows[place : place + 2].tolist()
            array = shards[place].open_array(self._path, None)
            reads.append(ArrayRead(array, 0, np.empty(end - first, array.dtype)))
        read_arrays(reads)
        for place, read in zip(places, reads, strict=True):
            self._keep(shards[place], place, read.out)

    def _keep(self, shard: ShardReader, place: int, stored: NDArray[Any]) -> None:
        first, end = self._first_rows[place : place + 2].tolist()
        rows = self._values[first:end]
        rows[:] = stored
        if not np.array_equal(rows, stored, equal_nan=stored.dtype.kind == "f"):
            raise FormatError(
                f"{shard.path}: {self._path!r} has values outside its space. Find all damage with "
                f"`retold audit`."
            )
        self._has_value = self._has_value or bool(rows.any())
        self._is_loaded[place] = True


def _compact_dtype(schema: DatasetSchema, leaf: Leaf) -> np.dtype[Any]:
    """The smallest type that holds a leaf's values: 17 actions need a byte, not the eight stored."""
    space = schema.action_space
    if leaf.path == "action" and isinstance(space, DiscreteSpace) and space.start >= 0:
        return np.min_scalar_type(space.start + space.n - 1)
    return np.dtype(leaf.dtype)
