"""One shard: its table and its arrays, every small file checked against its hash."""

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from retold.dataset.array_cache import ArrayCache, MappedArray
from retold.dataset.chunk_cache import ChunkCache
from retold.dataset.episode_columns import COLUMN_SCHEMA
from retold.dataset.paths import DatasetPath, refuse_links
from retold.dataset.remote_array import RemoteArrayReader
from retold.dataset.remote_path import RemotePath
from retold.dataset.shard_files import ShardFiles
from retold.dataset.table import read_table
from retold.dataset.zarr_reader import ArrayReader
from retold.schemas.commit import ShardEntry
from retold.schemas.dataset_schema import DatasetSchema
from retold.schemas.errors import FormatError

StoredArray = ArrayReader | MappedArray
"""An array of a shard: decoded from it, or mapped from a cache."""


class ShardReader(ShardFiles):
    """Reads one shard. Arrays are opened on first use; scalar columns stay in memory."""

    def __init__(
        self,
        dataset: DatasetPath,
        entry: ShardEntry,
        schema: DatasetSchema,
        *,
        piecewise: bool = False,
    ) -> None:
        super().__init__(dataset, entry)
        self._piecewise = piecewise
        self.array_cache: ArrayCache | None = None
        self.schema = schema
        self._arrays: dict[str, StoredArray] = {}
        self._resident: dict[str, NDArray[Any]] = {}
        self._leaves = {leaf.path: leaf for leaf in schema.leaves}

    @cached_property
    def columns(self) -> pa.Table:
        """The columns of the table that sampling needs; a third of the time of the whole table."""
        if "table" in self.__dict__:
            return self.table
        content = self.read_checked("episodes.parquet")
        try:
            table = read_table(content, COLUMN_SCHEMA)
        except (pa.ArrowException, OSError, ValueError, KeyError):
            return self.table  # says what is wrong
        return table if len(table) == self.entry.episodes else self.table

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """`[episodes]`: first row of each episode in every time array."""
        return np.asarray(self.table["offset"].to_numpy(), np.int64)

    @cached_property
    def event_ranges(self) -> NDArray[np.int64]:
        """`[episodes, 2]`: first and one past the last goal event of each episode."""
        start = self.table["event_offset"].to_numpy().astype(np.int64)
        return np.stack([start, start + self.table["event_count"].to_numpy()], axis=1)

    def read_rows(self, path: str, start: int, stop: int) -> NDArray[Any]:
        """Rows of one leaf, `[stop - start, ...]`; text comes as an object array of `str`."""
        leaf = self._leaves[path]
        if leaf.is_ragged:
            return self._read_text(path, start, stop)
        if 0 in leaf.shape:  # codecs do not decode nothing
            return np.zeros((stop - start, *leaf.shape), leaf.dtype)
        if not leaf.shape:
            rows = self._resident_column(path)[start:stop].copy()
            if len(rows) < stop - start:
                raise FormatError(
                    f"{self.path}: {path!r} ends before row {stop - 1}, where an episode should "
                    f"have one. Find all damage with `retold audit`."
                )
            return rows
        return self.array(path).read(start, stop)

    def read_info(self, path: str, start: int, stop: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values `[stop - start, ...]` of a declared info, and the mask of those that are there."""
        present = self._resident_column(f"{path}/present")[start:stop].copy()
        leaf = self._leaves[path]
        if leaf.is_ragged:
            return self._read_text(f"{path}/data", start, stop), present
        if 0 in leaf.shape:
            return np.zeros((stop - start, *leaf.shape), leaf.dtype), present
        return self.array(f"{path}/data").read(start, stop), present

    def read_events(self, start: int, stop: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Steps and goals of events `start..stop-1` of the shard, `[events]` each."""
        if stop == start:
            return np.zeros(0, np.uint32), np.zeros(0, np.uint32)
        step, goal = self._resident_column("events/t"), self._resident_column("events/goal")
        return step[start:stop].copy(), goal[start:stop].copy()

    def array(self, path: str) -> StoredArray:
        """The array of one leaf."""
        if path not in self._arrays:
            self._arrays[path] = self.open_array(path, None)
        return self._arrays[path]

    def open_array(self, path: str, cache: ChunkCache | None) -> StoredArray:
        """The array of one leaf, opened anew: it lives as long as who asked for it."""
        if self.array_cache is not None:
            mapped = self.array_cache.find(self.entry.shard_id, path)
            if mapped is not None:
                return mapped
        metadata = self.read_checked(f"arrays/{path}/zarr.json")
        folder = self.path / f"arrays/{path}"
        refuse_links(folder)
        if isinstance(folder, RemotePath):
            start = f"arrays/{path}/"
            sizes = {
                name.removeprefix(start): file.bytes
                for name, file in self.files.items()
                if name.startswith(start)
            }
            return RemoteArrayReader(
                folder, metadata, cache, sizes, lambda name: self.whole.get(start + name)
            )
        return ArrayReader(folder, metadata, cache)

    def _resident_column(self, path: str) -> "NDArray[Any] | _Column":
        if self._piecewise:
            return _Column(self.array(path))
        if path not in self._resident:
            self._resident[path] = self.array(path).read_all()
        return self._resident[path]

    def _read_text(self, path: str, start: int, stop: int) -> NDArray[Any]:
        offsets = self._resident_column(f"{path}/offsets")[start : stop + 1].astype(np.int64)
        first = int(offsets[0])
        content = self.array(f"{path}/data").read(first, int(offsets[-1])).tobytes()
        texts = np.empty(stop - start, object)
        for row in range(stop - start):
            texts[row] = content[offsets[row] - first : offsets[row + 1] - first].decode()
        return texts


class _Column:
    """A column of which only what is asked for is read."""

    def __init__(self, array: StoredArray) -> None:
        self._array = array

    def __getitem__(self, rows: slice) -> NDArray[Any]:
        return self._array.read(rows.start, rows.stop)
