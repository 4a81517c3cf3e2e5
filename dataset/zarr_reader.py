"""Reading windows of standard Zarr v3 sharded arrays, checksums verified at every decode."""

import ctypes
import json
import math
import mmap
from collections.abc import Callable
from pathlib import Path
from threading import local
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from retold.dataset.blosc_library import CAN_COPY_ITEMS, copy_items
from retold.dataset.chunk_cache import ChunkCache
from retold.dataset.paths import DatasetPath
from retold.dataset.zarr_codec import CRC_BYTES, check_body, decode_body, read_checksum
from retold.schemas.errors import FormatError

_IN_PLACE_BYTES = 65_536
"""Chunks of this size and more are decoded where they are wanted, smaller ones copied from scratch:
finding the address of a slice takes as long as copying 20 KB."""


_MOST_CHUNK_BYTES = 2**32
"""More than any writer puts into one; what asks for more is damaged, or wants to do harm."""


class ArrayReader:
    """One array on disk. Shards are mapped and their indices parsed once, on first use."""

    def __init__(
        self, folder: DatasetPath, encoded_metadata: bytes, cache: ChunkCache | None = None
    ) -> None:
        """Open an array.

        Args:
            folder: the array's.
            encoded_metadata: the content of its `zarr.json`, whose hash the caller has checked;
                everything else is verified here.
            cache: keeps decoded chunks.
        """
        self.folder = folder
        try:
            metadata = json.loads(encoded_metadata)
            sharding = metadata["codecs"][0]["configuration"]
            self.shape: tuple[int, ...] = tuple(metadata["shape"])
            self.dtype: np.dtype[Any] = np.dtype(metadata["data_type"]).newbyteorder("<")
            self._shard_rows: int = metadata["chunk_grid"]["configuration"]["chunk_shape"][0]
            self._chunk_rows: int = sharding["chunk_shape"][0]
            self._codec: str = sharding["codecs"][1]["name"]
            row_bytes = self.dtype.itemsize * math.prod(self.shape[1:])
            _check_sizes(self.shape, row_bytes, self._shard_rows, self._chunk_rows)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise FormatError(
                f"{folder / 'zarr.json'}: this is not an array as docs/format.md describes it "
                f"({error!r}). Find all damage with `retold audit`."
            ) from error
        self._cache = cache
        self.row_bytes = int(row_bytes)
        self.chunk_bytes = self._chunk_rows * self.row_bytes
        self._chunk_shape = (self._chunk_rows, *self.shape[1:])
        self._scratch_key = (self.dtype.str, self._chunk_shape)
        self._chunks_per_shard = self._shard_rows // self._chunk_rows
        is_small = cache is None and self.chunk_bytes < _IN_PLACE_BYTES
        has_items = is_small and self._codec == "blosc" and CAN_COPY_ITEMS and self.row_bytes > 0
        self.fill: Callable[[int, int, NDArray[Any]], None] = (
            self._fill_items if has_items else self._fill_small if is_small else self._fill_large
        )
        """Rows from a first one on, as many as wanted, into an array of just so many."""
        self._shards: dict[int, tuple[mmap.mmap, memoryview]] = {}

    def read(self, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Rows `start..stop-1`, `[stop - start, ...]`, into `out` if given.

        Raises:
            FormatError: a chunk is missing or damaged; the file is named.
        """
        try:
            rows = np.empty((stop - start, *self.shape[1:]), self.dtype) if out is None else out
        except (MemoryError, ValueError) as error:
            raise FormatError(
                f"{self.folder / 'zarr.json'}: it speaks of {stop - start:,} rows of "
                f"{self.row_bytes:,} bytes, which no memory holds. Find all damage with `retold audit`."
            ) from error
        self.fill(start, stop - start, rows)
        return rows

    def read_all(self) -> NDArray[Any]:
        """The whole array."""
        return self.read(0, self.shape[0])

    def _fill_items(self, start: int, wanted: int, rows: NDArray[Any]) -> None:
        """Small Blosc chunks: Blosc puts the rows that are wanted where they are wanted."""
        if not wanted or rows.dtype != self.dtype or not rows.flags.c_contiguous:
            self._fill_small(start, wanted, rows)
            return
        address = ctypes.addressof(ctypes.c_char.from_buffer(rows))  # type: ignore[arg-type]
        chunk_rows, size, itemsize = self._chunk_rows, self.chunk_bytes, self.dtype.itemsize
        row_items = self.row_bytes // itemsize
        number, first = divmod(start, chunk_rows)
        while wanted:
            count = min(chunk_rows - first, wanted)
            body, items = self._body(number), count * row_items
            try:
                copy_items(body, first * row_items, items, address, size, itemsize)
            except ValueError as error:
                raise self._damage(number, error) from error
            address += items * itemsize
            wanted -= count
            number, first = number + 1, 0

    def _fill_small(self, start: int, wanted: int, rows: NDArray[Any]) -> None:
        """Every chunk through this thread's scratch. The hot path: kept flat."""
        chunk_rows = self._chunk_rows
        chunk, address = _scratch.chunks.get(self._scratch_key) or _make_scratch(self._scratch_key)
        number, first = divmod(start, chunk_rows)
        filled, count = 0, chunk_rows - first
        while count < wanted - filled:
            self._decode(number, chunk, address)
            rows[filled : filled + count] = chunk[first:]
            filled += count
            number, first, count = number + 1, 0, chunk_rows
        if filled < wanted:
            self._decode(number, chunk, address)
            rows[filled:] = chunk[first : first + wanted - filled]

    def _fill_large(self, start: int, wanted: int, rows: NDArray[Any]) -> None:
        """Whole chunks where they are wanted, or from the cache."""
        chunk_rows, filled = self._chunk_rows, 0
        is_in_place = self._cache is None and rows.flags.c_contiguous and rows.dtype == self.dtype
        number, first = divmod(start, chunk_rows)
        while filled < wanted:
            count = min(chunk_rows - first, wanted - filled)
            if is_in_place and count == chunk_rows:
                chunk = rows[filled : filled + count]
                self._decode(number, chunk, chunk.ctypes.data)
            else:
                rows[filled : filled + count] = self._chunk(number)[first : first + count]
            filled += count
            number, first = number + 1, 0

    def _chunk(self, number: int) -> NDArray[Any]:
        """A whole decoded chunk: the cache's, or this thread's scratch until it decodes again."""
        if self._cache is None:
            key = self._scratch_key
            chunk, address = _scratch.chunks.get(key) or _make_scratch(key)
            self._decode(number, chunk, address)
            return chunk
        place = (id(self), number)
        kept = self._cache.get(place)
        if kept is not None:
            return kept
        chunk = np.empty(self._chunk_shape, self.dtype)
        self._decode(number, chunk, chunk.ctypes.data)
        self._cache.put(place, chunk)
        return chunk

    def _decode(self, number: int, chunk: NDArray[Any], address: int) -> None:
        body = self._body(number)
        try:
            decode_body(self._codec, body, chunk, address, self.chunk_bytes)
        except ValueError as error:
            raise self._damage(number, error) from error

    def _body(self, number: int) -> bytes:
        """The compressed bytes of a chunk, their checksum verified."""
        shard, place = divmod(number, self._chunks_per_shard)
        if shard not in self._shards:
            self._shards[shard] = self._map_shard(shard)
        content, index = self._shards[shard]
        offset = index[2 * place]
        end = offset + index[2 * place + 1]
        middle = end - CRC_BYTES
        try:
            if end > len(content) or middle < offset:
                raise ValueError("a chunk is missing")
            body = content[offset:middle]
            check_body(body, read_checksum(content, middle)[0])
        except ValueError as error:
            raise self._damage(number, error) from error
        return body

    def _damage(self, number: int, error: ValueError) -> FormatError:
        return FormatError(
            f"{self._shard_path(number // self._chunks_per_shard)}: {error} (rows "
            f"{number * self._chunk_rows} to {(number + 1) * self._chunk_rows - 1}). Find all "
            f"damage with `retold audit`."
        )

    def _shard_path(self, shard: int) -> DatasetPath:
        return self.folder.joinpath("c", str(shard), *("0" for _ in self.shape[1:]))

    def _map_shard(self, shard: int) -> tuple[mmap.mmap, memoryview]:
        """The mapped file, and its index."""
        path = self._shard_path(shard)
        assert isinstance(path, Path), path
        try:
            with path.open("rb") as file:
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise FormatError(
                f"{path}: the file is missing or empty. Find all damage with `retold audit`."
            ) from error
        return content, self._parse_index(shard, content[-self._index_bytes :])

    @property
    def _index_bytes(self) -> int:
        """Bytes at the end of a shard that hold its index and the index's checksum."""
        return int(16 * self._chunks_per_shard) + CRC_BYTES

    def _parse_index(self, shard: int, encoded: bytes) -> memoryview:
        """Offset and length of each chunk in turn."""
        index, checksum = encoded[:-CRC_BYTES], int.from_bytes(encoded[-CRC_BYTES:], "little")
        if len(encoded) != self._index_bytes or google_crc32c.value(index) != checksum:
            raise FormatError(
                f"{self._shard_path(shard)}: the shard index is damaged. Find all damage with "
                f"`retold audit`."
            )
        return np.frombuffer(index, "<u8").astype(np.uint64).data


class _Scratch(local):
    """One chunk of each kind that a thread has met, with its address."""

    def __init__(self) -> None:
        self.chunks: dict[tuple[str, tuple[int, ...]], tuple[NDArray[Any], int]] = {}


_scratch = _Scratch()


def _check_sizes(shape: tuple[int, ...], row_bytes: int, shard_rows: int, chunk_rows: int) -> None:
    for size, least in (*((size, 0) for size in shape), (shard_rows, 1), (chunk_rows, 1)):
        if type(size) is not int or size < least:
            raise ValueError(f"a size is {size!r}")
    if shard_rows % chunk_rows or chunk_rows * row_bytes > _MOST_CHUNK_BYTES:
        raise ValueError(f"{chunk_rows} of {shard_rows} rows are a chunk")


def _make_scratch(key: tuple[str, tuple[int, ...]]) -> tuple[NDArray[Any], int]:
    dtype, shape = key
    chunk = np.empty(shape, dtype)
    _scratch.chunks[key] = (chunk, chunk.ctypes.data)
    return _scratch.chunks[key]
