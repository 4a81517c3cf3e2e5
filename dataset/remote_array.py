"""Windows of arrays on a store: the shard index is fetched once, then one range a window."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retold.dataset.array_cache import MappedArray
from retold.dataset.chunk_cache import ChunkCache
from retold.dataset.remote_path import RemotePath, read_ranges
from retold.dataset.zarr_codec import CRC_BYTES, check_body, decode_body, read_checksum
from retold.dataset.zarr_reader import ArrayReader
from retold.schemas.errors import DatasetError

Range = tuple[RemotePath, int, int]
"""File, first byte, end."""


@dataclass(frozen=True)
class ArrayRead:
    """Rows of one array that are wanted."""

    array: ArrayReader | MappedArray
    start: int
    out: NDArray[Any]
    """`[rows, ...]`: filled from row `start` on."""


def read_arrays(reads: Sequence[ArrayRead]) -> None:
    """Fill every read. What lies on stores is asked for at once, what lies on disk in turn.

    Raises:
        FormatError: a chunk is missing or damaged; the file is named.
        DatasetError: a store does not answer.
    """
    remote = []
    for read in reads:
        if isinstance(read.array, RemoteArrayReader):
            remote.append((read.array, read))
        else:
            read.array.read(read.start, read.start + len(read.out), read.out)
    _fetch_indices(remote)
    pieces = [piece for array, read in remote for piece in array.missing_pieces(read)]
    contents = _fetch([(piece.array, piece.range) for piece in pieces])
    chunks: dict[tuple[int, int], memoryview] = {}
    for piece, content in zip(pieces, contents, strict=True):
        first = piece.range[1]
        for number, (start, end) in piece.chunks.items():
            chunks[id(piece.array), number] = memoryview(content)[start - first : end - first]
    for array, read in remote:
        array.fill_from(read, chunks)


@dataclass(frozen=True)
class Piece:
    """Chunks of one shard file that are fetched as one range."""

    array: "RemoteArrayReader"
    range: Range
    chunks: Mapping[int, tuple[int, int]]
    """First byte and end of each chunk, by its number in the array."""


class RemoteArrayReader(ArrayReader):
    """One array on a store."""

    def __init__(
        self,
        folder: RemotePath,
        encoded_metadata: bytes,
        cache: ChunkCache | None,
        sizes: Mapping[str, int],
        whole: Callable[[str], bytes | None],
    ) -> None:
        """Open an array.

        Args:
            folder: the array's.
            encoded_metadata: the content of its `zarr.json`, whose hash the caller has checked.
            cache: keeps decoded chunks; without it every window is fetched.
            sizes: bytes of the array's files, by path in its folder, as the manifest says.
            whole: the content of such a file, while it is held in memory.
        """
        super().__init__(folder, encoded_metadata, cache)
        self._sizes, self._whole = sizes, whole
        self._indices: dict[int, memoryview] = {}
        self.fill = self._fill_remote

    def missing_indices(self, read: ArrayRead) -> dict[int, Range]:
        """Shard files of a read whose index is not known, with where it stands in each."""
        shards = {number // self._chunks_per_shard for number in self._chunks(read)}
        places = {}
        for shard in sorted(shards - self._indices.keys()):
            path, size = self._shard_file(shard)
            places[shard] = (path, max(0, size - self._index_bytes), size)
        return places

    def keep_index(self, shard: int, encoded: bytes) -> None:
        """Remember the index of a shard file."""
        self._indices[shard] = self._parse_index(shard, encoded)

    def held(self, path: RemotePath) -> bytes | None:
        """The content of one of the array's files, while it is held in memory."""
        assert isinstance(self.folder, RemotePath)
        return self._whole(path.relative_to(self.folder).as_posix())

    def missing_pieces(self, read: ArrayRead) -> list[Piece]:
        """What is to be fetched for a read: one range for each shard file."""
        chunks: dict[int, dict[int, tuple[int, int]]] = {}
        for number in self._chunks(read):
            if self._cache is None or self._cache.get((id(self), number)) is None:
                shard = number // self._chunks_per_shard
                chunks.setdefault(shard, {})[number] = self._place(number)
        return [
            Piece(self, (self._shard_file(shard)[0], *_hull(places.values())), places)
            for shard, places in chunks.items()
        ]

    def fill_from(self, read: ArrayRead, chunks: Mapping[tuple[int, int], memoryview]) -> None:
        """Fill a read from fetched chunks and cached ones."""
        filled, first = 0, read.start % self._chunk_rows
        for number in self._chunks(read):
            count = min(self._chunk_rows - first, len(read.out) - filled)
            rows = self._rows(number, chunks)[first : first + count]
            read.out[filled : filled + count] = rows
            filled, first = filled + count, 0

    def _fill_remote(self, start: int, wanted: int, rows: NDArray[Any]) -> None:
        read_arrays([ArrayRead(self, start, rows[:wanted])])

    def _rows(self, number: int, chunks: Mapping[tuple[int, int], memoryview]) -> NDArray[Any]:
        key = (id(self), number)
        kept = None if self._cache is None else self._cache.get(key)
        if kept is not None:
            return kept
        if key not in chunks:  # it was cached when it was looked for, and has gone since
            rows = np.empty(self._chunk_shape, self.dtype)
            self.read(number * self._chunk_rows, (number + 1) * self._chunk_rows, rows)
            return rows
        content, rows = chunks[key], np.empty(self._chunk_shape, self.dtype)
        try:
            body, (checksum,) = bytes(content[:-CRC_BYTES]), read_checksum(content, -CRC_BYTES)
            check_body(body, checksum)
            decode_body(self._codec, body, rows, rows.ctypes.data, self.chunk_bytes)
        except ValueError as error:
            raise self._damage(number, error) from error
        if self._cache is not None:
            self._cache.put(key, rows)
        return rows

    def _chunks(self, read: ArrayRead) -> range:
        if not len(read.out):
            return range(0)
        last = read.start + len(read.out) - 1
        return range(read.start // self._chunk_rows, last // self._chunk_rows + 1)

    def _place(self, number: int) -> tuple[int, int]:
        """First byte and end of a chunk in its shard file."""
        shard, place = divmod(number, self._chunks_per_shard)
        start, count = self._indices[shard][2 * place], self._indices[shard][2 * place + 1]
        if start + count > self._shard_file(shard)[1] or count < CRC_BYTES:
            raise self._damage(number, ValueError("a chunk is missing"))
        return start, start + count

    def _shard_file(self, shard: int) -> tuple[RemotePath, int]:
        path = self._shard_path(shard)
        assert isinstance(path, RemotePath) and isinstance(self.folder, RemotePath), path
        return path, self._sizes.get(path.relative_to(self.folder).as_posix(), 0)


def _fetch_indices(remote: Sequence[tuple[RemoteArrayReader, ArrayRead]]) -> None:
    wanted = {
        (array, shard): place
        for array, read in remote
        for shard, place in array.missing_indices(read).items()
    }
    contents = _fetch([(array, place) for (array, _), place in wanted.items()])
    for (array, shard), encoded in zip(wanted, contents, strict=True):
        array.keep_index(shard, encoded)


def _fetch(places: Sequence[tuple[RemoteArrayReader, Range]]) -> list[bytes]:
    """The bytes of each range: of what is held in memory, and the rest from the store at once."""
    held = [array.held(path) for array, (path, _, _) in places]
    ranges = [place for (_, place), content in zip(places, held, strict=True) if content is None]
    try:
        fetched = iter(read_ranges(ranges))
    except OSError as error:
        raise DatasetError(
            f"{ranges[0][0]}: it cannot be read: {error.strerror}. Check the store and the "
            f"connection, and run again; find damage with `retold audit`."
        ) from error
    return [
        next(fetched) if content is None else content[start:end]
        for (_, (_, start, end)), content in zip(places, held, strict=True)
    ]


def _hull(places: Collection[tuple[int, int]]) -> tuple[int, int]:
    return min(start for start, _ in places), max(end for _, end in places)
